"""The recorder against a scripted engine: what it keeps, what it refuses, and that it never invents."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from pratique_contract.golden import (
    FIXTURE_KINDS,
    GOLDEN_STEPS_MIN,
    MARGIN_NATS_MIN,
    GoldenCase,
    GoldenRecord,
    find_gaps,
)
from pratique_contract.manifest import DType, QuantizationPart
from pratique_server.artifacts.errors import RecordingError
from pratique_server.engine.protocol import (
    ExecutionRequest,
    FinishReason,
    StepEvent,
)
from pratique_server.gate.making import engine_generate
from pratique_server.release.prompts import CANDIDATES, FIXTURES, LONG_CANDIDATES
from pratique_server.release.recorder import CASE_TOKENS_MAX, CASES_WANTED, Recorder
from tests.support.gates import Rendered
from tests.support.releases import make_manifest
from tests.unit.server.release.scripted_release import (
    STOP,
    Answer,
    LetterDecoder,
    NumberingRenderer,
    ScriptedEngine,
    Step,
    clear_steps,
)


def _recorder(
    answer: Answer, renderer: NumberingRenderer | None = None, *, dtype: DType = "FP32", **limits: int
) -> Recorder:
    return _recorder_on(ScriptedEngine(answer), renderer, dtype=dtype, **limits)


def _recorder_on(
    engine: Any, renderer: NumberingRenderer | None = None, *, dtype: DType = "FP32", **limits: int
) -> Recorder:
    manifest = make_manifest(quantization=QuantizationPart(method="None", dtype=dtype))
    return Recorder(
        generate=engine_generate(engine, manifest.special_tokens.stop_ids),
        manifest=manifest,
        renderer=renderer or NumberingRenderer(),
        decoder=LetterDecoder(),
        prompt_tokens_max=limits.get("prompt_tokens_max"),
        output_tokens_max=limits.get("output_tokens_max"),
    )


def _short(record: GoldenRecord) -> list[GoldenCase]:
    """The cases without the long conversation."""
    return [case for case in record.cases if not case.name.startswith("long-")]


async def test_three_cases_are_kept_with_measured_margins() -> None:
    record = await _recorder(lambda n: clear_steps(5, last=STOP) if n % 2 else clear_steps(20)).record()
    endings = [case.outputs[0].finish_reason for case in _short(record)]
    assert sorted(endings) == ["length", "length", "stop"] or sorted(endings) == ["length", "stop", "stop"]
    assert len(_short(record)) == CASES_WANTED
    assert [case.name for case in record.cases][CASES_WANTED:] == [LONG_CANDIDATES[0][0]]
    stopped = next(case.outputs[0] for case in record.cases if case.outputs[0].finish_reason == "stop")
    assert (stopped.ids, stopped.text) == ((10, 11, 12, 13, 14, STOP), "abcde")
    assert stopped.logprobs[-1] == -0.125
    assert stopped.margins == (1.75,) * 5 + (2.875,)
    assert stopped.usage.completion_tokens == 6


async def test_one_kind_of_ending_is_enough_when_the_model_knows_no_other() -> None:
    record = await _recorder(lambda _: clear_steps(20)).record()
    assert [case.max_tokens for case in _short(record)] == [CASE_TOKENS_MAX] * CASES_WANTED


async def test_a_case_ends_before_its_first_near_tie() -> None:
    near_tie: list[Step] = [(50, -0.7, -0.7 - MARGIN_NATS_MIN * 0.99)]
    record = await _recorder(lambda _: clear_steps(9) + near_tie + clear_steps(6)).record()
    assert {len(case.outputs[0].ids) for case in record.cases} == {9}
    assert all(min(case.outputs[0].margins) >= MARGIN_NATS_MIN for case in record.cases)


async def test_cases_that_hold_on_every_device_are_preferred() -> None:
    def answer(number: int) -> list[Step]:
        lead = 2.0 if number in (7, 9) else 0.75
        return [(10 + index, -0.5, -0.5 - lead) for index in range(20)]

    record = await _recorder(answer, dtype="BF16").record()
    assert [case.name for case in _short(record)] == [CANDIDATES[number][0] for number in (7, 9, 0)]


async def test_near_ties_everywhere_are_refused_with_the_margin_named() -> None:
    with pytest.raises(RecordingError, match=r"step 4 has a margin of 0\.10 nat"):
        await _recorder(lambda _: clear_steps(3) + [(50, -0.7, -0.8)] * 20).record()


async def test_a_step_that_is_not_the_likeliest_is_refused() -> None:
    with pytest.raises(RecordingError, match=r"margin of -1\.00 nat"):
        await _recorder(lambda _: [(50, -2.0, -1.0)] * 20).record()


async def test_an_answer_is_cut_before_half_a_character_and_a_hidden_token() -> None:
    for odd in (100, 101):
        steps: list[Step] = [*clear_steps(10), (odd, -0.1, -3.0), *clear_steps(5)]
        record = await _recorder(lambda _, steps=tuple(steps): steps).record()  # type: ignore[misc]
        assert {len(case.outputs[0].ids) for case in record.cases} == {10}


async def test_an_engine_that_changes_its_mind_is_refused() -> None:
    calls: list[int] = []

    def answer(number: int) -> list[Step]:
        calls.append(number)
        return [(10 + len(calls), -0.1, -3.0)] * 20

    with pytest.raises(RecordingError, match="not deterministic"):
        await _recorder(answer).record()


async def test_an_engine_without_log_probabilities_is_refused() -> None:
    class Silent(ScriptedEngine):
        async def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
            yield StepEvent(request_id=request.request_id, token_ids=[10], finish=FinishReason.LENGTH)

    with pytest.raises(RecordingError, match="0 log-probabilities"):
        await _recorder_on(Silent(lambda _: ())).record()


async def test_prompts_that_do_not_fit_are_passed_over() -> None:
    record = await _recorder(lambda n: clear_steps(20) if n > 4 else []).record()
    assert [case.name for case in _short(record)] == [name for name, _ in CANDIDATES[5:8]]


async def test_a_prompt_beyond_the_context_is_passed_over_even_if_the_engine_would_take_it() -> None:
    class Wordy(NumberingRenderer):
        def render(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> Rendered:
            rendered = super().render(messages, tools)
            return Rendered(text=rendered.text, ids=rendered.ids * (500 if len(messages) > 10 else 1))

    record = await _recorder(lambda _: clear_steps(20), Wordy()).record()
    assert [case.name for case in record.cases if case.name.startswith("long-")] == ["long-4"]


async def test_a_case_asks_for_no_more_than_the_server_gives() -> None:
    record = await _recorder(lambda _: clear_steps(20), output_tokens_max=4).record()
    assert {case.max_tokens for case in record.cases} == {4}


async def test_the_longest_conversation_that_fits_and_is_clear_is_recorded_too() -> None:
    """A fault beyond the first K/V block or the first prefill chunk shows in no short prompt."""
    too_long, near_tie = len(CANDIDATES), len(CANDIDATES) + 1

    def answer(number: int) -> Sequence[Step]:
        return [] if number == too_long else [(50, -0.7, -0.8)] * 20 if number == near_tie else clear_steps(20)

    record = await _recorder(answer).record()
    assert record.cases[-1].name == LONG_CANDIDATES[2][0]


async def test_a_model_of_short_answers_gets_as_many_cases_as_prove_something() -> None:
    record = await _recorder(lambda n: [(10 + n, -0.1, -3.0), (STOP, -0.1, -3.0)]).record()
    assert sum(len(case.outputs[0].ids) for case in _short(record)) >= GOLDEN_STEPS_MIN
    assert find_gaps(record) == ()


async def test_a_model_that_only_ever_says_one_thing_is_refused() -> None:
    with pytest.raises(RecordingError, match="only ever say 1 different tokens"):
        await _recorder(lambda _: [(10, -0.1, -3.0)] * 20).record()


@pytest.mark.req("R32")
async def test_every_kind_of_fixture_is_rendered_or_listed_as_refused() -> None:
    names = [name for name, _, _ in FIXTURES]
    rendered, refused = await _recorder(lambda _: clear_steps(20)).render_fixtures()
    assert ([fixture.name for fixture in rendered], refused) == (names, ())
    rendered, refused = await _recorder(
        lambda _: clear_steps(20), NumberingRenderer(refuses=["system"])
    ).render_fixtures()
    assert [(fixture.name, fixture.message) for fixture in refused] == [
        ("multi-turn", "refused"),
        ("empty-system", "refused"),
    ]
    assert [fixture.name for fixture in rendered] == [
        name for name in names if name not in ("multi-turn", "empty-system")
    ]
    assert set(FIXTURE_KINDS) <= set(names)


async def test_a_template_that_renders_nothing_is_an_error() -> None:
    with pytest.raises(RecordingError, match="refuses every fixture"):
        await _recorder(lambda _: clear_steps(20), NumberingRenderer(refuses=["user"])).record()


async def test_recording_is_greedy_with_a_cache_of_its_own() -> None:
    engine = ScriptedEngine(lambda _: clear_steps(20))
    await _recorder_on(engine).record()
    salts = {request.cache_salt for request in engine.requests}
    # Every candidate is tried (none stops by itself) and the longest conversation; what is kept runs again.
    assert len(salts) == len(engine.requests) == len(CANDIDATES) + 1 + CASES_WANTED + 1
    assert all(request.sampling.temperature == 0 and request.stop_token_ids == [STOP] for request in engine.requests)
