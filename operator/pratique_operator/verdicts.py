"""Asks running pods for their verdict: those that are not ready, and those under audit. A pod that does not answer is unknown, not
failed: its facts stay without a verdict. Bounded concurrency, a timeout for each, and never more than ``PODS_MAX`` pods in one pass.
"""

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import urllib3

from pratique_contract import Verdict, constants
from pratique_operator.cluster import Cluster
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import OperatorError, UnavailableError
from pratique_operator.pods import PodFacts

LOG = logging.getLogger(__name__)

PODS_MAX: Final = 32
BODY_BYTES_MAX: Final = 1024 * 1024

ReadVerdict = Callable[[str, PodFacts], str]


class VerdictReader:
    """Reads verdicts for one pass; safe to use from several threads."""

    def __init__(self, read: ReadVerdict, *, workers: int) -> None:
        self._read = read
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="verdict")

    def __call__(self, namespace: str, pods: list[PodFacts]) -> list[PodFacts]:
        """The same pods, those that answered with their verdict."""
        # Those that are not ready first: what they say is news, of the others it seldom is.
        asked = sorted((pod for pod in pods if pod.may_answer), key=lambda pod: pod.ready)[:PODS_MAX]
        answers = dict(
            zip((pod.name for pod in asked), self._pool.map(lambda p: self._ask(namespace, p), asked), strict=True)
        )
        return [replace(pod, verdict=answers.get(pod.name)) for pod in pods]

    def _ask(self, namespace: str, pod: PodFacts) -> Verdict | None:
        try:
            return Verdict.from_json_value(json.loads(self._read(namespace, pod)))
        except (OperatorError, ValueError) as error:
            LOG.debug("Pod did not tell its verdict: %s/%s: %s", namespace, pod.name, error)
            return None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def pod_url(pod: PodFacts, path: str) -> str:
    """A path of the pod's management port."""
    host = f"[{pod.address}]" if ":" in (pod.address or "") else pod.address
    return f"http://{host}:{constants.MANAGEMENT_PORT}{path}"


def read_direct(*, timeout_seconds: float) -> ReadVerdict:
    """Read from the pod's own address: how the operator does it inside the cluster."""
    pool = urllib3.PoolManager(maxsize=PODS_MAX)

    def read(_namespace: str, pod: PodFacts) -> str:
        url = pod_url(pod, constants.VERDICT_PATH)
        try:
            response = pool.request(
                "GET", url, timeout=urllib3.Timeout(total=timeout_seconds), retries=False, preload_content=False
            )
            try:
                return response.read(BODY_BYTES_MAX).decode(errors="replace")
            finally:
                response.close()  # a body read to its end has given the connection back already
        except urllib3.exceptions.HTTPError as error:
            raise UnavailableError(str(error)) from error

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
