"""Wiring between kopf and the queue: every event of a service or of one of its children asks for a pass of that service. No policy.

Only ``on.event`` handlers: kopf then writes nothing to any object, no annotation and no finalizer, so a service can be deleted while
the operator is down, and an idle operator moves no resource version.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

import kopf

from pratique_contract import constants
from pratique_operator import kinds, labels
from pratique_operator.cluster import Connection
from pratique_operator.config import OperatorConfig
from pratique_operator.kinds import Key, Kind
from pratique_operator.queue import ReconcileQueue

LOG = logging.getLogger(__name__)

WATCH_SERVER_SECONDS: Final = 240  # an integer: the API server parses the query parameter as one
WATCH_CLIENT_SECONDS: Final = 300.0
CONNECT_SECONDS: Final = 10.0
LIST_PAGE: Final = 500
WORKER_SECONDS: Final = 0.3
HEARTBEAT_SECONDS_MAX: Final = 60.0
# Within the chart's grace period of 30 s: passes get 5 s, a call that is under way its timeout, then nothing is waited for any more.
EXIT_SECONDS_MAX: Final = 25.0


def configure(settings: kopf.OperatorSettings, config: OperatorConfig) -> None:
    """All of kopf's settings, in one place."""
    prefix = f"operator.{constants.GROUP}"
    # kopf keeps no state on objects here; should a later handler make it, it is ours and not shared with other operators.
    settings.persistence.finalizer = f"{prefix}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=prefix)
    settings.posting.enabled = False
    # No watch on namespaces and CRDs: it would need cluster-wide rights for nothing.
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_SERVER_SECONDS
    settings.watching.client_timeout = WATCH_CLIENT_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.chunk_size = LIST_PAGE
    # Handlers only fill the queue: kopf's per-object workers have nothing to wait for, and at the end would be waited for.
    settings.queueing.idle_timeout = WORKER_SECONDS
    settings.queueing.exit_timeout = WORKER_SECONDS
    settings.networking.request_timeout = config.request_timeout_seconds
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.process.ultimate_exiting_timeout = EXIT_SECONDS_MAX
    own = labels.owner_selector(config.operator_name)
    settings.watching.label_selectors[_selector(kinds.INFERENCE_SERVICE)] = own
    for kind in kinds.WATCHED:
        settings.watching.label_selectors[_selector(kind)] = labels.MANAGED_SELECTOR


def _selector(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return (group, version, kind.plural)


def register(
    registry: kopf.OperatorRegistry,
    config: OperatorConfig,
    queue: ReconcileQueue,
    *,
    login: Callable[[], Connection],
    find_changed: Callable[[], Awaitable[set[Key]]],
    changed: Callable[[Kind, str], None],
    close: Callable[[], None],
) -> None:
    """Put every handler into the registry. kopf calls ``login`` at the start and whenever its credentials are refused;
    ``find_changed`` is asked now and then for services whose ConfigMaps or Secrets, which nobody watches, are others now; ``changed`` is
    told the kind and namespace of each event of a child, before the pass that it starts.
    ``close`` is called at the end: a pass that still runs in a thread, which nobody can cancel, then ends with its next call."""
    background: set[asyncio.Task[None]] = set()
    # Children carry no operator's name. Without this, an operator that shares a cluster would look at every service of every other
    # one, whenever anything of it moves, only to find that it is not its own.
    ours: set[Key] = set()

    @kopf.on.startup(registry=registry)
    async def handle_startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, config)
        background.add(asyncio.create_task(queue.run(), name="reconcile queue"))
        background.add(asyncio.create_task(look_after_references(), name="references"))

    async def look_after_references() -> None:
        while True:
            await asyncio.sleep(config.reference_seconds)
            try:
                changed = await find_changed()
            except Exception:  # an answer nobody expected must not end the looking
                LOG.exception("Referred objects were not looked at")
                continue
            for key in changed:
                queue.trigger(key)

    @kopf.on.login(registry=registry)
    async def handle_login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**asdict(login()))

    @kopf.on.cleanup(registry=registry)
    async def handle_cleanup(**_: Any) -> None:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        close()

    @kopf.on.probe(registry=registry, id="heartbeat")
    async def handle_probe(**_: Any) -> float:
        age = queue.heartbeat_age_seconds
        if age > HEARTBEAT_SECONDS_MAX or any(task.done() for task in background):
            raise kopf.PermanentError(f"The reconcile queue stopped {age:.0f} s ago")
        return round(age, 1)

    async def handle_service(name: str, namespace: str | None, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name for it
        assert namespace is not None
        key = Key(namespace, name)
        if type == "DELETED":  # or not ours any more: its label is another one
            ours.discard(key)
        else:
            ours.add(key)
        queue.trigger(key)

    async def handle_child(meta: kopf.Meta, namespace: str | None, param: Any = None, **_: Any) -> None:
        assert namespace is not None
        changed(param, namespace)
        service = meta.get("labels", {}).get(constants.LABEL_SERVICE)
        # A child that is told of before its service needs no pass of its own: the service is about to get one.
        if service and Key(namespace, service) in ours:
            queue.trigger(Key(namespace, service))

    kopf.on.event(*_selector(kinds.INFERENCE_SERVICE), registry=registry, id="service")(handle_service)
    for kind in kinds.WATCHED:
        kopf.on.event(*_selector(kind), registry=registry, id=kind.plural, param=kind)(handle_child)
