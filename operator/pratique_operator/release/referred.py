"""The objects of users that services refer to (ConfigMaps, Secrets), and which of them changed since they were last read.

They carry no label of ours, so they are not watched: that would need the right to list every Secret and the memory for every
ConfigMap. Instead each one's version is asked for every ``reference_seconds``, metadata only, with the right to get that a pass needs
anyway.
"""

import logging
import threading
from collections.abc import Mapping

from pratique_operator import kinds
from pratique_operator.cluster import Cluster
from pratique_operator.errors import OperatorError
from pratique_operator.kinds import Key
from pratique_operator.release.references import Reference

LOG = logging.getLogger(__name__)

Versions = Mapping[Reference, str | None]


class ReferredObjects:
    """What the last pass of each service read: the version of every object, None for one that was not there. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[Key, dict[Reference, str | None]] = {}

    def remember(self, key: Key, versions: Versions) -> None:
        with self._lock:
            self._versions[key] = dict(versions)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._versions.pop(key, None)

    def find_changed(self, cluster: Cluster) -> set[Key]:
        """Services with a referred object that is another one now; an object that could not be read counts as unchanged."""
        with self._lock:
            known = {key: dict(versions) for key, versions in self._versions.items()}
        asked = {(key.namespace, reference) for key, versions in known.items() for reference in versions}
        current: dict[tuple[str, Reference], str | None] = {}
        for namespace, reference in sorted(asked):
            try:
                kind = kinds.BY_NAME[reference.kind]
                current[namespace, reference] = cluster.version(kind, namespace, reference.name)
            except OperatorError as error:
                LOG.debug("Referred object was not read: %s/%s: %s", namespace, reference.name, error)
        return {
            key
            for key, versions in known.items()
            if any(
                current.get((key.namespace, reference), version) != version for reference, version in versions.items()
            )
        }
