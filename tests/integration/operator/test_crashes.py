"""A crash after any single write: the passes of the next operator end in the same world."""

import pytest

from pratique_operator.cluster import ApiCluster, Manifest
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import UnavailableError
from pratique_operator.kinds import Kind
from pratique_operator.observe import Key
from pratique_operator.pods import PodFacts
from pratique_operator.reconcile import Reconciler
from pratique_operator.trust import RecordAnswer
from tests.integration.operator.conftest import Base, World, eventually
from tests.integration.operator.recording import RecordingCluster

pytestmark = pytest.mark.integration

WRITES_OF_A_FIRST_PASS = 7


class DyingCluster(RecordingCluster):
    """Dies right after its n-th write has reached the API server, as a killed process does."""

    def __init__(self, cluster: ApiCluster, writes: int) -> None:
        super().__init__(cluster, set())
        self.left = writes

    def _wrote(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise UnavailableError("killed")

    def apply(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        result = super().apply(kind, namespace, body)
        self._wrote()
        return result

    def patch(self, kind: Kind, namespace: str, name: str, body: Manifest, **more: object) -> Manifest:
        result = super().patch(kind, namespace, name, body, **more)
        self._wrote()
        return result

    def delete(self, kind: Kind, namespace: str, name: str, **more: object) -> None:
        super().delete(kind, namespace, name, **more)
        self._wrote()


def no_record(_namespace: str, _pod: PodFacts) -> RecordAnswer:
    raise AssertionError("no service here trusts its first pod")


def die_after(world: World, config: OperatorConfig, name: str, writes: int) -> None:
    """One pass that is killed after so many writes; fails when the pass makes fewer."""
    cluster = DyingCluster(world.cluster, writes)
    reconciler = Reconciler(cluster, config, read_verdicts=lambda _namespace, pods: pods, read_record=no_record)
    with pytest.raises(UnavailableError, match="killed"):
        reconciler.reconcile(Key(world.namespace, name))


def test_first_deploy_and_update_survive_a_crash_after_each_write(
    base: Base, settings: OperatorConfig, idle_world: World
) -> None:
    world = idle_world
    names = [f"svc{writes}" for writes in range(1, WRITES_OF_A_FIRST_PASS + 1)]
    for writes, name in enumerate(names, start=1):
        world.create(name)
        die_after(world, settings, name, writes)
    world.operator.start()
    for name in names:
        world.wait_ready(name)
    eventually(lambda: all(len(world.children(name)) == 6 for name in names), what="six children each")
    before = world.settle_all(names)
    assert before == {name: world.versions(name) for name in names}
    world.operator.stop()
    updated = names[:3]
    for writes, name in enumerate(updated, start=1):
        world.create(name, engine={"image": "localhost/none:2"})
        die_after(world, settings, name, writes)
    world.operator.start()
    for name in updated:
        world.wait_ready(name)
        assert world.entry(name) == world.target(name)
