"""The serving process over real sockets with a scripted engine: what each end of its life looks like from outside. The same with the
real engine is in ``tests/integration/server/test_api_real_engine.py`` and ``e2e/local/test_serve_program.py``."""

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_server import probe
from pratique_server.artifacts.files import LoadedFile
from pratique_server.config import EngineLimits
from pratique_server.engine.protocol import (
    EngineDeadError,
    EngineError,
    EngineIdentity,
)
from pratique_server.gate.record_file import FoundRecord
from pratique_server.life.loading import Loaded
from pratique_server.life.verification import Verification
from pratique_server.text import Tokenizer
from tests.unit.server.life.pods import BODY, LivingEngine, pod
from tests.unit.server.scripted import events_of, eventually


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_imported(tiny_model_dir: Path) -> None:
    """The first load of a tokenizer imports half a machine-learning stack; that is not what the tests' time limits are for."""
    Tokenizer.load(tiny_model_dir)


async def test_serves_after_the_gate_has_passed_through_the_pods_own_port(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        assert {request.reserved for request in it.engine.requests} == {True}
        response = await it.chat()
        assert response.status_code == 200
        manifest = json.loads((await it.get("manifest"))[1])
        assert response.headers["x-pratique-fingerprint"] == manifest["fingerprint"]


@pytest.mark.req("R125", "R127")
async def test_a_pod_whose_release_is_not_proved_stays_alive_and_refuses_traffic(tiny_model_dir: Path) -> None:
    release = {"policy": "Enforce", "fingerprint": "sha256:" + "0" * 64}
    async with pod(tiny_model_dir, release=release) as it:
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "GoldenMissing")
        line = f"GoldenMissing: {verdict['message']}"
        assert await it.get("startupz") == (503, line)
        assert await asyncio.to_thread(probe.ask, "127.0.0.1", it.process.management_port, "startupz") == (False, line)
        assert (await it.get("readyz"))[0] == 503
        assert (await it.get("livez"))[0] == 200
        response = await it.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
        assert response.headers["retry-after"] == "5"
        assert it.engine.requests == []


async def test_a_gate_that_ran_out_of_time_is_tried_again(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was busy for a minute must not cost the pod its life: that it is slow says nothing about the release."""
    verify, slow = Verification.verify, [True]
    seen: list[Verdict] = []

    async def slow_at_first(self: Verification, loaded: Loaded) -> Verdict:
        if slow.pop() if slow else False:
            return Verdict(result=VerdictResult.FAIL, reason=Reason.PROBE_TIMEOUT, message="no time")
        seen.append(self._holder.current())
        return await verify(self, loaded)

    monkeypatch.setattr(Verification, "verify", slow_at_first)
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        assert [(verdict.result, verdict.reason) for verdict in seen] == [(VerdictResult.FAIL, Reason.PROBE_TIMEOUT)]


async def test_a_gate_that_cannot_be_run_is_told_as_what_it_is(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> FoundRecord:
        raise RuntimeError("surprise")

    monkeypatch.setattr("pratique_server.life.verification.find_record", broken)
    async with pod(tiny_model_dir) as it:
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "GateFailed")
        assert "surprise" in verdict["message"]
        assert (await it.get("readyz"))[0] == 503
        assert (await it.chat()).status_code == 503


async def test_a_release_that_cannot_be_loaded_says_why_and_stays_up(tiny_model_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "template.jinja"
    broken.write_text("{% if %}")
    cases: list[tuple[dict[str, Any], list[Exception], str]] = [
        ({}, [EngineError("model.safetensors is cut short.")], "ModelMismatch"),
        ({}, [EngineDeadError("killed")], "EngineUnreachable"),
        ({"tokenizer": {"path": str(tmp_path / "none"), "uri": "file:///none"}}, [], "TokenizerMismatch"),
        ({"chat_template": "{% if %}"}, [], "TemplateMismatch"),
        # Both sides fail: the model is the first part.
        ({"chat_template": "{% if %}"}, [EngineError("There is no model.")], "ModelMismatch"),
    ]
    for spec, load_errors, reason in cases:
        async with pod(tiny_model_dir, load_errors=load_errors, **spec) as it:
            verdict = await it.verdict()
            assert (verdict["result"], verdict["reason"]) == ("Fail", reason)
            assert await it.get("startupz") == (503, f"{reason}: {verdict['message']}")
            assert (await it.get("livez"))[0] == 200
            assert not it.running.done()


@pytest.mark.req("R60", "R93")
async def test_a_dead_engine_is_replaced_and_verified_again(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, script=[*events_of("ab")[:1], asyncio.Event()]) as it:
        await it.until("readyz", 200)
        gate_requests = len(it.engine.requests)
        stream = asyncio.create_task(it.chat(stream=True))
        await eventually(lambda: len(it.engine.requests) > gate_requests)
        it.engine.load_errors = [EngineError("not yet")]
        it.engine.dead.set()
        body = (await stream).text
        assert '"code":"engine_unavailable"' in body
        assert body.endswith("data: [DONE]\n\n")
        await it.until("readyz", 200)
        assert len(it.engine.requests) > gate_requests + 1, "the gate must have run again"
        assert it.process.status.stats is not None


async def test_while_the_engine_is_away_requests_are_refused_not_hung(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, engine_limits=EngineLimits(poll_seconds=0.01, restart_backoff_seconds=0.5)) as it:
        await it.until("readyz", 200)
        it.engine.dead.set()
        await it.until("readyz", 503)
        assert (await it.get("readyz"))[1].startswith("EngineUnreachable")
        response = await it.chat()
        assert (response.status_code, response.headers["x-should-retry"]) == (503, "true")
        await it.until("readyz", 200)


async def test_an_engine_that_keeps_dying_ends_the_process(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, engine_limits=EngineLimits(poll_seconds=0.01, restarts_max=0)) as it:
        await it.until("readyz", 200)
        it.engine.dead.set()
        async with asyncio.timeout(20):
            assert await it.running == 1
        assert it.process.holder.current().reason == "EngineUnreachable"


async def test_a_silent_engine_is_not_ready_and_then_replaced(tiny_model_dir: Path) -> None:
    """vllm PR#46811: health said yes while the engine hung."""
    limits = EngineLimits(
        poll_seconds=0.01, heartbeat_seconds_max=5, silence_seconds_max=50, restart_backoff_seconds=0.01
    )
    async with pod(tiny_model_dir, engine_limits=limits) as it:
        await it.until("readyz", 200)
        it.engine.heartbeat_age = 20
        await it.until("readyz", 503)
        assert it.engine.epoch == 1
        assert (await it.get("livez"))[0] == 200
        it.engine.heartbeat_age = 100
        await eventually(lambda: it.engine.epoch == 2)
        it.engine.heartbeat_age = 0
        await it.until("readyz", 200)


async def test_a_drain_finishes_live_streams_and_refuses_new_requests(tiny_model_dir: Path) -> None:
    hold = asyncio.Event()
    async with pod(tiny_model_dir, script=[*events_of("ab")[:1], hold, *events_of("c")]) as it:
        await it.until("readyz", 200)
        stream = asyncio.create_task(it.chat(stream=True))
        await eventually(lambda: len(it.engine.live) == 1)
        it.process.stop()
        await it.until("readyz", 503)
        assert (await it.get("readyz"))[1].startswith("Draining")
        await eventually(lambda: it.process.status.refusing)
        refused = await it.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert (await it.get("livez"))[0] == 200
        hold.set()
        assert (await stream).text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(20):
            assert await it.running == 0
        assert it.engine.closed


async def test_new_requests_are_answered_until_the_endpoints_are_gone(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, drain={"pre_stop_seconds": 30, "deadline_seconds": 60}) as it:
        await it.until("readyz", 200)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{it.process.management_port}", verify=False, trust_env=False
        ) as client:
            assert (await client.post("/drain")).json() == {"draining": True}
        await it.until("readyz", 503)
        it.process.stop()
        response = await it.chat()
        assert (response.status_code, response.headers["connection"]) == (200, "close")


async def test_a_pod_that_never_was_ready_stops_at_once(tiny_model_dir: Path) -> None:
    drain = {"pre_stop_seconds": 30, "deadline_seconds": 60}
    async with pod(tiny_model_dir, load_errors=[EngineError("There is no model.")], drain=drain) as it:
        await it.verdict()
        it.process.stop()
        async with asyncio.timeout(20):
            assert await it.running == 0


async def test_a_second_signal_or_the_deadline_cuts_what_is_left(tiny_model_dir: Path) -> None:
    for second_signal in (True, False):
        deadline = 60 if second_signal else 0.3
        drain = {"pre_stop_seconds": 0.05, "deadline_seconds": deadline}
        async with pod(tiny_model_dir, script=[*events_of("ab")[:1], asyncio.Event()], drain=drain) as it:
            await it.until("readyz", 200)
            stream = asyncio.create_task(it.chat(stream=True))
            await eventually(lambda: len(it.engine.live) == 1)
            it.process.stop()
            if second_signal:
                it.process.stop()
            async with asyncio.timeout(20):
                body = (await stream).text
                assert await it.running == 0
            assert '"code":"draining"' in body
            assert body.endswith("data: [DONE]\n\n")


async def test_a_taken_port_is_an_error_at_once(tiny_model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            async with pod(tiny_model_dir, management_port=taken.getsockname()[1]):
                pass


async def test_the_management_port_answers_while_the_event_loop_is_stuck(tiny_model_dir: Path) -> None:
    """vllm PR#43122, vllm#39863: health was blocked by the work it should report on."""
    with ThreadPoolExecutor(1) as pool:
        async with pod(tiny_model_dir) as it:
            await it.until("readyz", 200)
            asking = pool.submit(probe.ask, "127.0.0.1", it.process.management_port, "readyz")
            stuck_until = time.monotonic() + 10
            while not asking.done() and time.monotonic() < stuck_until:
                time.sleep(0.01)  # the event loop does not turn meanwhile
            assert asking.done(), "nobody answered while the event loop was stuck"
            assert asking.result()[0]


class ReplacedWeights(LivingEngine):
    """From its second epoch on it has loaded another file."""

    async def identity(self) -> EngineIdentity:
        found = await super().identity()
        other = LoadedFile(path="model.safetensors", size=1, sha256="sha256:" + "2" * 64)
        return found if self.epoch == 1 else msgspec.structs.replace(found, model_files=[other])


async def test_a_request_that_outlives_its_engine_is_not_served_by_one_that_loaded_something_else(
    tiny_model_dir: Path,
) -> None:
    """The headers come to a verified pod; while the body is on its way the engine dies and the next one reads other bytes."""
    engine = ReplacedWeights(events_of("other weights"))
    async with pod(tiny_model_dir, engine=engine) as it:
        await it.until("readyz", 200)
        body = json.dumps(BODY).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", it.process.api_port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: pod\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode())
        await eventually(lambda: len(it.process._live) == 1)
        engine.dead.set()
        await eventually(lambda: it.process.holder.current().reason == "ModelMismatch")
        writer.write(body)
        status = await reader.readline()
        writer.close()
        assert status.split()[1] == b"503"
        assert all(request.reserved for request in it.engine.requests)
