"""A crash after any single write: the passes of the next operator end in the same world."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pratique_contract import Reason, ReleaseRecord, Verdict, VerdictResult
from pratique_contract.constants import RECORD_FILE
from pratique_operator import kinds, names
from pratique_operator.cluster import ApiCluster, Cluster, Manifest
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import UnavailableError
from pratique_operator.kinds import Key, Kind
from pratique_operator.pods.facts import PodFacts
from pratique_operator.reconcile import Reconciler
from pratique_operator.release.trust import RecordAnswer
from tests.integration.operator.changes import eventually
from tests.integration.operator.recording import RecordingCluster
from tests.integration.operator.world import World
from tests.support.releases import make_manifest, make_record

pytestmark = pytest.mark.integration

WRITES_OF_A_FIRST_PASS = 8


@pytest.fixture
def settings(settings: OperatorConfig) -> OperatorConfig:
    """Resyncs in quick succession: each of them is a chance to write something."""
    return replace(settings, resync_seconds=1.0)


class DyingCluster(RecordingCluster):
    """Dies right after its n-th write has reached the API server, as a killed process does."""

    def __init__(self, cluster: ApiCluster, writes: int) -> None:
        super().__init__(cluster, set())
        self.left = writes

    def _wrote(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise UnavailableError("killed")

    def create(self, kind: Kind, namespace: str, body: Manifest) -> None:
        super().create(kind, namespace, body)
        if kind != kinds.EVENT:  # a failed Event never ends a pass
            self._wrote()

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


def test_first_deploy_and_update_survive_a_crash_after_each_write(settings: OperatorConfig, idle_world: World) -> None:
    world = idle_world
    services = [f"svc{writes}" for writes in range(1, WRITES_OF_A_FIRST_PASS + 1)]
    for writes, name in enumerate(services, start=1):
        world.create(name)
        die_after(world, settings, name, writes)
    world.operator.start()
    for name in services:
        world.wait_ready(name)
    eventually(lambda: all(len(world.children(name)) == 7 for name in services), what="seven children each")
    before = world.settle_all(services)
    assert before == {name: world.versions(name) for name in services}
    world.operator.stop()
    updated = services[:3]
    for writes, name in enumerate(updated, start=1):
        world.create(name, engine={"image": "localhost/none:2"})
        die_after(world, settings, name, writes)
    world.operator.start()
    for name in updated:
        world.wait_ready(name)
        assert world.entry(name) == world.target(name)


FIRST = make_record()
OTHER = make_record(
    manifest=make_manifest(quantization=make_manifest().quantization.model_copy(update={"dtype": "BF16"}))
)


def trusting(
    cluster: Cluster, config: OperatorConfig, record: ReleaseRecord, before: Callable[[], object]
) -> Reconciler:
    """An operator whose pods prove to be this release and offer it; ``before`` happens between reading and keeping the record."""
    verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="ok", fingerprint=record.fingerprint)

    def offer(_namespace: str, _pod: PodFacts) -> RecordAnswer:
        before()
        return RecordAnswer(200, record.to_json())

    def prove(_namespace: str, pods: list[PodFacts]) -> list[PodFacts]:
        return [replace(pod, verdict=verdict if pod.may_answer else None) for pod in pods]

    return Reconciler(cluster, config, read_verdicts=prove, read_record=offer)


def kept(world: World) -> list[str]:
    """Fingerprints of the records that are kept."""
    found = [c for c in world.list(kinds.CONFIG_MAP) if names.LABEL_DECLARED in c["metadata"]["labels"]]
    return [ReleaseRecord.from_json(config_map["data"][RECORD_FILE]).fingerprint for config_map in found]


def test_first_record_stands_whoever_is_killed_or_comes_second(settings: OperatorConfig, idle_world: World) -> None:
    """One operator is killed between keeping the record and telling it; another one has read another record meanwhile."""
    world, key = idle_world, Key(idle_world.namespace, "svc")
    world.create(replicas=2, release={"policy": "TrustFirst"})
    nothing = lambda: None  # noqa: E731
    trusting(world.cluster, settings, FIRST, nothing).reconcile(key)
    eventually(lambda: any(is_ready(pod) for pod in world.list(kinds.POD)), what="the first pod is ready")

    def first_is_quicker() -> None:
        if not kept(world):
            with pytest.raises(UnavailableError, match="killed"):
                trusting(DyingCluster(world.cluster, 1), settings, FIRST, nothing).reconcile(key)

    second = trusting(world.cluster, settings, OTHER, first_is_quicker)
    second.reconcile(key)
    assert kept(world) == [FIRST.fingerprint]
    second.reconcile(key)
    assert (
        "serves release" in world.condition("FingerprintVerified")["message"]
    )  # what this operator's pods prove is another one
    operator = trusting(world.cluster, settings, FIRST, nothing)
    eventually(lambda: operator.reconcile(key).writes == 0 and len(world.list(kinds.POD)) == 2, what="both pods run")
    assert kept(world) == [FIRST.fingerprint]
    assert world.reason("FingerprintVerified") == "RecordedNotApproved"


def is_ready(pod: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
