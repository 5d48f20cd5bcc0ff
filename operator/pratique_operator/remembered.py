"""Lists of children that seldom change, kept between passes until something tells that they may be others by now: an event of the watch
that starts the passes anyway, a write of our own, or age.

A rollout is dozens of passes in which ServiceAccount, policy, budget, Services and ConfigMaps stay as they are, and the ConfigMaps hold
whole release records. What decides in each pass anew, pods, endpoints and Deployments, is never kept (docs/decisions/0020).
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pratique_operator import kinds
from pratique_operator.cluster import Cluster, Manifest
from pratique_operator.kinds import Kind

KEPT: Final = frozenset(
    {kinds.SERVICE_ACCOUNT, kinds.NETWORK_POLICY, kinds.CONFIG_MAP, kinds.SERVICE, kinds.POD_DISRUPTION_BUDGET}
)
# Twenty revisions with a record each are some megabytes a service; the operator's memory is the chart's to limit, not its users'.
CHARACTERS_MAX: Final = 64 * 1024 * 1024
_OBJECT_CHARACTERS: Final = 2000


@dataclass(frozen=True)
class _Kept:
    read_at: float
    changes: int
    objects: tuple[Manifest, ...]
    characters: int


class RememberedLists(Cluster):
    """A ``Cluster`` that asks for some lists only when they may have changed. What it returns is shared: nobody may alter it.

    ``seconds`` is how old a list may get, for changes that no watch told of. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        seconds: float,
        characters_max: int = CHARACTERS_MAX,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._characters_max = characters_max
        self._now = now
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Kind, str, str], _Kept] = OrderedDict()
        self._changes: Counter[tuple[Kind, str]] = Counter()

    def changed(self, kind: Kind, namespace: str) -> None:
        """Some object of the kind is another one now. None of the namespace's lists is good any more: an object whose labels change
        leaves one list and enters another."""
        with self._lock:
            self._changes[kind, namespace] += 1

    def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        if kind not in KEPT or namespace is None or fields:
            return self._cluster.list(kind, namespace, selector, fields=fields)
        place, started = (kind, namespace, selector), self._now()
        with self._lock:
            kept = self._kept.get(place)
            changes = self._changes[kind, namespace]
        if kept is not None and kept.changes == changes and started - kept.read_at < self._seconds:
            return list(kept.objects)
        found = self._cluster.list(kind, namespace, selector)
        # Good for the changes told of before: one that was told of meanwhile may or may not be in the answer.
        with self._lock:
            self._keep(place, _Kept(started, changes, tuple(found), sum(map(_characters, found))))
        return found

    def _keep(self, place: tuple[Kind, str, str], kept: _Kept) -> None:
        """And let go of the oldest, as long as they are too old or all of it is too much."""
        self._kept.pop(place, None)
        self._kept[place] = kept
        characters = sum(other.characters for other in self._kept.values())
        for oldest, other in list(self._kept.items()):
            if characters <= self._characters_max and kept.read_at - other.read_at < self._seconds:
                break
            del self._kept[oldest]
            characters -= other.characters

    @contextmanager
    def _changing(self, kind: Kind, namespace: str) -> Iterator[None]:
        """Whatever comes of the write: one that failed may have been carried out, or has met something that the list does not hold."""
        try:
            yield
        finally:
            self.changed(kind, namespace)

    def create(self, kind: Kind, namespace: str, body: Manifest) -> None:
        with self._changing(kind, namespace):
            self._cluster.create(kind, namespace, body)

    def apply(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        with self._changing(kind, namespace):
            return self._cluster.apply(kind, namespace, body)

    def patch(
        self, kind: Kind, namespace: str, name: str, body: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        with self._changing(kind, namespace):
            return self._cluster.patch(kind, namespace, name, body, subresource=subresource)

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        with self._changing(kind, namespace):
            self._cluster.delete(kind, namespace, name, uid=uid)

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return self._cluster.get(kind, namespace, name)

    def version(self, kind: Kind, namespace: str, name: str) -> str | None:
        return self._cluster.version(kind, namespace, name)

    def read_pod(self, namespace: str, pod: str, port: int, path: str, *, timeout_seconds: float) -> str:
        return self._cluster.read_pod(namespace, pod, port, path, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        self._cluster.close()


def _characters(found: Manifest) -> int:
    parts = (found.get(part) or {} for part in ("data", "binaryData"))
    return _OBJECT_CHARACTERS + sum(len(str(text)) for part in parts for text in part.values())
