"""Run one greedy request against an engine, without text and without HTTP, and measure how clear each choice was."""

from collections.abc import Sequence
from dataclasses import dataclass

from pratique_server.artifacts.errors import RecordingError
from pratique_server.engine.protocol import Engine, ExecutionRequest, FinishReason, SamplingRules, TokenLogprobs


@dataclass(frozen=True, kw_only=True)
class GreedyRun:
    """Ids with the log-probability and margin (nat) of each, and how the run ended."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    finish: FinishReason

    def clear_steps(self, margin_min: float) -> int:
        """How many steps from the start lead their runner-up by at least ``margin_min``."""
        return next((i for i, margin in enumerate(self.margins) if margin < margin_min), len(self.margins))


async def run_greedy(
    engine: Engine, *, prompt_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], request_id: str
) -> GreedyRun:
    """Raises ``RecordingError`` when the engine's answer cannot be measured, and what the engine itself raises."""
    request = ExecutionRequest(
        request_id=request_id,
        prompt_ids=list(prompt_ids),
        max_new_tokens=max_tokens,
        stop_token_ids=list(stop_ids),
        sampling=SamplingRules(temperature=0.0, logprobs=2),
        # One salt per request: nothing may depend on what an earlier prompt left in a cache.
        cache_salt=request_id,
        reserved=True,
    )
    ids: list[int] = []
    steps: list[TokenLogprobs] = []
    finish: FinishReason | None = None
    async for event in engine.start(request):
        ids += event.token_ids
        steps += event.logprobs or []
        finish = event.finish or finish
    if finish is None or len(steps) != len(ids) or not ids:
        raise RecordingError(
            f"The engine gave {len(ids)} ids, {len(steps)} log-probabilities and finish {finish} for a greedy request"
        )
    return GreedyRun(
        ids=tuple(ids),
        logprobs=tuple(step.chosen for step in steps),
        margins=tuple(_margin(token, step) for token, step in zip(ids, steps, strict=True)),
        finish=finish,
    )


def _margin(token: int, step: TokenLogprobs) -> float:
    """Lead of the chosen token over the best other one (nat); negative when the engine did not choose the best."""
    others = [value for other, value in step.top if other != token]
    if not others:
        raise RecordingError("The engine gave no runner-up's log-probability: margins cannot be measured")
    return step.chosen - max(others)
