"""A release whose model is a table: which steps each prompt gives, and how messages and ids become text."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pratique_server.engine.protocol import (
    ExecutionRequest,
    FinishReason,
    RequestTooLargeError,
    StepEvent,
    TokenLogprobs,
)
from pratique_server.errors import TemplateError
from pratique_server.release.prompts import CANDIDATES, LONG_CANDIDATES
from tests.support.gates import Rendered

STOP = 2
# Per step: the id, its log-probability, the best other one's.
Step = tuple[int, float, float]
Answer = Callable[[int], Sequence[Step]]


class ScriptedEngine:
    """``answer`` gives the steps for the n-th candidate; the run ends at a stop id or at the token limit."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[ExecutionRequest] = []

    async def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        self.requests.append(request)
        steps = self._answer(request.prompt_ids[0])
        if not steps:
            raise RequestTooLargeError("too large")
        steps = steps[: request.max_new_tokens]
        for index, (token, chosen, other) in enumerate(steps):
            finish = FinishReason.STOP if token in request.stop_token_ids else None
            if finish is None and index == len(steps) - 1:
                finish = FinishReason.LENGTH
            top = [(token, chosen), (999, other)]
            yield StepEvent(
                request_id=request.request_id,
                token_ids=[token],
                logprobs=[TokenLogprobs(chosen=chosen, top=top)],
                finish=finish,
            )


class NumberingRenderer:
    """Gives the n-th candidate the ids [n]; other conversations [0]. ``tools_shown`` makes tools change the text."""

    def __init__(self, *, tools_shown: bool = False, refuses: Sequence[str] = ()) -> None:
        self._tools_shown, self._refuses = tools_shown, refuses

    def render(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> Rendered:
        if any(message["role"] in self._refuses for message in messages):
            raise TemplateError("refused")
        asked = (*CANDIDATES, *LONG_CANDIDATES)
        number = next((n for n, (_, candidate) in enumerate(asked) if candidate == messages), 0)
        shown = "tools" if tools and self._tools_shown else ""
        return Rendered(text=f"{messages}{shown}", ids=[number])


class LetterDecoder:
    """Ids 10… are letters, 100 is half a character, 101 a special token that is not shown."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        special = {STOP: "", 101: ""} if skip_special_tokens else {STOP: "<end>", 101: "<special>"}
        return "".join(special.get(token, "\ufffd" if token == 100 else chr(87 + token)) for token in ids)


def clear_steps(count: int, *, last: int | None = None) -> list[Step]:
    steps: list[Step] = [(10 + index, -0.25, -2.0) for index in range(count)]
    return steps if last is None else [*steps, (last, -0.125, -3.0)]
