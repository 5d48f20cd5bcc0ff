"""The manifest of a really loaded model: each single change moves exactly its own part, and what changes nothing moves none."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pratique_cli.specs import folder_spec
from pratique_contract.manifest import PARTS, ReleaseManifest
from pratique_contract.reasons import PART_REASONS, Reason
from pratique_contract.serving import ServingSpec
from pratique_server.artifacts.errors import ManifestError
from pratique_server.artifacts.files import LoadedFile
from pratique_server.engine.identity import make_identity
from pratique_server.engine.loader import load_model
from pratique_server.engine.protocol import EngineIdentity, LoadedAdapter
from pratique_server.offline.loading import build_release, record_release
from pratique_server.offline.verification import verify_release
from pratique_server.release.builder import build_manifest
from pratique_server.text.template import load_chat_template
from pratique_server.text.tokenizer import Tokenizer
from tests.support import mutations
from tests.support.mutations import Mutation, copy_of

Change = Callable[[ServingSpec], ServingSpec]
_BASE: dict[Path, ReleaseManifest] = {}


def _identity(spec: ServingSpec) -> EngineIdentity:
    """What the engine says after loading, without the self-checks that follow."""
    loaded = load_model(spec.model, quantization=spec.quantization)
    return make_identity(spec, loaded, device="cpu", facts={})


def _build(spec: ServingSpec) -> ReleaseManifest:
    tokenizer = Tokenizer.load((spec.tokenizer or spec.model).path)
    return build_manifest(spec, _identity(spec), tokenizer, load_chat_template(spec))


@pytest.fixture
def base(tiny_model_dir: Path) -> ReleaseManifest:
    if tiny_model_dir not in _BASE:
        _BASE[tiny_model_dir] = _build(folder_spec(tiny_model_dir))
    return _BASE[tiny_model_dir]


def test_the_running_engine_describes_itself_the_same(base: ReleaseManifest, tiny_model_dir: Path) -> None:
    assert asyncio.run(build_release(folder_spec(tiny_model_dir))).digests == base.digests


def _moved(base: ReleaseManifest, other: ReleaseManifest) -> list[str]:
    return [part for part in PARTS if base.digests[part] != other.digests[part]]


@pytest.mark.req("R30", "R31", "R128")
@pytest.mark.parametrize("fault", mutations.FAULTS)
def test_a_wrong_file_moves_exactly_the_part_it_belongs_to(
    fault: str, base: ReleaseManifest, tiny_model_dir: Path, tmp_path: Path
) -> None:
    mutation, reason = mutations.FAULTS[fault]
    changed = _build(folder_spec(copy_of(tiny_model_dir, tmp_path / "copy", mutation)))
    (part,) = _moved(base, changed)
    assert PART_REASONS[part] is reason
    assert changed.fingerprint != base.fingerprint


def _edit(name: str, **fields: Any) -> Mutation:
    def mutation(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        path.write_text(json.dumps({**value, **fields}, ensure_ascii=False), encoding="utf-8")

    return mutation


def _choose_class(folder: Path) -> None:
    """A tokenizer's folder with the ``config.json`` of another family: none of the hashed files differs."""
    _edit("tokenizer_config.json", tokenizer_class=None)(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")


def _add_token(folder: Path) -> None:
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    added = {**value["added_tokens"][-1], "id": len(value["model"]["vocab"]), "content": "<|tool|>"}
    _edit("tokenizer.json", added_tokens=[*value["added_tokens"], added])(folder)


FILE_CHANGES: dict[str, tuple[Mutation, list[str]]] = {
    "added token": (_add_token, ["tokenizer"]),
    "tokenizer setting": (_edit("tokenizer_config.json", clean_up_tokenization_spaces=True), ["tokenizer"]),
    "pad token": (_edit("tokenizer_config.json", pad_token="<|endoftext|>"), ["specialTokens"]),
    "BOS added unasked": (_edit("tokenizer_config.json", add_bos_token=True), ["specialTokens"]),
    "context limit": (_edit("config.json", max_position_embeddings=256), ["specialTokens"]),
    "top_p default": (_edit("generation_config.json", top_p=0.5), ["specialTokens"]),
    "norm epsilon": (_edit("config.json", rms_norm_eps=1e-5), ["model"]),
    "saved dtype": (_edit("config.json", dtype="bfloat16"), ["quantization"]),
    "writer's version": (_edit("config.json", transformers_version="0.0.1"), []),
    "EOS id nobody reads": (_edit("config.json", eos_token_id=0), []),
    "generation noise": (_edit("generation_config.json", transformers_version="0.0.1"), []),
}


@pytest.mark.parametrize("change", FILE_CHANGES)
def test_each_fact_of_a_file_lies_in_one_part(
    change: str, base: ReleaseManifest, tiny_model_dir: Path, tmp_path: Path
) -> None:
    mutation, parts = FILE_CHANGES[change]
    changed = _build(folder_spec(copy_of(tiny_model_dir, tmp_path / "copy", mutation)))
    assert _moved(base, changed) == parts


@pytest.mark.parametrize(
    "text",
    [
        '{"anything": NaN}',
        '{"anything": 1e999}',
        '{"seed": 18446744073709551616}',
        '{"stop": "\\ud800"}',
        '{"a": ' + "[" * 400 + "]" * 400 + "}",
    ],
)
def test_a_value_that_no_manifest_can_hold_is_refused_with_a_sentence(
    text: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Found while loading, where it becomes a verdict: later it would end the process, again and again."""
    folder = copy_of(tiny_model_dir, tmp_path / "copy")
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(ManifestError, match="cannot be fingerprinted"):
        _build(folder_spec(folder))


@pytest.mark.parametrize("name", mutations.HARMLESS)
def test_what_nothing_loads_or_means_moves_nothing(
    name: str, base: ReleaseManifest, tiny_model_dir: Path, tmp_path: Path
) -> None:
    copy = copy_of(tiny_model_dir, tmp_path / "elsewhere" / "copy", mutations.HARMLESS[name])
    assert _build(folder_spec(copy)).digests == base.digests


def _with(section: str, **fields: Any) -> Change:
    return lambda spec: spec.model_copy(update={section: getattr(spec, section).model_copy(update=fields)})


# The naive engine has other flags: it is the one change that is two facts.
SPEC_CHANGES: dict[str, tuple[Change, list[str]]] = {
    "dtype": (_with("quantization", dtype="BF16"), ["quantization"]),
    "context flag": (_with("engine", max_model_len=128), ["servingFlags"]),
    "batch flag": (_with("engine", max_num_seqs=4), ["servingFlags"]),
    "step budget flag": (_with("engine", max_batched_tokens=64), ["servingFlags"]),
    "answer limit": (_with("limits", max_output_tokens=64), ["servingFlags"]),
    "naive engine": (_with("engine", name="Naive"), ["engine", "servingFlags"]),
    "image digest": (_with("engine", image_digest="sha256:" + "a" * 64), ["engine"]),
    "inline template": (lambda spec: spec.model_copy(update={"chat_template": "{{ messages }}"}), ["chatTemplate"]),
    "repository": (_with("model", uri="hf://example/tiny", revision="1" * 40), ["model"]),
    "queue size": (_with("limits", max_queued=64), []),
    "served name": (lambda spec: spec.model_copy(update={"served_model_name": "other"}), []),
    "another bucket": (_with("model", uri="s3://bucket/other"), []),
    "ports": (lambda spec: spec.model_copy(update={"api_port": 9000}), []),
}


@pytest.mark.parametrize("change", SPEC_CHANGES)
def test_each_declared_field_lies_in_one_part(change: str, base: ReleaseManifest, tiny_model_dir: Path) -> None:
    apply, parts = SPEC_CHANGES[change]
    assert _moved(base, _build(apply(folder_spec(tiny_model_dir)))) == parts


@pytest.mark.req("R128")
def test_a_tokenizer_that_another_class_compiles_moves_its_part(tiny_model_dir: Path, tmp_path: Path) -> None:
    unnamed = copy_of(tiny_model_dir, tmp_path / "unnamed", _edit("tokenizer_config.json", tokenizer_class=None))
    other = copy_of(tiny_model_dir, tmp_path / "other", _choose_class)
    as_llama = _build(folder_spec(tiny_model_dir, tokenizer=unnamed))
    as_qwen = _build(folder_spec(tiny_model_dir, tokenizer=other))
    assert as_llama.tokenizer.files == as_qwen.tokenizer.files
    assert _moved(as_llama, as_qwen) == ["tokenizer"]


def test_a_tokenizer_of_its_own_with_the_same_files_moves_nothing(base: ReleaseManifest, tiny_model_dir: Path) -> None:
    assert _build(folder_spec(tiny_model_dir, tokenizer=tiny_model_dir)).digests == base.digests


def test_the_thread_count_is_not_identity(
    base: ReleaseManifest, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        assert _build(folder_spec(tiny_model_dir)).digests == base.digests
    finally:
        torch.set_num_threads(before)


def test_adapters_are_described_as_loaded_and_a_declared_one_must_be_loaded(tiny_model_dir: Path) -> None:
    import msgspec

    spec = folder_spec(tiny_model_dir)
    identity = _identity(spec)
    tokenizer, template = Tokenizer.load(tiny_model_dir), load_chat_template(spec)
    declared = ServingSpec.from_json_value(
        spec.to_json_value()
        | {
            "model": spec.model.to_json_value()
            | {"adapters": [{"name": "quay", "path": "a", "uri": "hf://example/quay", "revision": "2" * 40}]}
        }
    )
    with pytest.raises(ManifestError, match=r"'quay'.*the engine loaded"):
        build_manifest(declared, identity, tokenizer, template)
    file = LoadedFile(path="adapter.safetensors", size=1, sha256="sha256:" + "a" * 64)
    adapter = LoadedAdapter(name="quay", mode="Merged", files=[file], lineage={"base": "tiny"})
    loaded = build_manifest(declared, msgspec.structs.replace(identity, adapters=[adapter]), tokenizer, template)
    assert _moved(build_manifest(spec, identity, tokenizer, template), loaded) == ["adapters"]
    (entry,) = loaded.adapters.adapters
    assert (entry.source, entry.revision, entry.lineage) == ("hf://example/quay", "2" * 40, {"base": "tiny"})


def test_a_case_that_the_engine_refuses_is_a_failed_check(tiny_model_dir: Path) -> None:
    """``release verify`` sends cases to the engine itself: what a server would answer 400 must not be a traceback."""
    spec = folder_spec(tiny_model_dir)
    record = asyncio.run(record_release(spec))
    case = record.golden.cases[0].model_copy(update={"max_tokens": 10**6})
    tampered = record.model_copy(update={"golden": record.golden.model_copy(update={"cases": (case,)})})
    verdict = asyncio.run(verify_release(spec, tampered))
    assert (verdict.result, verdict.reason) == ("Fail", Reason.OUTPUT_MISMATCH)
    assert "the engine gave no answer" in verdict.message


@pytest.mark.parametrize(
    ("uri", "revision", "source", "is_named"),
    [
        ("hf://example/tiny", "1" * 40, "hf://example/tiny", True),
        ("oci://registry/tiny@sha256:" + "b" * 64, None, "oci://registry/tiny", True),
        ("hf://example/tiny", "main", "hf://example/tiny", False),
        ("file:///models/tiny", None, None, False),
        ("pvc://claim/tiny", "1" * 40, None, False),
    ],
)
def test_only_an_immutable_revision_of_a_repository_names_a_model(
    uri: str, revision: str | None, source: str | None, is_named: bool, base: ReleaseManifest, tiny_model_dir: Path
) -> None:
    part = _build(_with("model", uri=uri, revision=revision)(folder_spec(tiny_model_dir))).model
    assert part.source == source
    assert (part.revision != base.model.revision) is is_named


@pytest.mark.parametrize("value", ["[]", "{", '{"eos_token_id": "2"}', '{"eos_token_id": [2, -1]}'])
def test_a_generation_config_that_is_none_is_an_error(value: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    def spoil(folder: Path) -> None:
        (folder / "generation_config.json").unlink()
        (folder / "generation_config.json").write_text(value)

    with pytest.raises(ManifestError, match=r"generation_config|eos_token_id"):
        _build(folder_spec(copy_of(tiny_model_dir, tmp_path / "copy", spoil)))
