"""Make a release record: what an approved release renders, tokenizes and generates.

In goes a serving document; the engine, tokenizer and template are loaded as a pod would load them. Out comes a record whose
golden cases hold only greedy steps that no correct engine can tip over: each chosen token leads its runner-up by at least
``MARGIN_NATS_MIN``, and preferably by so much that another device or build must agree too. Near-ties are refused, never rounded
away, and the same files give the same bytes.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from pratique_contract.golden import (
    LOGPROB_TOLERANCE,
    MARGIN_IN_TOLERANCES,
    MARGIN_NATS_MIN,
    GoldenCase,
    GoldenOutput,
    GoldenRecord,
    RenderFixture,
    Usage,
)
from pratique_contract.manifest import SpecialTokensPart
from pratique_server.engine.protocol import Engine, EngineIdentity, FinishReason, RequestTooLargeError
from pratique_server.release.errors import RecordingError
from pratique_server.release.greedy import GreedyRun, run_greedy
from pratique_server.release.prompts import CANDIDATES, FIXTURES, TOOLS, Messages

CASES_WANTED: Final = 3
CASE_TOKENS_MIN: Final = 8
CASE_TOKENS_MAX: Final = 16
# An answer that stops by itself may be shorter: the stop token is one of the choices that are proved.
STOPPED_CASE_TOKENS_MIN: Final = 2
# Kept decimals of a log-probability: finer than any tolerance, coarser than what another thread count moves.
LOGPROB_DECIMALS: Final = 4

logger = logging.getLogger(__name__)


class RenderedText(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> Sequence[int]: ...


class ConversationRenderer(Protocol):
    """Messages to text and ids, as the server's own request path does it; raises ``TemplateError`` when refused."""

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> RenderedText: ...


class TokenDecoder(Protocol):
    """Ids to text; without the special tokens, as clients are shown it, or with them."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


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
    """Records against one loaded engine. ``refused_errors`` are what the renderer raises for messages its template refuses."""

    def __init__(
        self,
        *,
        engine: Engine,
        identity: EngineIdentity,
        special_tokens: SpecialTokensPart,
        renderer: ConversationRenderer,
        decoder: TokenDecoder,
        refused_errors: tuple[type[Exception], ...],
        prompt_tokens_max: int | None = None,
        output_tokens_max: int | None = None,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._special_tokens = special_tokens
        self._renderer = renderer
        self._decoder = decoder
        self._refused_errors = refused_errors
        # A golden case must be a request that the server would take.
        self._prompt_tokens_max = prompt_tokens_max
        self._tokens_max = min(CASE_TOKENS_MAX, output_tokens_max or CASE_TOKENS_MAX)
        self._tokens_min = min(CASE_TOKENS_MIN, self._tokens_max)
        self._requests = 0

    async def record(self) -> GoldenRecord:
        """Render the fixtures and search the candidates. Raises ``RecordingError`` when no case holds."""
        return GoldenRecord(fixtures=self.render_fixtures(), cases=await self._record_cases())

    def render_fixtures(self) -> tuple[RenderFixture, ...]:
        """Fixtures the template accepts; tools only when the template shows them."""
        fixtures = []
        for name, messages, with_tools in FIXTURES:
            rendered = self._render(messages, TOOLS if with_tools else None)
            if rendered is None or (with_tools and rendered.text == self._renderer.render(messages).text):
                logger.info("Left out fixture %s, which the chat template does not render", name)
                continue
            fixtures.append(
                RenderFixture(
                    name=name,
                    messages=messages,
                    tools=TOOLS if with_tools else None,
                    text=rendered.text,
                    ids=tuple(rendered.ids),
                )
            )
        if not fixtures:
            raise RecordingError("The chat template refuses every fixture: it cannot render a plain user message")
        return tuple(fixtures)

    def _render(self, messages: Messages, tools: tuple[dict[str, Any], ...] | None = None) -> RenderedText | None:
        try:
            return self._renderer.render(messages, tools)
        except self._refused_errors:
            return None

    async def _record_cases(self) -> tuple[GoldenCase, ...]:
        found: list[_Candidate] = []
        spare: list[_Candidate] = []
        refused: list[str] = []
        for name, messages in CANDIDATES:
            candidate = await self._try_candidate(name, messages, refused)
            if candidate is None:
                continue
            wanted = candidate.portable and not _is_one_too_many(candidate, found)
            (found if wanted else spare).append(candidate)
            if len(found) == CASES_WANTED:
                break
        chosen = (found + sorted(spare, key=lambda candidate: not candidate.portable))[:CASES_WANTED]
        if not chosen:
            raise RecordingError(
                f"None of {len(CANDIDATES)} candidate prompts gives {self._tokens_min} greedy tokens that each lead their "
                f"runner-up by {MARGIN_NATS_MIN} nat ({'; '.join(refused[:3])}; …): this model cannot be told from a "
                "near miss by exact ids"
            )
        return tuple([await self._record_case(candidate) for candidate in chosen])

    async def _try_candidate(self, name: str, messages: Messages, refused: list[str]) -> _Candidate | None:
        """The candidate's longest clear beginning, or None with the cause appended to ``refused``."""
        rendered = self._render(messages)
        if rendered is None:
            refused.append(f"{name}: refused by the template")
            return None
        if self._prompt_tokens_max is not None and len(rendered.ids) > self._prompt_tokens_max:
            refused.append(f"{name}: longer than the prompt limit")
            return None
        try:
            trial = await self._generate(rendered.ids, self._tokens_max)
        except RequestTooLargeError:
            refused.append(f"{name}: longer than the context")
            return None
        excused = MARGIN_IN_TOLERANCES * LOGPROB_TOLERANCE[self._identity.dtype]
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
        final = await self._generate(candidate.rendered.ids, len(candidate.ids))
        if final.ids != candidate.ids:
            raise RecordingError(
                f"Prompt {candidate.name!r} gave {list(candidate.ids)} and then {list(final.ids)}: the engine is not "
                "deterministic here, and nothing it says can be a golden output"
            )
        return self._make_case(candidate, final)

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

    def _make_case(self, candidate: _Candidate, final: GreedyRun) -> GoldenCase:
        stopped = final.finish is FinishReason.STOP
        finish_reason: Literal["stop", "length"] = "stop" if stopped else "length"
        output = GoldenOutput.model_validate(
            {
                "dtype": self._identity.dtype,
                "device_class": self._identity.device_class,
                "engine_build": self._identity.engine_build,
                "ids": final.ids,
                "text": self._decoder.decode(final.ids[:-1] if stopped else final.ids),
                "finish_reason": finish_reason,
                "logprobs": tuple(round(value, LOGPROB_DECIMALS) for value in final.logprobs),
                "margins": tuple(round(value, LOGPROB_DECIMALS) for value in final.margins),
                "usage": Usage(prompt_tokens=len(candidate.rendered.ids), completion_tokens=len(final.ids)),
            }
        )
        return GoldenCase(
            name=candidate.name,
            messages=candidate.messages,
            max_tokens=len(candidate.ids),
            text=candidate.rendered.text,
            prompt_ids=tuple(candidate.rendered.ids),
            outputs=(output,),
        )

    async def _generate(self, prompt_ids: Sequence[int], max_tokens: int) -> GreedyRun:
        self._requests += 1
        return await run_greedy(
            self._engine,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            stop_ids=self._special_tokens.stop_ids,
            request_id=f"record-{self._requests}",
        )


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
