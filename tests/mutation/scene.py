"""One server that is about to start with an approved record, and what a fault changes about it.

The server is the real one: ``ServingProcess`` on two real sockets, the torch engine (in this process, so that a fault can reach
into it), the gate through the public port. While it proves itself a user keeps knocking; nobody may be answered before the verdict.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pratique_contract.serving import ServingSpec
from pratique_server.api.app import make_app
from pratique_server.engine.local import start_local_engine
from pratique_server.engine.torch_engine.engine import TorchEngine
from pratique_server.life.loading import ServedEngine, StartEngine
from pratique_server.serve import ServingProcess
from tests.integration.server.running import Running, make_spec, served_in_this_process, serving
from tests.mutation.releases import Base
from tests.support.broken_streams import BreakStreams, Events
from tests.support.mutations import copy_of

QUESTION: Final[dict[str, Any]] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Ahoy"}],
    "max_tokens": 4,
}
KNOCK_SECONDS: Final = 0.05
# Long enough for a slow machine, short enough for the faults that end in silence.
PROBE_SECONDS_MAX: Final = 60.0


class Scene:
    """Everything of one start that may be changed."""

    def __init__(self, base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.record = base.record
        self.room = folder
        self.monkeypatch = monkeypatch
        self.engine_hooks: list[Callable[[TorchEngine, Scene], object]] = []
        self.start_engine: StartEngine = self._start_engine
        # Each is begun when the ports are there and gives back how to end it.
        self.while_proving: list[Callable[[Running], Callable[[], None]]] = []
        self.cleanups: list[Callable[[], object]] = []
        self.changes: dict[str, Any] = {"probe_timeout_seconds": PROBE_SECONDS_MAX}
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """A copy of the model's folder that may be changed, and that will be served."""
        if self._folder is None:
            self.folder = copy_of(self.base.folder, self.room / "model")
        assert self._folder is not None
        return self._folder

    @folder.setter
    def folder(self, folder: Path) -> None:
        self._folder = folder
        self.declare(model={"path": str(folder), "uri": f"file://{folder}"})

    def declare(self, **changes: Any) -> None:
        """Merge into the serving document."""
        self.changes = _merged(self.changes, changes)

    def break_streams(self, change: Callable[[Events], Events], **options: Any) -> None:
        self.wrap_app(lambda app: BreakStreams(app, change, **options))

    def wrap_app(self, wrap: Callable[[Any], Any]) -> None:
        """Put something between the application and the socket."""
        self.monkeypatch.setattr("pratique_server.serve.make_app", lambda state: wrap(make_app(state)))

    def spec(self) -> ServingSpec:
        """The serving document, with the approved record beside it."""
        path = self.room / "record.json"
        if not path.exists():
            path.write_text(self.record.to_json(), encoding="utf-8")
        release = {"policy": "Enforce", "record_path": str(path), "fingerprint": self.base.record.fingerprint}
        changes = _merged(_merged(self.base.changes, {"release": release}), self.changes)
        return make_spec(self.base.folder, **_merged({"model": self.base.model_source()}, changes))

    async def _start_engine(self, spec: ServingSpec) -> ServedEngine:
        local = await start_local_engine(spec)
        for hook in self.engine_hooks:
            inner = local._engine
            assert isinstance(inner, TorchEngine)
            hook(inner, self)
        return served_in_this_process(local)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


@dataclass
class Knocker:
    """A user who asks again and again while the pod proves itself. ``statuses`` are the answers in order; None means that
    nobody listened."""

    url: str
    statuses: list[int | None] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def knock(self) -> None:
        with plain_client() as client:
            while not self._stop.is_set():
                self.statuses.append(ask(client, self.url))
                time.sleep(KNOCK_SECONDS)

    @contextmanager
    def knocking(self) -> Iterator[None]:
        thread = threading.Thread(target=self.knock, name="knocker")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(35)
        assert not thread.is_alive()


def plain_client() -> httpx.Client:
    """For the pod's own ports: nothing of the environment, no certificates."""
    return httpx.Client(timeout=30, trust_env=False, verify=False)


def ask(client: httpx.Client, url: str, **fields: Any) -> int | None:
    """One user's request: the status, or None when nobody listens or the port closes under it."""
    try:
        return client.post(f"{url}/v1/chat/completions", json={**QUESTION, **fields}).status_code
    except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
        return None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How a start ended: the verdict, what a user got meanwhile and after, and the process to look into."""

    verdict: dict[str, Any]
    meanwhile: list[int | None]
    after: int | None
    scene: Scene
    server: Running
    process: ServingProcess


@contextmanager
def judge(scene: Scene) -> Iterator[Judged]:
    """Start the server, let it come to its verdict under the eyes of a knocking user, ask once more."""
    try:
        with serving(scene.spec(), start_engine=scene.start_engine) as (server, process):
            knocker = Knocker(server.api_url)
            ends = [begin(server) for begin in scene.while_proving]
            try:
                with knocker.knocking():
                    verdict = server.wait_verdict()
            finally:
                for end in ends:
                    end()
            with plain_client() as client:
                after = ask(client, server.api_url)
            yield Judged(
                verdict=verdict, meanwhile=knocker.statuses, after=after, scene=scene, server=server, process=process
            )
    finally:
        for cleanup in scene.cleanups:
            cleanup()
