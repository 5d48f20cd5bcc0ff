"""Build the manifest from what was loaded, never from what was configured.

In go the engine's identity (hashed in the engine process while it read the files), the tokenizer and the template that this
process loaded, and the serving document for what only a declaration can say: where things came from and which limits
apply. Out comes the manifest; every fact lands in exactly one part (``docs/release.md`` has the table).
"""

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from pratique_contract.canonical import digest_bytes, digest_json
from pratique_contract.manifest import (
    AdapterEntry,
    AdaptersPart,
    ChatTemplatePart,
    EnginePart,
    FileEntry,
    ModelPart,
    QuantizationPart,
    ReleaseManifest,
    RuntimeSection,
    ServingFlagsPart,
    SpecialTokensPart,
    TokenizerPart,
)
from pratique_contract.serving import AdapterSource, ServingSpec
from pratique_server.artifacts.errors import ManifestError
from pratique_server.artifacts.files import LoadedFile
from pratique_server.engine.protocol import EngineIdentity, LoadedAdapter
from pratique_server.release.generation_defaults import find_not_applied
from pratique_server.release.special_tokens import read_special_tokens

# Repositories in which a revision, once made, always names the same bytes.
_REPOSITORY_SCHEMES: Final = ("hf://", "oci://")
_IMMUTABLE_REVISION: Final = re.compile(r"[0-9a-f]{40}|sha256:[0-9a-f]{64}")

logger = logging.getLogger(__name__)


class LoadedTokenizer(Protocol):
    """What the manifest needs of a tokenizer: the files as they were read, and the ids as it will use them."""

    @property
    def files(self) -> Iterable[LoadedFile]: ...
    @property
    def compiled(self) -> str:
        """Digest of what it does, wherever that came from."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def pad_id(self) -> int | None: ...
    @property
    def unk_id(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_eos(self) -> bool: ...
    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Role (``bos_token`` …) to text."""
        ...


class LoadedTemplate(Protocol):
    """What the manifest needs of a chat template."""

    @property
    def text(self) -> str: ...
    @property
    def origin(self) -> str: ...


def build_manifest(
    spec: ServingSpec, identity: EngineIdentity, tokenizer: LoadedTokenizer, template: LoadedTemplate | None
) -> ReleaseManifest:
    """Describe the loaded release. Raises ``ManifestError`` when something declared was not loaded."""
    special_tokens = read_special_tokens(
        Path(spec.model.path), tokenizer=tokenizer, context_limit=identity.context_limit
    )
    _check_stop_ids(special_tokens, rows=identity.vocab_size)
    manifest = ReleaseManifest(
        model=_model_part(spec, identity),
        adapters=AdaptersPart(adapters=_adapter_entries(spec, identity)),
        tokenizer=_tokenizer_part(spec, tokenizer),
        chat_template=_template_part(template),
        special_tokens=special_tokens,
        quantization=_quantization_part(identity),
        engine=EnginePart(
            name=identity.engine_name,
            version=identity.engine_version,
            build=identity.engine_build,
            image_digest=spec.engine.image_digest,
            libraries=identity.libraries,
        ),
        serving_flags=ServingFlagsPart(flags={**identity.flags, **_answer_limits(spec)}),
        runtime=RuntimeSection(
            device_class=identity.device_class,
            facts={
                **identity.runtime_facts,
                "chatTemplateOrigin": template.origin if template else None,
                **_remarks(special_tokens, tokenizer, rows=identity.vocab_size),
            },
        ),
    )
    _require_fingerprint(manifest)
    return manifest


def _check_stop_ids(part: SpecialTokensPart, *, rows: int) -> None:
    """A stop id that the model cannot produce ends nothing: the files are of two models."""
    if beyond := [token_id for token_id in part.stop_ids if token_id >= rows]:
        raise ManifestError(
            f"The stop id {beyond[0]} is beyond the model's vocabulary of {rows} rows: no answer would ever end with it"
        )


def _remarks(part: SpecialTokensPart, tokenizer: LoadedTokenizer, *, rows: int) -> dict[str, Any]:
    """What is sound enough to serve and what somebody should still know; in the log, and in the runtime section."""
    remarks: dict[str, Any] = {}
    if ignored := find_not_applied(part.generation_defaults):
        logger.warning("generation_config.json sets %s, which this server does not apply", ", ".join(ignored))
        remarks["generationDefaultsNotApplied"] = ignored
    if not part.stop_ids:
        logger.warning("The release names no stop id: only max_tokens and stop strings end an answer")
        remarks["stopIds"] = "none"
    if (surplus := tokenizer.vocab_size - rows) > 0:
        logger.warning(
            "The tokenizer has %d tokens more than the model has rows; prompts with them are refused", surplus
        )
        remarks["tokensWithoutRow"] = surplus
    return remarks


def _require_fingerprint(manifest: ReleaseManifest) -> None:
    """A file may hold what no canonical JSON does (NaN, a number beyond 2⁵³, half a surrogate pair, a very deep list)."""
    try:
        assert manifest.fingerprint
    except ValueError as error:
        raise ManifestError(f"The release holds a value that cannot be fingerprinted: {error}") from error


def _model_part(spec: ServingSpec, identity: EngineIdentity) -> ModelPart:
    files = _entries(identity.model_files)
    source, revision = _origin(spec.model.uri, spec.model.revision, files)
    return ModelPart(source=source, revision=revision, architecture=identity.architecture, files=files)


def _tokenizer_part(spec: ServingSpec, tokenizer: LoadedTokenizer) -> TokenizerPart:
    files = _entries(tokenizer.files)
    if spec.tokenizer is None:
        # The model's own tokenizer: its origin is the model part's fact. Here the bytes alone speak, so that a new
        # revision of the weights with an unchanged tokenizer moves one digest.
        source, revision = None, _files_digest(files)
    else:
        source, revision = _origin(spec.tokenizer.uri, spec.tokenizer.revision, files)
    return TokenizerPart(
        source=source,
        revision=revision,
        files=files,
        compiled=tokenizer.compiled,
        vocab_size=tokenizer.vocab_size,
    )


def _template_part(template: LoadedTemplate | None) -> ChatTemplatePart:
    if template is None:
        return ChatTemplatePart(sha256=None, length=0)
    return ChatTemplatePart(sha256=digest_bytes(template.text.encode()), length=len(template.text))


def _quantization_part(identity: EngineIdentity) -> QuantizationPart:
    return QuantizationPart.model_validate(
        {
            "method": identity.quantization_method,
            "dtype": identity.dtype,
            "config": identity.quantization_config,
            "quantized": tuple(identity.quantized_tensors),
            "kept": tuple(identity.kept_tensors),
        }
    )


def _adapter_entries(spec: ServingSpec, identity: EngineIdentity) -> tuple[AdapterEntry, ...]:
    declared = [adapter.name for adapter in spec.model.adapters]
    loaded = [adapter.name for adapter in identity.adapters]
    if declared != loaded:
        raise ManifestError(f"The adapters {declared} are declared, in this order; the engine loaded {loaded}")
    return tuple(
        _adapter_entry(source, adapter) for source, adapter in zip(spec.model.adapters, identity.adapters, strict=True)
    )


def _adapter_entry(declared: AdapterSource, loaded: LoadedAdapter) -> AdapterEntry:
    files = _entries(loaded.files)
    source, revision = _origin(declared.uri, declared.revision, files)
    return AdapterEntry.model_validate(
        {
            "name": loaded.name,
            "source": source,
            "revision": revision,
            "mode": loaded.mode,
            "files": files,
            "lineage": loaded.lineage,
        }
    )


def _origin(uri: str, revision: str | None, files: tuple[FileEntry, ...]) -> tuple[str | None, str]:
    """Source and revision. A place whose content can change (folder, bucket, branch) is not identity: its files are."""
    if not uri.startswith(_REPOSITORY_SCHEMES):
        return None, _files_digest(files)
    repository, _, digest = uri.partition("@")
    named = revision or digest
    return repository, named if _IMMUTABLE_REVISION.fullmatch(named) else _files_digest(files)


def _files_digest(files: tuple[FileEntry, ...]) -> str:
    return digest_json([entry.to_json_value() for entry in sorted(files, key=lambda entry: entry.path)])


def _entries(files: Iterable[LoadedFile]) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry.model_validate(
            {
                "path": file.path,
                "size": file.size,
                "sha256": file.sha256,
                "form": file.form,
                "omitted": tuple(sorted(file.omitted)),
            }
        )
        for file in files
    )


def _answer_limits(spec: ServingSpec) -> dict[str, Any]:
    """Limits that cut what a client is answered. Queue sizes and timeouts only say when, and may be tuned without a review."""
    return {"maxPromptTokens": spec.limits.max_prompt_tokens, "maxOutputTokens": spec.limits.max_output_tokens}
