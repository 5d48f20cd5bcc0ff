"""Make a release record: what an approved release renders, tokenizes and generates.

In goes a serving document; the engine, tokenizer and template are loaded as a pod would load them. Out comes a record whose
golden cases hold only greedy steps that no correct engine can tip over: each chosen token leads its runner-up by at least
``MARGIN_NATS_MIN``, and preferably by so much that another device or build must agree too. Near-ties are refused, never rounded
away, and the same files give the same bytes.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from pratique_contract.golden import (
    GOLDEN_DISTINCT_IDS_MIN,
    GOLDEN_STEPS_MIN,
    LOGPROB_TOLERANCE,
    MARGIN_IN_TOLERANCES,
    MARGIN_NATS_MIN,
    GoldenCase,
    GoldenOutput,
    GoldenRecord,
    RefusedFixture,
    RenderFixture,
    Usage,
    find_gaps,
)
from pratique_contract.manifest import ReleaseManifest
from pratique_server.artifacts.errors import RecordingError
from pratique_server.engine.protocol import FinishReason, RequestTooLargeError
from pratique_server.errors import TemplateError
from pratique_server.release.greedy import GreedyRun
from pratique_server.release.prompts import CANDIDATES, FIXTURES, LONG_CANDIDATES, TOOLS, Messages
from pratique_server.text.protocols import ConversationRenderer, RenderedText, TokenDecoder

CASES_WANTED: Final = 3
CASE_TOKENS_MIN: Final = 8
CASE_TOKENS_MAX: Final = 16
# An answer that stops by itself may be shorter: the stop token is one of the choices that are proved.
STOPPED_CASE_TOKENS_MIN: Final = 2
# Kept decimals of a log-probability: finer than any tolerance, coarser than what another thread count moves.
LOGPROB_DECIMALS: Final = 4

logger = logging.getLogger(__name__)


Progress = Callable[[str], None]


def _ignore(_: str) -> None:
    """Progress that nobody watches."""


class Generate(Protocol):
    """Runs one greedy request; ``name`` says which, for its id. Raises what ``run_greedy`` raises."""

    async def __call__(self, prompt_ids: Sequence[int], max_tokens: int, name: str) -> GreedyRun: ...


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A prompt whose first greedy ids are all clear; ``portable`` when they are so on every device."""

    name: str
    messages: Messages
    rendered: RenderedText
    ids: tuple[int, ...]
    finish: FinishReason
    portable: bool


class Recorder:
    """Records one loaded release. ``generate`` runs one greedy request on its engine: straight away, or when nobody else wants it."""

    def __init__(
        self,
        *,
        generate: Generate,
        manifest: ReleaseManifest,
        renderer: ConversationRenderer,
        decoder: TokenDecoder,
        prompt_tokens_max: int | None = None,
        output_tokens_max: int | None = None,
        progress: Progress = _ignore,
    ) -> None:
        self._generate = generate
        self._manifest = manifest
        self._renderer = renderer
        self._decoder = decoder
        # A golden case must be a request that the server would take.
        self._prompt_tokens_max = prompt_tokens_max
        special, flags = manifest.special_tokens, manifest.serving_flags.flags
        self._context = min(special.context_limit, flags.get("maxModelLen") or special.context_limit)
        self._tokens_max = min(CASE_TOKENS_MAX, output_tokens_max or CASE_TOKENS_MAX)
        self._tokens_min = min(CASE_TOKENS_MIN, self._tokens_max)
        self._progress = progress

    async def record(self) -> GoldenRecord:
        """Render the fixtures and search the candidates. Raises ``RecordingError`` when too little of it holds."""
        fixtures, refused = await self.render_fixtures()
        golden = GoldenRecord(fixtures=fixtures, refused=refused, cases=await self._record_cases())
        gaps = find_gaps(golden)
        if gaps:
            raise RecordingError(
                f"This model cannot be told from a near miss by exact ids: of its record, {'; '.join(gaps)}"
            )
        return golden

    async def render_fixtures(self) -> tuple[tuple[RenderFixture, ...], tuple[RefusedFixture, ...]]:
        """Every fixture: as the template renders it, or among those it refuses."""
        fixtures, refused = [], []
        for name, messages, with_tools in FIXTURES:
            tools = TOOLS if with_tools else None
            try:
                rendered = await self._render(messages, tools)
            except TemplateError as error:
                refused.append(RefusedFixture(name=name, messages=messages, tools=tools, message=error.message))
                continue
            fixtures.append(
                RenderFixture(name=name, messages=messages, tools=tools, text=rendered.text, ids=tuple(rendered.ids))
            )
        if not fixtures:
            raise RecordingError(
                f"The chat template refuses every fixture: it cannot render a plain user message ({refused[0].message})"
            )
        return tuple(fixtures), tuple(refused)

    async def add_output(self, case: GoldenCase) -> GoldenOutput:
        """This device's output of a case that was recorded elsewhere. Raises ``RecordingError`` when it proves nothing here."""
        rendered = await self._render(case.messages)
        if (rendered.text, tuple(rendered.ids)) != (case.text, case.prompt_ids):
            raise RecordingError(f"Case {case.name} is rendered otherwise here than it was recorded")
        first, second = [await self._generate(case.prompt_ids, case.max_tokens, f"{case.name}-{n}") for n in (1, 2)]
        _require_same(case.name, first.ids, second.ids)
        clear = second.clear_steps(MARGIN_NATS_MIN)
        if clear < len(second.ids):
            raise RecordingError(
                f"Case {case.name}: step {clear + 1} has a margin of {second.margins[clear]:.2f} nat here, and less than "
                f"{MARGIN_NATS_MIN} nat proves nothing"
            )
        return self._make_output(case.prompt_ids, second)

    async def _render(self, messages: Messages, tools: tuple[dict[str, Any], ...] | None = None) -> RenderedText:
        # In a thread: a template may take its whole time limit, and a pod that records goes on answering.
        return await asyncio.to_thread(self._renderer.render, messages, tools)

    async def _record_cases(self) -> tuple[GoldenCase, ...]:
        found: list[_Candidate] = []
        spare: list[_Candidate] = []
        refused: list[str] = []
        for number, (name, messages) in enumerate(CANDIDATES, start=1):
            self._progress(f"prompt {number} of {len(CANDIDATES)}, {len(found)} clear cases found")
            candidate = await self._try_candidate(name, messages, refused)
            if candidate is None:
                continue
            wanted = candidate.portable and not _is_one_too_many(candidate, found)
            (found if wanted else spare).append(candidate)
            if len(found) >= CASES_WANTED and _proves_enough(found):
                break
        chosen = _choose(found, sorted(spare, key=lambda candidate: not candidate.portable))
        if not chosen:
            raise RecordingError(
                f"None of {len(CANDIDATES)} candidate prompts gives {self._tokens_min} greedy tokens that each lead their "
                f"runner-up by {MARGIN_NATS_MIN} nat ({'; '.join(refused[:3])}; …): this model cannot be told from a "
                "near miss by exact ids"
            )
        long = await self._find_long()
        self._progress(f"recording {len(chosen) + len(long)} cases")
        return tuple([await self._record_case(candidate) for candidate in (*chosen, *long)])

    async def _find_long(self) -> list[_Candidate]:
        """The longest conversation with a clear answer, or none."""
        refused: list[str] = []
        for name, messages in LONG_CANDIDATES:
            self._progress(f"conversation {name}")
            candidate = await self._try_candidate(name, messages, refused)
            if candidate is not None:
                return [candidate]
        logger.info("No long conversation has a clear answer: %s", "; ".join(refused))
        return []

    async def _try_candidate(self, name: str, messages: Messages, refused: list[str]) -> _Candidate | None:
        """The candidate's longest clear beginning, or None with the cause appended to ``refused``."""
        try:
            rendered = await self._render(messages)
        except TemplateError:
            refused.append(f"{name}: refused by the template")
            return None
        if self._prompt_tokens_max is not None and len(rendered.ids) > self._prompt_tokens_max:
            refused.append(f"{name}: longer than the prompt limit")
            return None
        if len(rendered.ids) + self._tokens_max > self._context:
            refused.append(f"{name}: longer than the context")
            return None
        try:
            trial = await self._generate(rendered.ids, self._tokens_max, name)
        except RequestTooLargeError:
            refused.append(f"{name}: longer than the context")
            return None
        excused = MARGIN_IN_TOLERANCES * LOGPROB_TOLERANCE[self._manifest.quantization.dtype]
        portable_min = max(math.nextafter(excused, math.inf), MARGIN_NATS_MIN)
        for margin_min in (portable_min, MARGIN_NATS_MIN):
            length = self._usable_length(trial, margin_min)
            if length:
                return _Candidate(
                    name=name,
                    messages=messages,
                    rendered=rendered,
                    ids=trial.ids[:length],
                    finish=trial.finish if length == len(trial.ids) else FinishReason.LENGTH,
                    portable=margin_min == portable_min,
                )
        refused.append(f"{name}: {_cause(trial)}")
        return None

    async def _record_case(self, candidate: _Candidate) -> GoldenCase:
        """Run the chosen request again, exactly as the gate will send it, and record that run."""
        final = await self._generate(candidate.rendered.ids, len(candidate.ids), f"{candidate.name}-again")
        _require_same(candidate.name, candidate.ids, final.ids)
        return GoldenCase(
            name=candidate.name,
            messages=candidate.messages,
            max_tokens=len(candidate.ids),
            text=candidate.rendered.text,
            prompt_ids=tuple(candidate.rendered.ids),
            outputs=(self._make_output(candidate.rendered.ids, final),),
        )

    def _usable_length(self, trial: GreedyRun, margin_min: float) -> int:
        """The longest beginning that is clear and shown as it is; 0 when that is too short."""
        clear = trial.clear_steps(margin_min)
        stops_clearly = clear == len(trial.ids) and trial.finish is FinishReason.STOP
        if stops_clearly and clear >= STOPPED_CASE_TOKENS_MIN and self._is_showable(trial.ids[:-1]):
            return clear
        cut = clear - 1 if stops_clearly else clear
        lengths = range(cut, self._tokens_min - 1, -1)
        return next((length for length in lengths if self._is_showable(trial.ids[:length])), 0)

    def _is_showable(self, ids: Sequence[int]) -> bool:
        """Whether a client sees exactly these ids: no half character at the end, no token that is not shown."""
        text = self._decoder.decode(ids)
        return bool(text) and "\ufffd" not in text and text == self._decoder.decode(ids, skip_special_tokens=False)

    def _make_output(self, prompt_ids: Sequence[int], final: GreedyRun) -> GoldenOutput:
        stopped = final.finish is FinishReason.STOP
        finish_reason: Literal["stop", "length"] = "stop" if stopped else "length"
        manifest = self._manifest
        return GoldenOutput.model_validate(
            {
                "dtype": manifest.quantization.dtype,
                "device_class": manifest.runtime.device_class,
                "engine_build": manifest.engine.build,
                "ids": final.ids,
                "text": self._decoder.decode(final.ids[:-1] if stopped else final.ids),
                "finish_reason": finish_reason,
                "logprobs": tuple(round(value, LOGPROB_DECIMALS) for value in final.logprobs),
                "margins": tuple(round(value, LOGPROB_DECIMALS) for value in final.margins),
                "usage": Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(final.ids)),
            }
        )


def _require_same(name: str, first: Sequence[int], second: Sequence[int]) -> None:
    if tuple(first) != tuple(second):
        raise RecordingError(
            f"Prompt {name!r} gave {list(first)} and then {list(second)}: the engine is not deterministic here, and nothing it "
            "says can be a golden output"
        )


def _proves_enough(candidates: Sequence[_Candidate]) -> bool:
    tokens = [token for candidate in candidates for token in candidate.ids]
    return len(tokens) >= GOLDEN_STEPS_MIN and len(set(tokens)) >= GOLDEN_DISTINCT_IDS_MIN


def _choose(found: list[_Candidate], spare: list[_Candidate]) -> list[_Candidate]:
    """The wanted number of cases; of very short answers, as many as prove something."""
    chosen: list[_Candidate] = []
    for candidate in (*found, *spare):
        if len(chosen) >= CASES_WANTED and _proves_enough(chosen):
            break
        chosen.append(candidate)
    return chosen


def _is_one_too_many(candidate: _Candidate, found: Sequence[_Candidate]) -> bool:
    """A record of one kind of ending proves only that kind, and a second very short answer proves little."""
    alike = sum(other.finish is candidate.finish for other in found)
    short = sum(len(other.ids) < CASE_TOKENS_MIN for other in (*found, candidate))
    return alike >= CASES_WANTED - 1 or (short > 1 and len(candidate.ids) < CASE_TOKENS_MIN)


def _cause(trial: GreedyRun) -> str:
    clear = trial.clear_steps(MARGIN_NATS_MIN)
    if clear < len(trial.ids):
        return f"step {clear + 1} has a margin of {trial.margins[clear]:.2f} nat"
    return "its answer is too short or not plain text"
