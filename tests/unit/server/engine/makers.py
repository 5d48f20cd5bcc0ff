"""Builders for engine tests: requests, sequences, and a torch engine over the tiny model that poisons what it frees."""

from pathlib import Path
from typing import Any

from pratique_contract import ServingSpec
from pratique_contract.serving import EngineSpec, KvCacheSpec, LimitsSpec, ModelSource, QuantizationSpec
from pratique_server.engine.build import build_engine
from pratique_server.engine.protocol import EngineError, ExecutionRequest, SamplingRules, StepEvent
from pratique_server.engine.sequence import Sequence
from pratique_server.engine.step_engine import StepEngine

GREEDY = SamplingRules(temperature=0.0)


def make_request(request_id: str = "r", **changes: Any) -> ExecutionRequest:
    values: dict[str, Any] = {
        "prompt_ids": [3, 5, 7, 11],
        "max_new_tokens": 8,
        "stop_token_ids": [],
        "sampling": GREEDY,
    }
    return ExecutionRequest(request_id=request_id, **(values | changes))


def make_sequence(request_id: str = "r", *, arrival: int = 0, prompt: int = 4, **changes: Any) -> Sequence:
    request = make_request(request_id, prompt_ids=list(range(1, prompt + 1)), **changes)
    return Sequence(request=request, arrival=arrival, enqueued_at=0.0)


def make_spec(
    model: Path,
    *,
    name: str = "Torch",
    blocks: int | None = None,
    block_size: int = 16,
    dtype: str | None = None,
    limits: LimitsSpec | None = None,
    source: ModelSource | None = None,
    quantization: QuantizationSpec | None = None,
    **engine: Any,
) -> ServingSpec:
    numbers: dict[str, Any] = {"dtype": dtype}
    flags: dict[str, Any] = {"name": name, "kv_cache": KvCacheSpec(blocks=blocks, block_size=block_size), **engine}
    return ServingSpec(
        served_model_name="tiny",
        model=source or ModelSource(path=str(model), uri="file:///tiny"),
        quantization=quantization or QuantizationSpec(**numbers),
        engine=EngineSpec(**flags),
        limits=limits or LimitsSpec(),
    )


def make_engine(model: Path, **spec: Any) -> StepEngine:
    return build_engine(make_spec(model, **spec), poison_freed=True)


class Outcome:
    """What one request got from the engine, in order."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []
        self.error: EngineError | None = None

    @property
    def ids(self) -> list[int]:
        return [token_id for event in self.events for token_id in event.token_ids]

    @property
    def finish(self) -> str | None:
        assert [event.finish is not None for event in self.events[:-1]].count(True) == 0
        return self.events[-1].finish if self.events else None


def run(engine: StepEngine, *requests: ExecutionRequest) -> dict[str, Outcome]:
    """Add the requests, step until nothing is live with the bookkeeping checked at each step, return what each got."""
    for request in requests:
        engine.add_request(request)
    outcomes = {request.request_id: Outcome() for request in requests}
    for _ in range(10_000):
        if not engine.has_work():
            return outcomes
        step(engine, outcomes)
    raise AssertionError("the engine did not finish its work")


def step(engine: StepEngine, outcomes: dict[str, Outcome]) -> None:
    output = engine.step()
    engine.check_integrity()
    for event in output.events:
        outcomes[event.request_id].events.append(event)
    for failure in output.failures:
        outcomes[failure.request_id].error = failure.error
