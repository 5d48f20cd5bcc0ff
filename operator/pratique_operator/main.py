"""Starts the operator: configuration from the environment, one connection, kopf's event loop, metrics, and an exit code.

``pratique operator`` calls ``run``; the image's default command does the same.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import Final

import kopf
from prometheus_client import start_http_server

from pratique_operator import kinds
from pratique_operator.cluster import Cluster, Connection, connect
from pratique_operator.config import ConfigError, OperatorConfig, read_config
from pratique_operator.errors import NotFoundError, OperatorError, SignatureInvalidError
from pratique_operator.handlers import register
from pratique_operator.kinds import Key
from pratique_operator.pods.verdicts import VerdictReader, verdict_reader
from pratique_operator.queue import ReconcileQueue
from pratique_operator.reconcile import Outcome, Reconciler
from pratique_operator.release.records import ReadRecord, record_reader
from pratique_operator.release.signatures import read_keys
from pratique_operator.remembered import RememberedLists

LOG = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2


def run() -> int:
    """Run until SIGTERM or SIGINT; returns the process's exit code."""
    try:
        config = read_config(os.environ)
        if config.signature_keys:
            read_keys(config.signature_keys, where="PRATIQUE_SIGNATURE_KEYS")
    except (ConfigError, SignatureInvalidError) as error:
        print(f"The operator cannot start: {error}", file=sys.stderr)
        return EXIT_CONFIG
    kopf.configure(log_format=kopf.LogFormat.JSON if config.log_format == "json" else kopf.LogFormat.FULL)
    for noisy in ("kopf.objects", "kopf.activities", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        cluster = connect(timeout_seconds=config.request_timeout_seconds)
        check_crd(cluster, config)
    except OperatorError as error:
        print(f"The operator cannot start: {error}", file=sys.stderr)
        return EXIT_FAILED
    if config.metrics_port:
        start_http_server(config.metrics_port)
    reader = verdict_reader(cluster, config)
    asyncio.run(serve(cluster, config, reader, record_reader(cluster, config), login=cluster.connection))
    return EXIT_OK


def check_crd(cluster: Cluster, config: OperatorConfig) -> None:
    """Fail at once, with a sentence, when the CRD is not there: kopf would watch nothing and look healthy."""
    namespace = config.watch_namespaces[0] if config.watch_namespaces else None
    try:
        cluster.list(kinds.INFERENCE_SERVICE, namespace)
    except NotFoundError as error:
        raise OperatorError("The InferenceService CRD is not installed; apply crds/ or install the chart") from error


async def serve(
    cluster: Cluster,
    config: OperatorConfig,
    reader: VerdictReader,
    read_record: ReadRecord,
    *,
    login: Callable[[], Connection],
    stop: asyncio.Event | None = None,
) -> None:
    """Run kopf with our handlers until ``stop`` is set or a signal comes."""
    # At half the resync's age: each resync reads everything, and finds what no watch told of.
    remembered = RememberedLists(cluster, seconds=config.resync_seconds / 2)
    reconciler = Reconciler(remembered, config, read_verdicts=reader, read_record=read_record)

    async def work(key: Key) -> Outcome:
        return await asyncio.to_thread(reconciler.reconcile, key)

    async def find_changed() -> set[Key]:
        return await asyncio.to_thread(reconciler.find_changed)

    registry = kopf.OperatorRegistry()
    queue = ReconcileQueue(work, workers=config.reconcile_workers)

    def close() -> None:
        reader.close()
        cluster.close()

    register(registry, config, queue, login=login, find_changed=find_changed, changed=remembered.changed, close=close)
    await kopf.operator(
        registry=registry,
        standalone=True,
        clusterwide=not config.watch_namespaces,
        namespaces=config.watch_namespaces,
        liveness_endpoint=f"http://0.0.0.0:{config.health_port}/healthz" if config.health_port else None,
        stop_flag=stop,
    )


if __name__ == "__main__":
    sys.exit(run())
