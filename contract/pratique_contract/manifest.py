"""The release manifest: eight parts, each with a digest of its own, and the fingerprint over the eight digests.

Every fact that can change a served byte lives in exactly one part, so a single change moves exactly one digest and the
gate can name the part that is wrong. Where one file on disk states facts of several parts (``config.json`` names
the end-of-sequence id, ``tokenizer_config.json`` may carry the chat template), its entry is hashed without the fields that
another part owns and says so in ``omitted``. Host facts live in ``runtime``, which is never hashed: one release runs on many hosts.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator

from pratique_contract.canonical import DIGEST_PATTERN, digest_json
from pratique_contract.model import ContractModel, Several

Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]

MANIFEST_VERSION: Final = "pratique.dev/manifest/v1"

DType = Literal["FP32", "FP16", "BF16"]


class FileEntry(ContractModel):
    """One file that was read. ``form`` says what was hashed: the bytes, or (for JSON, where layout carries no meaning)
    the parsed value with sorted keys and no white space, minus the top-level fields in ``omitted``. ``size`` is the
    number of bytes hashed."""

    path: str
    size: int = Field(ge=0)
    sha256: Digest
    form: Literal["bytes", "json"] = "bytes"
    omitted: Several[str] = ()


def _sorted_by_path(files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
    paths = [entry.path for entry in files]
    if len(set(paths)) != len(paths):
        raise ValueError("files names one path twice")
    return tuple(sorted(files, key=lambda entry: entry.path))


class ModelPart(ContractModel):
    """Weights and architecture. ``source`` names a repository whose revisions are immutable (``hf://``, ``oci://``) and is
    None for a plain location (folder, bucket, claim): where identical bytes lie is not identity. ``revision`` is the
    source's commit or digest; for a location it is the digest of ``files`` itself."""

    source: str | None
    revision: str
    architecture: str
    files: Several[FileEntry]

    _sort_files = field_validator("files")(_sorted_by_path)


class AdapterEntry(ContractModel):
    """One adapter: where it came from, what was read, how it is applied, and what it was trained on (``lineage``)."""

    name: str
    source: str | None
    revision: str
    mode: Literal["Merged", "Static", "PerRequest"]
    files: Several[FileEntry]
    lineage: dict[str, str] = {}

    _sort_files = field_validator("files")(_sorted_by_path)


class AdaptersPart(ContractModel):
    """All adapters, in the order in which they are applied (merging is not commutative in floating point)."""

    adapters: Several[AdapterEntry] = ()


class TokenizerPart(ContractModel):
    """The tokenizer's files without the template and the special-token choices, which are parts of their own. ``compiled``
    is the digest of what the library made of them: which files it reads, and how, is decided by the library."""

    source: str | None
    revision: str
    files: Several[FileEntry]
    compiled: Digest | None = None
    vocab_size: int = Field(ge=0)

    _sort_files = field_validator("files")(_sorted_by_path)


class ChatTemplatePart(ContractModel):
    """The exact text, by digest. Where it came from is in ``runtime``: the same text from another place is the same template."""

    sha256: Digest | None
    length: int = Field(ge=0)


class SpecialTokensPart(ContractModel):
    """Special ids and stop rules as the server will use them, generation defaults and the effective context limit.

    ``stop_ids`` is every id that ends a generation. ``tokens`` maps a role (``bos_token`` …) to its text. ``generation_defaults``
    holds what applies when a request is silent (temperature, top_p, …).
    """

    bos_id: int | None
    eos_ids: Several[int]
    pad_id: int | None
    unk_id: int | None
    stop_ids: Several[int]
    adds_bos: bool
    adds_eos: bool = False
    tokens: dict[str, str]
    generation_defaults: dict[str, Any]
    context_limit: int = Field(gt=0)
    tool_call_grammar: str | None = None

    @field_validator("eos_ids", "stop_ids")
    @classmethod
    def _sort_ids(cls, ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(ids)))


class QuantizationPart(ContractModel):
    """Numeric format the weights are computed in, and which tensors were quantized, calibrated or kept."""

    method: str
    dtype: DType
    config: dict[str, Any] = {}
    quantized: Several[str] = ()
    calibrated: Several[str] = ()
    kept: Several[str] = ()

    @field_validator("quantized", "calibrated", "kept")
    @classmethod
    def _sort_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(names))


class EnginePart(ContractModel):
    """The program that computes: its name, version, a digest of its own source (``build``), the image digest when the
    image is referred to by digest, and the versions of the libraries whose change can change numbers or text."""

    name: str
    version: str
    build: str
    image_digest: Digest | None = None
    libraries: dict[str, str]


class ServingFlagsPart(ContractModel):
    """Every flag that can change tokens or limits, normalised: defaults filled in, order-free."""

    flags: dict[str, Any]


class RuntimeSection(ContractModel):
    """Host facts, never hashed: device, threads, wait policy, self-test results, where things came from."""

    device_class: str = "unknown"
    facts: dict[str, Any] = {}


class ReleaseManifest(ContractModel):
    """What a pod loaded, or what was recorded. Compare with ``compare_manifests``; identify with ``fingerprint``."""

    version: Literal["pratique.dev/manifest/v1"] = MANIFEST_VERSION
    model: ModelPart
    adapters: AdaptersPart = AdaptersPart()
    tokenizer: TokenizerPart
    chat_template: ChatTemplatePart
    special_tokens: SpecialTokensPart
    quantization: QuantizationPart
    engine: EnginePart
    serving_flags: ServingFlagsPart
    runtime: RuntimeSection = RuntimeSection()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A validated copy. pydantic's own would carry the cached digests over to the changed value."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digest of each part by its JSON name, in ``PARTS`` order."""
        value = self.to_json_value()
        return {part: digest_json(value[part]) for part in PARTS}

    def describe(self) -> dict[str, Any]:
        """The manifest as plain JSON types with its part digests and fingerprint, which its own JSON leaves to be derived."""
        return {**self.to_json_value(), "digests": self.digests, "fingerprint": self.fingerprint}

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:`` over the canonical JSON of the eight part digests."""
        return digest_json(self.digests)


PARTS: tuple[str, ...] = (
    "model",
    "adapters",
    "tokenizer",
    "chatTemplate",
    "specialTokens",
    "quantization",
    "engine",
    "servingFlags",
)
