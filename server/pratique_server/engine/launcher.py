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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import zmq

from pratique_contract import ServingSpec
from pratique_server.engine import sockets
from pratique_server.engine.protocol import EngineDeadError, LoadError
from pratique_server.engine.threads import available_cores, thread_environment

STOP_SECONDS: Final = 5.0
# Where the sockets go when the temporary folder cannot hold them.
SHORT_FOLDERS: Final = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - the folder made inside is private


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
    directory = make_private_directory((*temporary_folder(), *SHORT_FOLDERS))
    try:
        (directory / sockets.SPEC_FILE).write_bytes(msgspec.json.encode(spec.to_json_value()))
        environment = core_environment(os.environ, directory=directory)
        ends = sockets.open_client_sockets(directory)
    except ValueError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise LoadError(f"The engine process cannot be started: {error}.", part="engine") from error
    except (OSError, zmq.ZMQError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise EngineDeadError(f"its sockets cannot be made in {directory}: {error}") from error
    command = (sys.executable, "-m", "pratique_server.engine.core", str(directory), str(epoch))
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, env=environment)
    except OSError as error:  # no memory or no process left
        ends.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise EngineDeadError(f"its process cannot be started: {error}") from error
    return CoreProcess(process, directory, ends)


def temporary_folder() -> tuple[Path, ...]:
    """The one that the environment names or the system has; none when none can be written to (all read-only, or full)."""
    try:
        return (Path(tempfile.gettempdir()),)
    except FileNotFoundError:
        return ()


def make_private_directory(parents: Sequence[Path]) -> Path:
    """A new folder that only this user may enter, in the first parent that takes it and leaves room for a socket's name.

    The kernel bounds a socket's path (107 bytes), and a temporary folder deep in a tree leaves none. Raises ``EngineDeadError``.
    """
    problems = []
    for parent in dict.fromkeys(parents):
        try:
            directory = Path(tempfile.mkdtemp(prefix="pratique-", dir=parent))
        except OSError as error:
            problems.append(f"{parent}: {error.strerror}")
            continue
        if sockets.fits(directory):
            return directory
        directory.rmdir()
        problems.append(f"{parent}: too long a path for a socket")
    raise EngineDeadError(f"there is no folder for its sockets ({'; '.join(problems)})")


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
