"""The core's loop between scripted sockets and a scripted engine: order, versions, epochs, back-pressure."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pratique_server.engine.core import REQUESTS_PER_STEP_MAX, CoreLoop
from pratique_server.engine.messages import (
    Cancel,
    OutputMessage,
    Report,
    Shutdown,
    Submit,
    encoder,
    error_kind,
    make_error,
    output_decoder,
)
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    EngineError,
    EngineIdentity,
    EngineOverloadedError,
    ExecutionRequest,
    FinishReason,
    LoadError,
    StepEvent,
)
from pratique_server.engine.step_engine import StepFailure, StepOutput, StepStats
from tests.unit.server.engine.makers import make_request


class ScriptedEngine:
    """Gives each live request one token a step until its ``max_new_tokens``; refuses ids that begin with ``full``."""

    def __init__(self) -> None:
        self.live: dict[str, ExecutionRequest] = {}
        self.given: dict[str, int] = {}
        self.cancelled: list[str] = []
        self.late: set[str] = set()

    def identity(self) -> EngineIdentity:
        return EngineIdentity(
            engine_name="Scripted", engine_version="0", engine_build="sha256:0", libraries={}, architecture="None",
            model_files=[], dtype="FP32", quantization_method="None", quantization_config={}, quantized_tensors=[],
            kept_tensors=[], vocab_size=1, context_limit=1, flags={}, device_class="cpu", runtime_facts={},
        )  # fmt: skip

    def add_request(self, request: ExecutionRequest) -> None:
        if request.request_id.startswith("full"):
            raise EngineOverloadedError("The queue is full.")
        assert request.request_id not in self.live
        self.live[request.request_id] = request
        self.given[request.request_id] = 0

    def cancel(self, request_id: str) -> bool:
        self.cancelled.append(request_id)
        return self.live.pop(request_id, None) is not None

    def has_work(self) -> bool:
        return bool(self.live)

    def step(self) -> StepOutput:
        failures = [StepFailure(request_id=name, error=DeadlineExceededError("late")) for name in self.late]
        for name in self.late:
            del self.live[name]
        self.late = set()
        events = []
        for name, request in list(self.live.items()):
            self.given[name] += 1
            done = self.given[name] == request.max_new_tokens
            if done:
                del self.live[name]
            finish = FinishReason.LENGTH if done else None
            events.append(StepEvent(request_id=name, token_ids=[self.given[name]], finish=finish))
        return StepOutput(events=events, failures=failures)

    def stats(self) -> StepStats:
        return StepStats(running=len(self.live))

    def check_integrity(self) -> None: ...


class ScriptedSockets:
    """Feeds frames turn by turn; a turn begins when the core has nothing to do, or after each report."""

    def __init__(self, turns: list[list[msgspec.Struct]]) -> None:
        self.turns = deque(turns)
        self.control: deque[bytes] = deque()
        self.requests: deque[bytes] = deque()
        self.sent: list[OutputMessage] = []
        self.refuse_sends = 0
        self.while_blocked: Callable[[], None] = lambda: None

    def next_turn(self) -> None:
        messages = self.turns.popleft() if self.turns else [Shutdown(epoch=1)]
        for message in messages:
            (self.requests if isinstance(message, Submit) else self.control).append(encoder.encode(message))

    def wait_for_input(self, *, timeout: float) -> None:
        self.next_turn()

    def receive_control(self) -> bytes | None:
        return self.control.popleft() if self.control else None

    def receive_request(self) -> bytes | None:
        return self.requests.popleft() if self.requests else None

    def send_output(self, frame: bytes, *, timeout: float) -> bool:
        if self.refuse_sends:
            self.refuse_sends -= 1
            self.while_blocked()
            return False
        self.sent.append(output_decoder.decode(frame))
        return True


def submit(name: str, version: int, epoch: int = 1, **changes: Any) -> Submit:
    return Submit(epoch=epoch, version=version, request=make_request(name, **changes))


def cancel(name: str, version: int, epoch: int = 1) -> Cancel:
    return Cancel(epoch=epoch, request_id=name, version=version)


def run(*turns: list[msgspec.Struct]) -> tuple[ScriptedEngine, ScriptedSockets, list[Report]]:
    engine, ends = ScriptedEngine(), ScriptedSockets(list(turns))
    CoreLoop(engine, ends, epoch=1).run()  # type: ignore[arg-type]
    return engine, ends, [message for message in ends.sent if isinstance(message, Report)]


def tokens(reports: list[Report]) -> list[tuple[int, list[int]]]:
    return [(item.version, item.event.token_ids) for report in reports for item in report.events]


def test_a_request_comes_back_under_its_version() -> None:
    _, _, reports = run([submit("a", 7, max_new_tokens=2)])
    assert tokens(reports) == [(7, [1]), (7, [2])]


@pytest.mark.req("R101")
def test_a_cancellation_that_overtakes_its_request_still_stops_it() -> None:
    """vllm#10806: an abort that the engine never acted on. Control is read first, so this order is the usual one."""
    engine, _, reports = run([submit("a", 1), cancel("a", 1), submit("b", 2, max_new_tokens=1)])
    assert tokens(reports) == [(2, [1])]
    assert engine.live == {}


def test_a_late_cancellation_does_not_hit_the_next_request_with_the_same_id() -> None:
    _, _, reports = run(
        [submit("a", 1, max_new_tokens=1)],
        [submit("a", 2, max_new_tokens=1), cancel("a", 1)],
    )
    assert tokens(reports) == [(1, [1]), (2, [1])]
    assert reports[-1].stale_messages == 1


def test_a_reused_id_replaces_the_request_whose_cancellation_is_still_on_its_way() -> None:
    engine, ends = (
        ScriptedEngine(),
        ScriptedSockets([[submit("a", 1, max_new_tokens=50), submit("a", 2, max_new_tokens=1)]]),
    )
    CoreLoop(engine, ends, epoch=1).run()  # type: ignore[arg-type]
    reports = [message for message in ends.sent if isinstance(message, Report)]
    assert engine.cancelled == ["a"]
    assert [version for version, _ in tokens(reports)] == [2]


@pytest.mark.req("R105")
def test_messages_of_another_epoch_are_dropped_and_counted() -> None:
    engine, _, reports = run([submit("old", 1, epoch=0), cancel("x", 1, epoch=0), Shutdown(epoch=0)], [])
    assert tokens(reports) == []
    assert engine.given == {}
    assert reports[-1].stale_messages == 3


def test_refusals_travel_with_their_kind_and_sentence() -> None:
    _, _, reports = run([submit("full", 3), submit("a", 4, max_new_tokens=1)])
    (failure,) = reports[0].failures
    assert (failure.version, failure.kind, failure.message) == (3, "EngineOverloadedError", "The queue is full.")
    assert tokens(reports) == [(4, [1])]


def test_a_failure_in_the_engine_ends_that_request_only() -> None:
    engine, ends = (
        ScriptedEngine(),
        ScriptedSockets([[submit("a", 1, max_new_tokens=3), submit("b", 2, max_new_tokens=1)]]),
    )
    engine.late = {"a"}
    CoreLoop(engine, ends, epoch=1).run()  # type: ignore[arg-type]
    reports = [message for message in ends.sent if isinstance(message, Report)]
    assert [(f.version, f.kind) for report in reports for f in report.failures] == [(1, "DeadlineExceededError")]
    assert tokens(reports) == [(2, [1])]


def test_a_flood_of_requests_does_not_hold_up_the_running_ones() -> None:
    _, _, reports = run([submit(f"r{n}", n, max_new_tokens=2) for n in range(REQUESTS_PER_STEP_MAX + 5)])
    assert len(reports[0].events) == REQUESTS_PER_STEP_MAX


@pytest.mark.req("R101")
def test_cancellations_are_heard_while_nobody_reads_the_outputs() -> None:
    engine, ends = ScriptedEngine(), ScriptedSockets([[submit("a", 1, max_new_tokens=50)]])
    loop = CoreLoop(engine, ends, epoch=1)  # type: ignore[arg-type]

    def cancel_while_blocked() -> None:
        ends.control.append(encoder.encode(cancel("a", 1)))

    original = ends.wait_for_input

    def block_next_sends(*, timeout: float) -> None:
        original(timeout=timeout)
        ends.refuse_sends, ends.while_blocked = 3, cancel_while_blocked

    ends.wait_for_input = block_next_sends  # type: ignore[method-assign]
    loop.run()
    assert engine.cancelled == ["a"]
    assert engine.given["a"] == 1


def test_an_idle_core_reports_that_it_lives() -> None:
    _, _, reports = run([], [], [])
    assert len(reports) >= 3


@pytest.mark.parametrize("error", [EngineOverloadedError("x"), DeadlineExceededError("x"), EngineError("x")])
def test_errors_of_the_seam_keep_their_class_over_the_sockets(error: EngineError) -> None:
    assert type(make_error(error_kind(error), "x")) is type(error)


def test_errors_of_the_inside_arrive_as_the_base_class() -> None:
    assert type(make_error(error_kind(LoadError("x")), "x")) is EngineError
