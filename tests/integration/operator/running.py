"""The operator from the source tree, in a thread of this process."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes import client, config

from pratique_contract import Verdict
from pratique_operator.cluster import ApiCluster
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import UnavailableError
from pratique_operator.main import serve
from pratique_operator.pods.facts import PodFacts
from pratique_operator.pods.verdicts import VerdictReader
from pratique_operator.release.trust import RecordAnswer
from tests.integration.operator.recording import RecordingCluster


@dataclass
class Operator:
    """One operator; may be stopped (as abruptly as a process ends) and started again."""

    kubeconfig: Path
    config: OperatorConfig
    recording: set[tuple[str, str, str]]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    records: dict[str, RecordAnswer] = field(default_factory=dict)
    passes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None
    errors: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        settings = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=settings)
        api = client.ApiClient(settings)
        direct = ApiCluster(api, timeout_seconds=10)
        cluster = RecordingCluster(direct, self.recording)
        cluster.passes = self.passes
        reader = VerdictReader(self._read, workers=2, ready_seconds=0.3)
        started = threading.Event()

        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await serve(cluster, self.config, reader, self._read_record, login=direct.connection, stop=self._stop)
            await asyncio.sleep(0.1)  # aiohttp closes its transports in the loop's next rounds

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:  # noqa: BLE001 - told by stop()
                self.errors.append(error)
                started.set()
            finally:
                reader.close()
                api.rest_client.pool_manager.clear()

        self._thread = threading.Thread(target=run, name="operator", daemon=True)
        self._thread.start()
        started.wait(10)

    def _read(self, _namespace: str, pod: PodFacts) -> str:
        verdict = self.verdicts.get(pod.name) or self.verdicts.get(pod.revision) or self.verdicts.get("*")
        if verdict is None:
            raise UnavailableError("the pod does not answer")
        return verdict.model_dump_json(by_alias=True)

    def _read_record(self, _namespace: str, pod: PodFacts) -> RecordAnswer:
        return (
            self.records.get(pod.name) or self.records.get(pod.revision) or self.records.get("*") or RecordAnswer(None)
        )

    def wait_passes(self, services: Iterable[tuple[str, str]], number: int, *, timeout: float = 30.0) -> None:
        """Until so many whole passes over each service have begun and ended from now on."""
        # The one that runs may have read before now, and the last one has ended when the next begins.
        goals = {service: self.passes[service] + number + 1 for service in services}
        deadline = time.monotonic() + timeout
        while any(self.passes[service] < goal for service, goal in goals.items()):
            assert time.monotonic() < deadline, f"{number} passes took longer than {timeout:.0f} s: {self.passes}"
            time.sleep(0.02)

    def check(self) -> None:
        """It runs, and nothing unexpected has ended it."""
        assert self.errors == []
        assert self._thread is not None
        assert self._thread.is_alive()

    def forget(self) -> None:
        """What pods say is each test's own."""
        self.verdicts.clear()
        self.records.clear()

    def stop(self) -> None:
        if self._thread is not None and self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(20)
            assert not self._thread.is_alive()
        self._thread = None
        assert self.errors == []
