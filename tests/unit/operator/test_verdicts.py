"""Reading verdicts over HTTP: what answers is known, what does not is unknown."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.record import RECORD_BYTES_MAX
from pratique_contract.verdict import Evidence
from pratique_operator.cluster import ApiCluster
from pratique_operator.errors import RejectedError, UnavailableError
from pratique_operator.pods.facts import PodFacts
from pratique_operator.pods.verdicts import PODS_MAX, TEXT_CHARS_MAX, VerdictReader, read_direct
from pratique_operator.release import records
from pratique_operator.release.trust import RecordAnswer

VERDICT = Verdict(result=VerdictResult.FAIL, reason=Reason.MODEL_MISMATCH, message="one byte")
# The management port is fixed, so each stand-in pod has a loopback address of its own, out of a network of this process's: xdist and
# other checkouts on this machine may run the same tests right now.
NETWORK = f"127.{128 + (os.getpid() >> 8) % 127}.{os.getpid() % 256}"
ADDRESS = f"{NETWORK}.1"
SILENT = f"{NETWORK}.2"
OTHER = f"{NETWORK}.9"


def asked(name: str = "p", **facts: Any) -> PodFacts:
    return PodFacts(**{"name": name, "revision": "r", "address": ADDRESS, "running": True, **facts})


@pytest.fixture
def answers() -> Iterator[Callable[[bytes, int, float], None]]:
    """A pod's management port that answers what it is told to."""
    body, status, delay = b"", 200, 0.0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(delay)
            known = self.path in (constants.VERDICT_PATH, constants.RECORD_API_PATH)
            self.send_response(status if known else 404)
            self.end_headers()
            with suppress(ConnectionError):  # whoever has read enough hangs up
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
            return

    server = ThreadingHTTPServer((ADDRESS, constants.MANAGEMENT_PORT), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()

    def answer(new_body: bytes, new_status: int = 200, new_delay: float = 0.0) -> None:
        nonlocal body, status, delay
        body, status, delay = new_body, new_status, new_delay

    yield answer
    server.shutdown()
    server.server_close()


def read(pods: list[PodFacts], timeout_seconds: float = 1.0) -> list[PodFacts]:
    reader = VerdictReader(read_direct(timeout_seconds=timeout_seconds), workers=4)
    try:
        return reader("ns", pods)
    finally:
        reader.close()


def test_failing_verdict_is_read(answers: Callable[..., None]) -> None:
    """The management port answers 200 or 503 with the same body, whatever the verdict."""
    for status in (200, 503):
        answers(VERDICT.model_dump_json(by_alias=True).encode(), status)
        (pod,) = read([asked()])
        assert pod.verdict == VERDICT


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"result": "Maybe"}', b"\xff\xfe", b"[" * 200_000])
def test_nonsense_is_unknown(answers: Callable[..., None], body: bytes) -> None:
    answers(body)
    (pod,) = read([asked()])
    assert pod.verdict is None


def test_slow_pod_is_unknown_within_the_timeout(answers: Callable[..., None]) -> None:
    answers(json.dumps({}).encode(), 200, 1.5)
    started = time.monotonic()
    (pod,) = read([asked()], timeout_seconds=0.2)
    assert pod.verdict is None
    assert time.monotonic() - started < 1.0


@pytest.mark.parametrize(
    "say",
    [
        pytest.param((b"HTTP/1.1 200 OK\r\n\r\n", b" "), id="a byte now and then"),
        pytest.param((b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="not yet, for ever"),
        pytest.param((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b""), id="less than it promised"),
    ],
)
def test_pod_that_never_ends_its_answer_costs_one_timeout(say: tuple[bytes, bytes]) -> None:
    """Every byte winds a socket's timeout up again; the threads that read verdicts are shared by all services."""
    address = f"{NETWORK}.{100 + len(say[0])}"
    listener = socket.create_server((address, constants.MANAGEMENT_PORT))
    stop = threading.Event()

    def trickle() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.recv(4096)
                peer.sendall(say[0])
                while not stop.wait(0.05):
                    peer.sendall(say[1])

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    try:
        started = time.monotonic()
        (pod,) = read([asked(address=address)], timeout_seconds=0.3)
        assert pod.verdict is None
        assert records.read_direct(timeout_seconds=0.3)("ns", asked(address=address)) == RecordAnswer(None)
        assert time.monotonic() - started < 1.5
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(2)


def test_no_redirect_of_a_pod_is_followed(answers: Callable[..., None]) -> None:
    """What the pod names may be an address that only the operator can reach."""
    answers(VERDICT.model_dump_json(by_alias=True).encode())
    listener = socket.create_server((OTHER, constants.MANAGEMENT_PORT))

    def send_elsewhere() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            there = f"http://{ADDRESS}:{constants.MANAGEMENT_PORT}{constants.VERDICT_PATH}"
            peer.sendall(f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode())

    thread = threading.Thread(target=send_elsewhere, daemon=True)
    thread.start()
    (pod,) = read([asked(address=OTHER)])
    thread.join(2)
    listener.close()
    assert pod.verdict is None


def test_what_is_kept_of_a_verdict_is_short_and_one_line(answers: Callable[..., None]) -> None:
    """Thousands are kept, and what a pod says ends up in conditions, Events and on terminals."""
    long = "\x1b[2J" + "x" * 100_000
    seen = Evidence(subject="s", expected=long, observed=long)
    verdict = Verdict(
        result=VerdictResult.FAIL, reason=Reason.MODEL_MISMATCH, message=long, expected=long, evidence=(seen,) * 3
    )
    verdict = verdict.model_copy(update={"checked_at": datetime.fromisoformat("0001-01-01T00:00:00+14:00")})
    answers(verdict.model_dump_json(by_alias=True).encode())
    (pod,) = read([asked()])
    assert pod.verdict is not None
    assert (pod.verdict.reason, pod.verdict.evidence) == (Reason.MODEL_MISMATCH, ())
    assert pod.verdict.message.startswith(" [2Jxxx")
    assert pod.verdict.checked_at is None  # it is no time in UTC, and ended the pass where the status is written
    assert len(pod.verdict.model_dump_json()) < 3 * TEXT_CHARS_MAX


def test_pod_that_refuses_the_connection_is_unknown() -> None:
    (pod,) = read([asked(address=SILENT)])
    assert (pod.verdict, pod.failure) == (None, None)


def test_only_running_pods_are_asked_and_of_those_that_are_not_ready_never_too_many() -> None:
    seen: list[str] = []

    def tell(_namespace: str, pod: PodFacts) -> str:
        seen.append(pod.name)
        return VERDICT.model_dump_json(by_alias=True)

    pods = [asked("gone", terminating=True), asked("no-address", address=None), asked("a", ready=True, audited=True)]
    pods += [asked(f"p{n:03}") for n in range(PODS_MAX + 5)]
    reader = VerdictReader(tell, workers=2)
    result = reader("ns", pods)
    reader.close()
    assert sorted(seen) == [f"p{n:03}" for n in range(PODS_MAX)]
    assert [pod.name for pod in result] == [pod.name for pod in pods]


def test_record_is_read_with_its_status_whatever_it_is(answers: Callable[..., None]) -> None:
    ask = records.read_direct(timeout_seconds=1.0)
    for status in (200, 202, 409):
        answers(b'{"message": "m"}', status)
        assert ask("ns", asked()) == RecordAnswer(status, '{"message": "m"}')
    assert ask("ns", asked(address=SILENT)) == RecordAnswer(None)


def test_record_that_is_too_large_is_not_read_to_its_end(answers: Callable[..., None]) -> None:
    answers(b"x" * (RECORD_BYTES_MAX + 1000))
    assert len(records.read_direct(timeout_seconds=5.0)("ns", asked()).body) == RECORD_BYTES_MAX + 1


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        ("{}", RecordAnswer(200, "{}")),
        ('{"message": "m"}', RecordAnswer(202, '{"message": "m"}')),
        (RejectedError(409, "too large"), RecordAnswer(409, '{"message": "too large"}')),
        (UnavailableError("away"), RecordAnswer(None)),
    ],
)
def test_record_through_the_api_server_says_the_same(outcome: str | Exception, answer: RecordAnswer) -> None:
    class Proxy(ApiCluster):
        def __init__(self) -> None:
            return

        def read_pod(self, namespace: str, pod: str, port: int, path: str, *, timeout_seconds: float) -> str:
            assert (namespace, pod, port, path) == ("ns", "p", constants.MANAGEMENT_PORT, constants.RECORD_API_PATH)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    assert records.read_through(Proxy(), timeout_seconds=1.0)("ns", asked()) == answer


def test_ready_pod_is_asked_now_and_then_and_its_last_answer_stands_in_between() -> None:
    """Re-verification may find something long after a pod was ready; a pod that cannot be reached must not cost every pass its timeout."""
    now, silent, seen = 0.0, False, 0

    def tell(_namespace: str, pod: PodFacts) -> str:
        nonlocal seen
        seen += 1
        if silent:
            raise UnavailableError("no answer")
        return VERDICT.model_dump_json(by_alias=True)

    reader = VerdictReader(tell, workers=1, ready_seconds=60, clock=lambda: now)
    ready = [asked("ready", uid="u", ready=True)]
    for at, quiet, asked_so_far in ((0, False, 1), (59, False, 1), (60, True, 2), (61, True, 2), (120, False, 3)):
        now, silent = at, quiet
        (pod,) = reader("ns", ready)
        assert (pod.verdict, seen) == (VERDICT, asked_so_far)
    (unready,) = reader("ns", [asked("ready", uid="u")])
    reader.close()
    assert (unready.verdict, seen) == (VERDICT, 4)


def test_stop_cuts_a_long_row_of_questions_short() -> None:
    """Hundreds of pods behind a cut network would each cost their timeout after SIGTERM."""
    asking, go_on, seen = threading.Event(), threading.Event(), 0

    def tell(_namespace: str, _pod: PodFacts) -> str:
        nonlocal seen
        seen += 1
        asking.set()
        go_on.wait(10)
        raise UnavailableError("no answer")

    def ask() -> None:
        with suppress(UnavailableError):  # where the stop came before the last question was in the row
            reader("ns", [asked(f"p{n}", uid=f"u{n}") for n in range(20)])

    reader = VerdictReader(tell, workers=1)
    asker = threading.Thread(target=ask)
    asker.start()
    assert asking.wait(10)
    reader.close()
    go_on.set()
    asker.join(10)
    assert (seen, asker.is_alive()) == (1, False)
    with pytest.raises(UnavailableError, match="stopping"):
        reader("ns", [asked("next")])
