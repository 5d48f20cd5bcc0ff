"""Start and stop one engine-core process: its private folder, its environment, its end.

The environment is settled here because thread counts and wait policy are read when torch is imported. The child
holds the reading end of a pipe whose writing end only we have: when this process ends, however it ends, the child
notices and ends too.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import zmq

from pratique_contract import ServingSpec
from pratique_server.engine import sockets
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.threads import available_cores, thread_environment

STOP_SECONDS: Final = 5.0


@dataclass(frozen=True)
class CoreProcess:
    """A running engine core and our ends of its sockets."""

    process: asyncio.subprocess.Process
    directory: Path
    ends: sockets.ClientSockets

    async def stop(self, *, grace: float) -> None:
        """End the process (kindly, then by force), close the sockets, remove the folder."""
        try:
            if self.process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self.process.wait()
            if self.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self.process.kill()
                await self.process.wait()
        finally:
            self.ends.close()
            shutil.rmtree(self.directory, ignore_errors=True)


async def launch_core(spec: ServingSpec, *, epoch: int) -> CoreProcess:
    """Start the process; it has not loaded anything yet."""
    directory = Path(tempfile.mkdtemp(prefix="pratique-"))
    try:
        (directory / sockets.SPEC_FILE).write_bytes(msgspec.json.encode(spec.to_json_value()))
        environment = core_environment(os.environ, directory=directory)
        ends = sockets.open_client_sockets(directory)
    except (ValueError, zmq.ZMQError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise LoadError(f"The engine process cannot be started: {error}.", part="engine") from error
    command = (sys.executable, "-m", "pratique_server.engine.core", str(directory), str(epoch))
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, env=environment)
    return CoreProcess(process, directory, ends)


def core_environment(environment: Mapping[str, str], *, directory: Path) -> dict[str, str]:
    """Environment of the engine core: offline, threads pinned, nothing written outside the private folder."""
    return {
        **environment,
        **thread_environment(environment, cores=available_cores()),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HOME": str(directory / "hf"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TOKENIZERS_PARALLELISM": "false",
    }
