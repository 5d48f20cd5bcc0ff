"""A record with one more device's outputs: nothing else may change, and nothing wrong may become approved by being recorded."""

from collections.abc import Sequence
from typing import Any

import pytest

from pratique_contract.golden import MARGIN_NATS_MIN, GoldenOutput
from pratique_contract.manifest import ReleaseManifest, RuntimeSection
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.artifacts.errors import RecordingError
from pratique_server.gate.making import add_outputs, engine_generate, make_record
from tests.support.gates import Rendered
from tests.support.gates import make_spec as make_gate_spec
from tests.support.releases import TEMPLATE, make_digest, make_manifest
from tests.unit.server.release.scripted_release import (
    Answer,
    LetterDecoder,
    NumberingRenderer,
    ScriptedEngine,
    Step,
    clear_steps,
)

SPEC: ServingSpec = make_gate_spec()
HERE = make_manifest()
GPU = HERE.model_copy(update={"runtime": RuntimeSection(device_class="cuda-sm90")})


class LoadedRenderer(NumberingRenderer):
    tokenizer = LetterDecoder()

    class template:  # noqa: N801
        text = TEMPLATE


def _answer(_: int) -> list[Step]:
    return clear_steps(12)


async def _record(manifest: ReleaseManifest = HERE, answer: Answer = _answer) -> ReleaseRecord:
    engine: Any = ScriptedEngine(answer)
    renderer: Any = LoadedRenderer()
    return await make_record(SPEC, manifest, renderer, engine_generate(engine, (2,)))


async def _add(
    record: ReleaseRecord, manifest: ReleaseManifest, answer: Answer = _answer, renderer: Any = None
) -> ReleaseRecord:
    engine: Any = ScriptedEngine(answer)
    return await add_outputs(SPEC, record, manifest, renderer or LoadedRenderer(), engine_generate(engine, (2,)))


def _without(record: ReleaseRecord, device_class: str) -> str:
    """The record's text without one device's outputs."""
    value = record.to_json_value()
    for case in value["golden"]["cases"]:
        case["outputs"] = [output for output in case["outputs"] if output["deviceClass"] != device_class]
    return ReleaseRecord.from_json_value(value).to_json()


async def test_another_device_class_adds_its_outputs_and_touches_nothing_else() -> None:
    """One release runs on many hosts: manifest, fingerprint, fixtures and the other devices' outputs stay byte for byte."""
    record = await _record()
    extended = await _add(record, GPU)
    assert all([o.device_class for o in case.outputs] == ["cpu", "cuda-sm90"] for case in extended.golden.cases)
    assert extended.fingerprint == record.fingerprint
    assert _without(extended, "cuda-sm90") == record.to_json()


async def test_adding_what_is_there_already_changes_no_byte() -> None:
    record = await _record()
    assert (await _add(record, HERE)).to_json() == record.to_json()


async def test_another_engine_build_or_dtype_stands_beside_and_leaves_the_fingerprint() -> None:
    record = await _record()
    for part, update in (("engine", {"build": make_digest("gpu build")}), ("quantization", {"dtype": "BF16"})):
        other = HERE.model_copy(update={part: getattr(HERE, part).model_copy(update=update)})
        extended = await _add(record, other)
        assert extended.fingerprint == record.fingerprint != other.fingerprint
        assert {len(case.outputs) for case in extended.golden.cases} == {2}


@pytest.mark.parametrize(
    ("part", "update", "named"),
    [
        ("model", {"revision": "2" * 40}, r"model\.revision \(1{40} is recorded, 2{40} is loaded\)"),
        ("tokenizer", {"vocab_size": 1}, r"tokenizer\.vocabSize"),
        ("chat_template", {"length": 1}, r"chatTemplate\.length"),
        ("special_tokens", {"eos_ids": (0,)}, r"specialTokens\.eosIds"),
        ("quantization", {"kept": ("lm_head",)}, r"quantization\.kept"),
        ("serving_flags", {"flags": {"maxModelLen": 256}}, r"servingFlags\.flags"),
        ("adapters", {"adapters": ()}, r"adapters\.adapters"),
    ],
)
async def test_another_release_is_not_added_and_what_differs_is_named(
    part: str, update: dict[str, Any], named: str
) -> None:
    record = await _record()
    other = GPU.model_copy(update={part: getattr(HERE, part).model_copy(update=update)})
    with pytest.raises(RecordingError, match=named):
        await _add(record, other)


async def test_a_device_that_computes_something_else_does_not_become_approved() -> None:
    record = await _record()

    def broken(number: int) -> Sequence[Step]:
        steps = clear_steps(12)
        return [*steps[:5], (40, -0.25, -2.0), *steps[6:]]

    with pytest.raises(RecordingError, match=r"output token 5 is 40 .*, 15 .* was recorded"):
        await _add(record, GPU, broken)
    with pytest.raises(RecordingError, match="log-probability of output token 0"):
        await _add(record, GPU, lambda _: [(token, -0.3, -2.0) for token, _, _ in clear_steps(12)])


async def test_a_near_tie_on_the_other_device_is_refused() -> None:
    lead = MARGIN_NATS_MIN * 0.9
    with pytest.raises(RecordingError, match=r"step 1 has a margin of 0\.45 nat here"):
        await _add(await _record(), GPU, lambda _: [(t, -0.25, -0.25 - lead) for t, _, _ in clear_steps(12)])


async def test_a_device_that_renders_otherwise_is_refused() -> None:
    class Otherwise(LoadedRenderer):
        def render(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> Rendered:
            rendered = super().render(messages, tools)
            return Rendered(text=rendered.text + " ", ids=rendered.ids)

    with pytest.raises(RecordingError, match="rendered character"):
        await _add(await _record(), GPU, renderer=Otherwise())


async def test_a_record_that_proves_too_little_is_not_extended() -> None:
    record = await _record()
    bare = record.model_copy(update={"golden": record.golden.model_copy(update={"fixtures": ()})})
    with pytest.raises(RecordingError, match="no rendering fixture"):
        await _add(bare, GPU)


async def test_every_output_names_its_device() -> None:
    outputs: list[GoldenOutput] = [case.outputs[0] for case in (await _record(GPU)).golden.cases]
    assert {(o.dtype, o.device_class, o.engine_build) for o in outputs} == {("FP32", "cuda-sm90", make_digest("build"))}
