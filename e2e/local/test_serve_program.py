"""The serving process in its first second and at its exit, with the real engine: a failed load, a drain. What comes between, an engine that
is lost among it, is in ``test_api_real_engine.py``."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.server.running import Running, make_spec, serving, serving_process, wait_until
from tests.support.ports import free_ports

pytestmark = pytest.mark.timeout(180)

HI: Any = [{"role": "user", "content": "What is pratique?"}]
LONG: dict[str, Any] = {"max_tokens": 450, "extra_body": {"ignore_eos": True}}


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


@pytest.fixture
def fixed_ports() -> dict[str, int]:
    port, management = free_ports(2)
    return {"api_port": port, "management_port": management}


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
