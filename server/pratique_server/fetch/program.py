"""The fetching process: reads the document, serves ``/verdict`` while it fetches, ends with 0, or with 1 and a last word for the kubelet.

``/livez`` passes as long as the process runs, ``/verdict`` is a pending verdict with reason Downloading. The last word is
``Reason: sentence`` in the termination log, where the operator and ``kubectl describe pod`` find it. SIGTERM ends at once and keeps
what has come.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pratique_contract.constants import TERMINATION_LOG_PATH
from pratique_contract.reasons import Reason
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import Verdict, VerdictResult
from pratique_server.config import ConfigError, load_serving_spec
from pratique_server.fetch.errors import FetchError, HaltedError
from pratique_server.fetch.fetcher import Fetcher, Settings
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.secrets import Credentials, Redactor, read_credentials
from pratique_server.fetch.targets import Target, find_targets
from pratique_server.gate.conclude import write_termination_message
from pratique_server.gate.record_file import find_record
from pratique_server.management.app import ManagementApp
from pratique_server.management.status import PodStatus
from pratique_server.management.thread import ManagementThread
from pratique_server.metrics import Metrics

EXIT_FETCHED: Final = 0
EXIT_FAILED: Final = 1
EXIT_STOPPED: Final = 128 + signal.SIGTERM
LOG_SECONDS: Final = 5.0
STOP_SECONDS: Final = 3.0
# The main thread waits in steps: a signal is then handled between two of them whatever the workers do.
_STEP_SECONDS: Final = 0.2
_log = logging.getLogger(__name__)


def run_document(path: Path, *, termination_log: Path = Path(TERMINATION_LOG_PATH)) -> int:
    """Fetch everything a serving document names; the exit code."""
    try:
        spec = load_serving_spec(path)
        credentials = read_credentials(spec.download.credentials_path)
    except (ConfigError, FetchError) as error:
        return _end(FetchError(str(error)), Redactor(), termination_log)
    redactor = install_redactor(credentials)
    found = find_record(spec.release)
    if found.problem is not None:
        _log.warning("Fetching without a release record to compare with: %s", found.problem)
    targets = find_targets(spec, found.record)
    progress, halt = Progress(), Halt()
    stop_on_signals(halt)
    with _management_port(spec, progress):
        settings = Settings(download=spec.download, credentials=credentials)
        failure = run_fetcher(lambda fetcher: _fetch_each(fetcher, targets), settings, progress, halt)
    return _end(failure, redactor, termination_log)


def run_fetcher(
    act: Callable[[Fetcher], None],
    settings: Settings,
    progress: Progress,
    halt: Halt,
    *,
    log_seconds: float = LOG_SECONDS,
) -> FetchError | HaltedError | None:
    """Do something with a fetcher while a line about the progress is logged every few seconds; the error that ended it, or None.
    It runs in a thread of its own: a signal is heard whatever the network does."""
    result: list[FetchError | HaltedError] = []
    work = threading.Thread(
        target=_act_in_thread, args=(act, settings, progress, halt, result), name="fetch", daemon=True
    )
    work.start()
    waited, stopping = 0.0, 0.0
    while work.is_alive():
        work.join(_STEP_SECONDS)
        waited += _STEP_SECONDS
        stopping += _STEP_SECONDS if halt.stopped else 0.0
        if stopping >= STOP_SECONDS:  # it waits for a peer that says nothing
            return HaltedError()
        # How far it is, is no news once it has ended: its own last word stands in the log.
        if waited >= log_seconds and work.is_alive() and (line := progress.news()) is not None:
            _log.info("%s", line)
            waited = 0.0
    return result[0] if result else None


def install_redactor(credentials: Credentials) -> Redactor:
    """From here on no log line of any library carries a secret."""
    redactor = Redactor(credentials.secret_values())
    for handler in logging.getLogger().handlers:
        handler.addFilter(redactor)
    for noisy in ("huggingface_hub", "urllib3", "httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return redactor


def _fetch_each(fetcher: Fetcher, targets: Sequence[Target]) -> None:
    for target in targets:
        fetcher.fetch(target)


def _act_in_thread(
    act: Callable[[Fetcher], None],
    settings: Settings,
    progress: Progress,
    halt: Halt,
    result: "list[FetchError | HaltedError]",
) -> None:
    try:
        fetcher = Fetcher(settings, progress, halt)
        try:
            act(fetcher)
        finally:
            fetcher.close()
    except (FetchError, HaltedError) as error:
        result.append(error)
    except Exception as error:  # noqa: BLE001 - the process's last word must say something in any case
        _log.exception("Unexpected error while fetching")
        result.append(FetchError(f"Unexpected {type(error).__name__} while fetching: {error}; this is a bug of ours"))


def _end(error: FetchError | HaltedError | None, redactor: Redactor, termination_log: Path) -> int:
    if error is None:
        _log.info("Fetched everything")
        return EXIT_FETCHED
    if isinstance(error, HaltedError):
        _log.warning("Stopped before everything was fetched; what has come is kept")
        return EXIT_STOPPED
    sentence = redactor.clean(error.message)
    _log.error("Could not fetch: %s: %s", error.reason, sentence)
    verdict = Verdict(result=VerdictResult.FAIL, reason=Reason(error.reason), message=sentence)
    write_termination_message(verdict, termination_log)
    return EXIT_FAILED


def stop_on_signals(halt: Halt) -> None:
    """A process with id 1 is not ended by SIGTERM unless it says how."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: halt.stop())


@contextmanager
def _management_port(spec: ServingSpec, progress: Progress) -> Iterator[None]:
    """Serve progress; a port that is taken costs the view of it, not the fetch."""
    status = PodStatus(progress, heartbeat_seconds_max=float("inf"))
    app = ManagementApp(status, Metrics(), drain=lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        port = ManagementThread(app, host=spec.host, port=spec.management_port)
    except OSError as error:
        _log.warning("Progress is not served: port %d: %s", spec.management_port, error.strerror)
        yield
        return
    port.start()
    try:
        yield
    finally:
        port.stop()
