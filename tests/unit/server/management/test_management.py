"""Probes, verdict, metrics: answered from memory, each depending on exactly what it should."""

import asyncio
import json
import socket
import sys
import time
from typing import Any

import httpx
import pytest

from pratique_contract import Reason, Verdict, VerdictResult, metric_names
from pratique_server import probe, serve
from pratique_server.management import app
from pratique_server.management.app import ManagementApp
from pratique_server.management.status import LOOP_SILENCE_SECONDS_MAX, EngineReport, PodStatus
from pratique_server.management.thread import ManagementThread, bind
from pratique_server.metrics import Metrics, PodCollector
from tests.unit.server.scripted import FINGERPRINT, FixedVerdict, idle_stats, make_spec

PENDING = Verdict(result=VerdictResult.PENDING, reason=Reason.LOADING, message="The model is being loaded")
FAILED = Verdict(result=VerdictResult.FAIL, reason=Reason.TEMPLATE_MISMATCH, message="chatTemplate differs")


class Bench:
    """A management port with a clock and a verdict that tests turn."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.verdicts = FixedVerdict()
        self.status = PodStatus(self.verdicts, heartbeat_seconds_max=30, clock=lambda: self.now)
        self.status.engine_up = True
        self.status.report = EngineReport(stats=idle_stats(), read_at=self.now)
        self.drained = 0
        self.metrics = Metrics()
        self.app = ManagementApp(self.status, self.metrics, drain=self._drain)

    def _drain(self) -> None:
        self.drained += 1

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        answer = self.app.answer(method, path)
        return answer.status, answer.body.decode().strip()


def test_a_verified_pod_is_ready() -> None:
    bench = Bench()
    assert bench.get("/readyz") == (200, "Verified: proved")
    assert bench.get("/startupz") == (200, "Verified: proved")
    assert bench.get("/livez")[0] == 200


@pytest.mark.parametrize("verdict", [PENDING, FAILED])
@pytest.mark.req("R125")
def test_without_a_passed_verdict_a_pod_is_neither_started_nor_ready_but_alive(verdict: Verdict) -> None:
    bench = Bench()
    bench.verdicts.verdict = verdict
    line = f"{verdict.reason}: {verdict.message}"
    assert bench.get("/startupz") == (503, line)
    assert bench.get("/readyz") == (503, line)
    assert bench.get("/livez")[0] == 200


def test_a_lost_or_silent_engine_makes_a_pod_unready_not_dead_nor_unstarted() -> None:
    """vllm#36960, kserve#6259: healthy with a dead engine."""
    for lose in ("down", "silent", "old_report"):
        bench = Bench()
        if lose == "down":
            bench.status.engine_up = False
        elif lose == "silent":
            bench.status.report = EngineReport(stats=idle_stats(heartbeat_age_seconds=31.0), read_at=bench.now)
        else:
            bench.now += 31
        code, line = bench.get("/readyz")
        assert (code, line.split(":")[0]) == (503, "EngineUnreachable"), lose
        assert bench.get("/livez")[0] == 200
        assert bench.get("/startupz")[0] == 200


@pytest.mark.req("R125")
def test_saturation_is_not_unreadiness() -> None:
    """Busy is not wrong: a full queue never fails a probe."""
    bench = Bench()
    full = idle_stats(running=16, waiting=128, blocks_free=0, blocks_used=10)
    bench.status.report = EngineReport(stats=full, read_at=bench.now)
    assert bench.get("/readyz")[0] == 200


def test_a_drain_makes_a_pod_unready_at_once_and_only_once() -> None:
    bench = Bench()
    assert bench.get("/drain", "POST") == (200, '{"draining": true}')
    assert bench.drained == 1
    assert bench.status.begin_drain()
    since = bench.status.draining_since
    bench.now += 5
    assert not bench.status.begin_drain()
    assert bench.status.draining_since == since
    assert bench.get("/readyz") == (503, "Draining: The pod is finishing its live requests before it stops")
    assert bench.get("/livez")[0] == 200


def test_only_a_stuck_event_loop_fails_liveness() -> None:
    bench = Bench()
    bench.verdicts.verdict = FAILED
    bench.status.engine_up = False
    bench.now += 10_000
    assert bench.get("/livez")[0] == 200, "before the first beat nothing is known"
    bench.status.beat()
    bench.now += LOOP_SILENCE_SECONDS_MAX + 1
    assert bench.get("/livez")[0] == 503
    bench.status.beat()
    assert bench.get("/livez")[0] == 200


def test_readiness_takes_microseconds() -> None:
    bench = Bench()
    started = time.perf_counter()
    for _ in range(1000):
        bench.app.answer("GET", "/readyz")
    assert (time.perf_counter() - started) / 1000 < 0.001


def test_unknown_paths_and_wrong_methods() -> None:
    bench = Bench()
    assert bench.get("/nowhere")[0] == 404
    assert bench.get("/drain")[0] == 405
    assert bench.get("/readyz", "POST")[0] == 405
    assert bench.get("/readyz", "HEAD")[0] == 200
    assert bench.drained == 0


def test_the_verdict_is_served_whole_and_the_manifest_only_once_loaded() -> None:
    bench = Bench()
    bench.verdicts.verdict = FAILED
    code, body = bench.get("/verdict")
    assert code == 200
    assert Verdict.from_json_value(json.loads(body)) == FAILED
    assert bench.get("/manifest")[0] == 503


def test_stats_show_the_engine_and_readiness() -> None:
    value: dict[str, Any] = json.loads(Bench().get("/stats")[1])
    assert value["ready"] is True
    assert value["engine"]["blocks_total"] == 10


def test_metrics_hold_verdict_release_engine_and_the_names_other_tools_know() -> None:
    bench = Bench()
    stats = idle_stats(running=3, waiting=2, blocks_free=4, blocks_used=5, blocks_cached=1)
    collector = PodCollector(verdict=bench.verdicts.current, stats=lambda: stats, model="harbour")
    bench.metrics.registry.register(collector)
    lines = bench.get("/metrics")[1].splitlines()
    assert 'pratique_verdict{reason="Verified"} 1.0' in lines
    assert f'pratique_release_info{{fingerprint="{FINGERPRINT}",model="harbour"}} 1.0' in lines
    assert "pratique_requests_running 3.0" in lines
    assert 'vllm:num_requests_running{model_name="harbour"} 3.0' in lines
    assert 'vllm:kv_cache_usage_perc{model_name="harbour"} 0.5' in lines
    assert 'pratique_kv_blocks{state="cached"} 1.0' in lines
    bench.verdicts.verdict = FAILED
    assert 'pratique_verdict{reason="TemplateMismatch"} 0.0' in bench.get("/metrics")[1].splitlines()


def test_every_metric_name_of_the_contract_is_exported() -> None:
    bench = Bench()
    bench.metrics.registry.register(
        PodCollector(verdict=bench.verdicts.current, stats=lambda: idle_stats(), model="harbour")
    )
    text = bench.metrics.exposition().decode()
    names = {
        value
        for name, value in vars(metric_names).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("OPERATOR")
    }
    missing = {name for name in names if f"# TYPE {name.removesuffix('_total')}" not in text}
    assert missing == {metric_names.STEP_SECONDS}, "measured inside the engine, whose own issue exports it"


@pytest.mark.req("R129")
def test_answers_over_a_real_socket_from_its_own_thread_and_the_probe_prints_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = Bench()
    thread = ManagementThread(bench.app, host="127.0.0.1", port=0)
    thread.start()
    try:
        response = httpx.get(f"http://127.0.0.1:{thread.port}/readyz")
        assert response.status_code == 200
        assert response.headers["x-pratique-fingerprint"] == FINGERPRINT
        assert probe.main(["startupz", "--port", str(thread.port)]) == 0
        bench.verdicts.verdict = FAILED
        assert probe.main(["startupz", "--port", str(thread.port)]) == 1
    finally:
        thread.stop()
    assert capsys.readouterr().out.splitlines() == ["Verified: proved", "TemplateMismatch: chatTemplate differs"]
    assert probe.main(["readyz", "--port", str(thread.port)]) == 1
    assert capsys.readouterr().out.startswith("Unreachable: ")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"Address already in use: 127\.0\.0\.1 port {port}$"):
            bind("127.0.0.1", port)


def test_serving_lets_the_probes_thread_have_the_interpreter_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Python's default each answer may wait several times 5 ms for a busy event loop (docs/decisions/0016)."""
    for prepare in ("configure_logs", "make_offline", "keep_torch_out"):
        monkeypatch.setattr(serve, prepare, lambda: None)
    before, seen = sys.getswitchinterval(), []

    def fail(_spec: object) -> None:
        seen.append(sys.getswitchinterval())
        raise OSError("taken")

    monkeypatch.setattr(serve, "ServingProcess", fail)
    try:
        assert serve.run(make_spec()) == 1
    finally:
        sys.setswitchinterval(before)
    assert seen == pytest.approx([serve.SWITCH_SECONDS])
    assert before > serve.SWITCH_SECONDS


def test_the_probe_needs_only_the_standard_library() -> None:
    import subprocess
    import sys

    code = "import sys, pratique_server.probe; print([m for m in ('pydantic', 'torch', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def _request(served: ManagementApp, method: str, path: str, *, client: str, receive: Any) -> int:
    """The status of one request from an address, its body as ``receive`` gives it."""
    status: int = (await _response(served, method, path, client=client, receive=receive))[0]["status"]
    return status


async def _response(served: ManagementApp, method: str, path: str, *, client: str, receive: Any) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "client": (client, 1)}
    await served(scope, receive, send)
    return sent


async def _empty() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("verdict", [PENDING, FAILED, None])
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz"])
async def test_probes_say_at_once_what_they_say_through_the_application(path: str, verdict: Verdict | None) -> None:
    bench = Bench()
    bench.verdicts.verdict = verdict or bench.verdicts.verdict
    head, body = await _response(bench.app, "GET", path, client="10.0.0.7", receive=_empty)
    answer = bench.app.at_once("GET", path)
    assert answer is not None
    assert (answer.status, answer.headers, answer.body) == (head["status"], head["headers"], body["body"])


@pytest.mark.parametrize(
    ("method", "path"), [("HEAD", "/readyz"), ("POST", "/readyz"), ("GET", "/metrics"), ("GET", "/none")]
)
def test_only_probes_are_answered_at_once(method: str, path: str) -> None:
    assert Bench().app.at_once(method, path) is None


async def test_a_fault_of_the_port_itself_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.status, "to_json_value", lambda: 1 / 0)
    assert await _request(bench.app, "GET", "/stats", client="10.0.0.7", receive=_empty) == 500
    assert "ZeroDivisionError" in caplog.text


async def test_only_whoever_is_in_the_pod_can_drain_it() -> None:
    """The port is open to the cluster, and a drain cannot be taken back."""
    bench = Bench()
    for address, status in (
        ("10.1.2.3", 403),
        ("fd00::7", 403),
        ("not an address", 403),
        ("127.0.0.1", 200),
        ("::1", 200),
    ):
        assert await _request(bench.app, "POST", "/drain", client=address, receive=_empty) == status
    assert bench.drained == 2


async def test_a_body_that_does_not_come_holds_neither_the_next_one_nor_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS_MAX", 0.1)
    bench = Bench()
    first = asyncio.create_task(_request(bench.app, "POST", "/record", client="10.1.2.3", receive=_never))
    await asyncio.sleep(0)
    begun = time.monotonic()
    assert await _request(bench.app, "POST", "/record", client="10.1.2.4", receive=_never) == 503
    assert time.monotonic() - begun < 0.05
    assert await first == 408
    assert await _request(bench.app, "POST", "/record", client="10.1.2.4", receive=_never) == 408
