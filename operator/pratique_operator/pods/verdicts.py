"""Asks running pods for their verdict. A pod that does not answer is unknown, not failed: its facts stay without a verdict. Bounded
concurrency, a timeout for each.

A pod that a rollout waits for is asked in every pass, at most ``PODS_MAX`` of them. A ready pod is asked now and then, because
re-verification may have found something since; in between, and while it is silent, its last answer stands.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from pratique_contract import Verdict, constants
from pratique_contract.canonical import JSON_ERRORS
from pratique_operator.cluster import Cluster
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import OperatorError, UnavailableError
from pratique_operator.pods import pod_http
from pratique_operator.pods.facts import PodFacts

LOG = logging.getLogger(__name__)

PODS_MAX: Final = 32
READY_PODS_MAX: Final = 512
READY_SECONDS: Final = 60.0
KEPT_MAX: Final = 20_000
BODY_BYTES_MAX: Final = 1024 * 1024
# What is kept of a pod's sentences: longer than any of ours, shorter than what a status holds.
TEXT_CHARS_MAX: Final = 2000

ReadVerdict = Callable[[str, PodFacts], str]


class VerdictReader:
    """Reads verdicts for one pass; safe to use from several threads."""

    def __init__(
        self,
        read: ReadVerdict,
        *,
        workers: int,
        ready_seconds: float = READY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._ready_seconds = ready_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Verdict | None]] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="verdict")

    def __call__(self, namespace: str, pods: list[PodFacts]) -> list[PodFacts]:
        """The same pods, those that answered with their verdict."""
        now = self._clock()
        # Those that are not ready first: what they say is news, of the others it seldom is.
        urgent = sorted((pod for pod in pods if pod.is_urgent), key=lambda pod: pod.ready)[:PODS_MAX]
        ready = [pod for pod in pods if pod.may_answer and not pod.is_urgent]
        asked = [*urgent, *[pod for pod in ready if self._is_due(pod, now)][:READY_PODS_MAX]]
        answers = self._ask_all(namespace, asked)
        for pod in asked:
            self._keep(pod, answers[pod.name], now)
        answers |= {pod.name: self._last(pod) for pod in ready}
        return [replace(pod, verdict=answers.get(pod.name)) for pod in pods]

    def _is_due(self, pod: PodFacts, now: float) -> bool:
        kept = self._kept.get(pod.uid)
        return kept is None or now - kept[0] >= self._ready_seconds

    def _keep(self, pod: PodFacts, verdict: Verdict | None, now: float) -> None:
        """Silence is kept too, or a pod that cannot be reached would cost its timeout in every pass."""
        with self._lock:
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            last = verdict if verdict is not None or not pod.ready else self._last(pod)
            self._kept.pop(pod.uid, None)
            self._kept[pod.uid] = (now, last)

    def _last(self, pod: PodFacts) -> Verdict | None:
        return self._kept.get(pod.uid, (0.0, None))[1]

    def _ask_all(self, namespace: str, pods: list[PodFacts]) -> dict[str, Verdict | None]:
        try:
            answers = self._pool.map(lambda pod: self._ask(namespace, pod), pods)
        except RuntimeError as error:
            if not self._closed:
                raise
            raise UnavailableError("The operator is stopping: no pod is asked any more") from error
        return dict(zip((pod.name for pod in pods), answers, strict=True))

    def _ask(self, namespace: str, pod: PodFacts) -> Verdict | None:
        if self._closed:
            return None
        try:
            return shorten(Verdict.from_json_value(json.loads(self._read(namespace, pod))))
        except (OperatorError, *JSON_ERRORS) as error:
            LOG.debug("Pod did not tell its verdict: %s/%s: %s", namespace, pod.name, error)
            return None

    def close(self) -> None:
        """Ask no further pod: whoever still has hundreds before them gets silence for an answer."""
        self._closed = True
        self._pool.shutdown(wait=False)


def shorten(verdict: Verdict) -> Verdict:
    """What the operator needs of a verdict: thousands are kept, and a pod may say anything of any length. The evidence is for whoever
    asks the pod itself."""
    seen = verdict.reverification
    if seen is not None:
        seen = seen.model_copy(update={"message": _line(seen.message), "evidence": ()})
    texts = {name: _line(text) for name in _TEXTS if (text := getattr(verdict, name)) is not None}
    told = {"evidence": (), "checks": (), "reverification": seen, "checked_at": _in_utc(verdict.checked_at)}
    return verdict.model_copy(update={**texts, **told})


_TEXTS: Final = ("message", "part", "expected", "observed", "fingerprint", "policy")


def _in_utc(moment: datetime | None) -> datetime | None:
    """Not at all where the calendar ends: the first hours of the year 1 are no time in UTC."""
    try:
        return None if moment is None else moment.astimezone(UTC)
    except OverflowError:
        return None


def _line(text: str) -> str:
    """One line without control characters: it ends up in conditions, Events and on terminals."""
    line = "".join(char if char.isprintable() else " " for char in text[:TEXT_CHARS_MAX])
    return line if len(text) <= TEXT_CHARS_MAX else f"{line[:-1]}…"


def read_direct(*, timeout_seconds: float) -> ReadVerdict:
    """Read from the pod's own address: how the operator does it inside the cluster."""

    def read(_namespace: str, pod: PodFacts) -> str:
        path = constants.VERDICT_PATH
        _, body = pod_http.get(pod.address, path, seconds_max=timeout_seconds, bytes_max=BODY_BYTES_MAX)
        return body.decode(errors="replace")

    return read


def read_through(cluster: Cluster, *, timeout_seconds: float) -> ReadVerdict:
    """Read through the API server's pod proxy: for an operator that runs outside the cluster."""

    def read(namespace: str, pod: PodFacts) -> str:
        return cluster.read_pod(
            namespace,
            pod.name,
            constants.MANAGEMENT_PORT,
            constants.VERDICT_PATH,
            timeout_seconds=timeout_seconds,
        )

    return read


def verdict_reader(cluster: Cluster, config: OperatorConfig) -> VerdictReader:
    """The reader the configuration asks for."""
    timeout = config.verdict_timeout_seconds
    read = read_direct(timeout_seconds=timeout)
    if config.verdict_access == "Proxy":
        read = read_through(cluster, timeout_seconds=timeout)
    return VerdictReader(read, workers=config.verdict_workers)
