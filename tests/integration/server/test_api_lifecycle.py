"""The serving process from its first second to its exit, with the real engine: loading, a failed gate, a failed load, a crashed engine,
a drain."""

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from pratique_server.config import EngineLimits
from pratique_server.serve import ServingProcess
from tests.integration.server.running import Running, make_spec, serving, serving_process, wait_until

pytestmark = pytest.mark.timeout(180)

HI: Any = [{"role": "user", "content": "What is pratique?"}]
LONG: dict[str, Any] = {"max_tokens": 450, "extra_body": {"ignore_eos": True}}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def served(tiny_model_dir: Path) -> Iterator[tuple[Running, ServingProcess]]:
    """One server whose engine is lost in every way; after each it has a new one that is verified."""
    limits = EngineLimits(restart_backoff_seconds=0.1)
    with serving(make_spec(tiny_model_dir), engine_limits=limits) as (server, process):
        server.wait_ready()
        yield server, process


async def open_stream(server: Running) -> tuple[openai.AsyncOpenAI, Any]:
    client = server.openai()
    stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True, **LONG)
    await anext(aiter(stream))
    return client, stream


def test_a_corrupt_weight_file_is_named_and_the_process_stays_up(tiny_model_dir: Path, tmp_path: Path) -> None:
    """What the engine process says of a model that does not load reaches whoever asks for the verdict."""
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    os.truncate(folder / "model.safetensors", 5000)
    with serving(make_spec(folder)) as (server, _):
        verdict = server.wait_verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "ModelMismatch"), verdict
        assert "model.safetensors is truncated: it ends after 5000 bytes" in verdict["message"]
        assert server.probe("livez")[0] == 200
        assert server.probe("startupz") == (503, f"ModelMismatch: {verdict['message']}")


@pytest.mark.req("R60", "R93")
def test_a_crashed_engine_ends_streams_with_an_error_and_a_new_one_is_verified(
    served: tuple[Running, ServingProcess],
) -> None:
    """vllm#36960, kserve#6259: healthy after the engine died."""
    server, process = served
    first = server.stats()["epoch"]

    async def crash_under_a_stream() -> openai.APIError:
        client, stream = await open_stream(server)
        os.kill(engine_pid(process), signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:  # noqa: PT012 - reading is what raises
            async for chunk in stream:
                assert not chunk.choices or chunk.choices[0].finish_reason is None
        await client.close()
        return caught.value

    error = asyncio.run(crash_under_a_stream())
    assert error.code == "engine_unavailable"
    wait_until(lambda: server.probe("readyz")[0] == 503, seconds=3)
    assert server.probe("livez")[0] == 200
    server.wait_ready()
    assert server.stats()["epoch"] == first + 1
    server.wait_idle()
    answer = server.post("/v1/chat/completions", {"model": "tiny", "messages": HI, "max_tokens": 3})
    assert answer.status_code == 200


def engine_pid(process: Any) -> int:
    return int(process.engine._core.process.pid)


@pytest.mark.req("R93")
def test_a_fault_in_reading_the_engines_output_ends_every_stream_with_an_error(
    served: tuple[Running, ServingProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that hands out tokens failed and every stream waited for ever."""
    server, process = served
    engine: Any = process.engine

    def broken(report: object) -> None:
        raise RuntimeError("a bug in the output handler")

    async def two_streams() -> list[str | None]:
        streams = [await open_stream(server) for _ in range(2)]
        monkeypatch.setattr(engine, "_deliver", broken)
        codes = []
        for client, stream in streams:
            with pytest.raises(openai.APIError) as caught:
                async for _ in stream:
                    pass
            codes.append(caught.value.code)
            await client.close()
        monkeypatch.undo()
        return codes

    assert asyncio.run(asyncio.wait_for(two_streams(), 10)) == ["engine_unavailable"] * 2
    server.wait_ready()


@pytest.fixture
def fixed_ports() -> dict[str, int]:
    return {"api_port": free_port(), "management_port": free_port()}


@pytest.fixture
def bare_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a container with a read-only root leaves: no home, no network settings, one writable folder."""
    writable = tmp_path / "tmp"
    writable.mkdir()
    yield {
        "HOME": "/nonexistent",
        "TMPDIR": str(writable),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": "/nonexistent/cache",
    }
    assert [path.name for path in writable.iterdir() if path.name.startswith("pratique-")] == []


@pytest.mark.req("R98", "R114", "R134")
def test_sigterm_finishes_live_streams_and_exits_with_zero(
    tiny_model_dir: Path, tmp_path: Path, fixed_ports: dict[str, int], bare_environment: dict[str, str]
) -> None:
    """vllm#24885, posthog PR#73863: requests dropped or the process hung on SIGTERM."""
    spec = make_spec(tiny_model_dir, **fixed_ports)
    with serving_process(spec, tmp_path, environment=bare_environment) as (server, child, log):
        server.wait_ready()

        async def drain_under_a_stream() -> list[Any]:
            client, stream = await open_stream(server)
            child.send_signal(signal.SIGTERM)
            wait_until(lambda: server.probe("readyz")[0] == 503, seconds=1)
            assert server.probe("readyz")[1].startswith("Draining")
            assert server.probe("livez")[0] == 200
            chunks = [chunk async for chunk in stream]
            await client.close()
            return chunks

        chunks = asyncio.run(drain_under_a_stream())
        assert chunks[-1].choices[0].finish_reason == "length"
        assert child.wait(10) == 0
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        access = [line for line in lines if line["logger"] == "pratique.access" and not line["reserved"]]
        assert [(line["ending"], line["status"]) for line in access] == [("limit", 200)]
        assert "What is pratique" not in log.read_text()
        times = access[0]["timestamps_ms"]
        boundaries = ("admitted", "enqueued", "first_scheduled", "first_token", "last_token", "cleaned_up")
        assert [times[name] for name in boundaries] == sorted(times[name] for name in boundaries)
