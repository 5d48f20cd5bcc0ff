"""What belongs to a service comes back when it is disturbed and goes with it; what belongs to others is left alone."""

from copy import deepcopy
from typing import Any

import pytest

from pratique_contract import constants
from pratique_operator import kinds, labels
from pratique_operator.kinds import Kind
from tests.integration.operator.changes import eventually
from tests.integration.operator.world import World

pytestmark = pytest.mark.integration

Manifest = dict[str, Any]


def test_drift_is_repaired(slow_world: World) -> None:
    """Without any resync in time: the watch of each kind must bring the pass."""
    world = slow_world
    world.create()
    world.wait_ready()
    revision = world.target()
    core = world.cluster
    core.patch(kinds.DEPLOYMENT, world.namespace, f"svc-{revision}", {"spec": {"replicas": 3}})
    eventually(
        lambda: child(world, kinds.DEPLOYMENT, f"svc-{revision}")["spec"]["replicas"] == 1, what="replicas are back"
    )
    core.patch(kinds.SERVICE, world.namespace, "svc", {"spec": {"selector": {constants.LABEL_REVISION: "gone"}}})
    eventually(lambda: world.entry() == revision, what="the selector is back")
    for service in ("svc", f"svc-{revision}"):
        core.patch(kinds.SERVICE, world.namespace, service, {"spec": {"publishNotReadyAddresses": True}})
        eventually(
            lambda: not child(world, kinds.SERVICE, service)["spec"].get("publishNotReadyAddresses"),  # noqa: B023
            what="pods that have not passed get no traffic again",
        )
    for kind, name in (
        (kinds.SERVICE, "svc"),
        (kinds.SERVICE, f"svc-{revision}"),
        (kinds.CONFIG_MAP, f"svc-{revision}"),
        (kinds.POD_DISRUPTION_BUDGET, "svc"),
        (kinds.SERVICE_ACCOUNT, "svc"),
        (kinds.NETWORK_POLICY, "svc"),
        (kinds.DEPLOYMENT, f"svc-{revision}"),
    ):
        core._call("DELETE", kind.path(world.namespace, name))
        eventually(lambda k=kind, n=name: core.get(k, world.namespace, n), what=f"{kind.kind} {name} is back")  # type: ignore[misc]
    world.wait_ready()


def by_hand(world: World, kind: Kind, name: str, body: Manifest, *, manager: str = "person") -> Manifest:
    """As somebody sets fields with server-side apply: they are his then, and an apply of ours leaves them where they are."""
    head = {"apiVersion": kind.api_version, "kind": kind.kind}
    metadata = {"name": name, **body.get("metadata", {})}
    query = {"fieldManager": manager, "force": "true"}
    path, apply = kind.path(world.namespace, name), "application/apply-patch+yaml"
    return world.cluster._call(
        "PATCH", path, query=query, body={**head, **body, "metadata": metadata}, content_type=apply
    )


def child(world: World, kind: Kind, name: str) -> Manifest:
    found = world.cluster.get(kind, world.namespace, name)
    assert found is not None, f"{kind.kind} {name} has gone"
    return found


MINE = {"name": "mine", "port": 81, "targetPort": 9999, "protocol": "TCP"}
# What somebody does to the entry Service or the budget: fields he applies beside ours, or writes over the whole.
ROUTED: dict[str, tuple[Kind, Manifest, bool]] = {
    "a key in the selector": (kinds.SERVICE, {"spec": {"selector": {"canary": "no"}}}, False),
    "a port": (kinds.SERVICE, {"spec": {"ports": [MINE]}}, True),
    "an address": (kinds.SERVICE, {"spec": {"externalIPs": ["192.0.2.7"]}}, True),
    "only pods of the client's node": (kinds.SERVICE, {"spec": {"internalTrafficPolicy": "Local"}}, True),
    "an expression in the budget's selector": (
        kinds.POD_DISRUPTION_BUDGET,
        {"spec": {"selector": {"matchExpressions": [{"key": "canary", "operator": "Exists"}]}}},
        False,
    ),
    # The API's lists are whole fields: whoever writes one writes over ours.
    "a rule of the policy": (kinds.NETWORK_POLICY, {"spec": {"ingress": [{}]}}, False),
    "what goes out in the policy": (kinds.NETWORK_POLICY, {"spec": {"egress": [{}]}}, False),
    "other pods in the policy": (
        kinds.NETWORK_POLICY,
        {"spec": {"podSelector": {"matchLabels": {"canary": "no"}}}},
        False,
    ),
}


def test_what_somebody_adds_to_a_child_that_decides_traffic_is_taken_out_again(quick_world: World) -> None:
    """A key more in a Service's selector takes every pod out of it; applying our own fields again leaves others' where they are."""
    world = quick_world
    world.create()
    world.wait_ready()
    before = world.settle()
    built = {kind: child(world, kind, "svc")["spec"] for kind in {kind for kind, *_ in ROUTED.values()}}
    for what, (kind, body, applied) in ROUTED.items():
        done = by_hand(world, kind, "svc", body) if applied else world.cluster.patch(kind, world.namespace, "svc", body)
        assert done["spec"] != built[kind], what
        eventually(lambda k=kind: child(world, k, "svc")["spec"] == built[k], what=f"without {what}")  # type: ignore[misc]
    world.wait_ready()
    after = world.settle()
    changed = {key for key in after if after[key] != before[key]} - {"self"}
    assert changed == {"Service/svc", "PodDisruptionBudget/svc", "NetworkPolicy/svc"}


# With these left where they are, the API server refuses the apply of our own fields.
IN_THE_WAY: dict[str, tuple[Kind, Manifest]] = {
    "whom a load balancer lets in": (
        kinds.SERVICE,
        {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.0/24"]},
    ),
    "a name elsewhere": (
        kinds.SERVICE,
        {"type": "ExternalName", "externalName": "example.com", "internalTrafficPolicy": None},
    ),
    "another way to count": (kinds.POD_DISRUPTION_BUDGET, {"maxUnavailable": None, "minAvailable": 1}),
}
# A Service that had none for a while gets another address.
ADDRESSES = frozenset({"clusterIP", "clusterIPs"})


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_somebody_sets_instead_of_our_fields_does_not_keep_them_out(quick_world: World, what: str) -> None:
    """One child that cannot be written ends the writing of all: nothing would be promoted any more."""
    world = quick_world
    world.create()
    world.wait_ready()
    kind, spec = IN_THE_WAY[what]

    def own() -> Manifest:
        return {key: value for key, value in child(world, kind, "svc")["spec"].items() if key not in ADDRESSES}

    before = own()
    world.cluster.patch(kind, world.namespace, "svc", {"spec": spec})
    eventually(lambda: own() == before, what=f"without {what}")
    world.wait_ready()


def other_probe(pod: Manifest) -> None:
    probe = pod["containers"][0]["readinessProbe"]
    del probe["httpGet"]
    probe["tcpSocket"] = {"port": "http"}


def other_volume(pod: Manifest) -> None:
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "config")
    del volume["configMap"]
    volume["emptyDir"] = {}


def other_value(pod: Manifest) -> None:
    (variable,) = (variable for variable in pod["containers"][0]["env"] if variable["name"] == "A")
    del variable["value"]
    variable["valueFrom"] = {"secretKeyRef": {"name": "x", "key": "y"}}


def test_what_somebody_exchanges_in_a_pod_template_is_exchanged_again(quick_world: World) -> None:
    """Of these the API allows one of several: an apply of ours beside his is refused."""
    world = quick_world
    world.create(template={"spec": {"env": [{"name": "A", "value": "1"}]}})
    world.wait_ready()
    name = f"svc-{world.target()}"
    built = child(world, kinds.DEPLOYMENT, name)["spec"]["template"]["spec"]
    for exchange in (other_probe, other_volume, other_value):
        changed = deepcopy(built)
        exchange(changed)
        world.cluster.patch(kinds.DEPLOYMENT, world.namespace, name, {"spec": {"template": {"spec": changed}}})
        eventually(
            lambda: child(world, kinds.DEPLOYMENT, name)["spec"]["template"]["spec"] == built,
            what=f"without {exchange.__name__}",
        )
    world.wait_ready()


def test_paused_deployment_goes_on(quick_world: World) -> None:
    """What is put back into its template would reach no pod."""
    world = quick_world
    world.create()
    world.wait_ready()
    name = f"svc-{world.target()}"
    world.cluster.patch(kinds.DEPLOYMENT, world.namespace, name, {"spec": {"paused": True}})
    eventually(lambda: "paused" not in child(world, kinds.DEPLOYMENT, name)["spec"], what="it is not paused")


def test_revision_that_is_kept_has_its_service_kept_in_order_too(quick_world: World) -> None:
    world = quick_world
    world.create()
    world.wait_ready()
    stable = world.target()
    world.create(engine={"image": "localhost/none:2"})
    world.wait_ready()
    assert world.target() != stable
    name = f"svc-{stable}"
    built = child(world, kinds.SERVICE, name)["spec"]
    done = world.cluster.patch(kinds.SERVICE, world.namespace, name, {"spec": {"selector": {"canary": "no"}}})
    assert done["spec"] != built
    eventually(lambda: child(world, kinds.SERVICE, name)["spec"] == built, what="it is as it was")


POD_CHANGES: dict[str, Manifest] = {
    "a label": {"metadata": {"labels": {"canary": "yes"}}},
    "a variable": {"spec": {"containers": [{"name": "server", "env": [{"name": "LD_PRELOAD", "value": "/x.so"}]}]}},
    "another program": {"spec": {"containers": [{"name": "server", "command": ["sleep", "1"]}]}},
    "another user": {"spec": {"containers": [{"name": "server", "securityContext": {"runAsUser": 0}}]}},
    "another folder of a volume": {
        "spec": {
            "containers": [
                {
                    "name": "server",
                    "volumeMounts": [{"mountPath": "/tmp", "name": "tmp", "subPath": "x"}],
                }
            ]
        }
    },
    "another file of the release": {
        "spec": {
            "volumes": [{"name": "config", "configMap": {"items": [{"key": "serving.json", "path": "record.json"}]}}]
        }
    },
    "a port of the node": {
        "spec": {
            "containers": [{"name": "server", "ports": [{"containerPort": 8001, "protocol": "TCP", "hostPort": 8001}]}]
        }
    },
    "a probe of another host": {
        "spec": {
            "containers": [
                {"name": "server", "readinessProbe": {"httpGet": {"port": "management", "host": "192.0.2.7"}}}
            ]
        }
    },
    "a gate of its readiness": {"spec": {"readinessGates": [{"conditionType": "example.com/ready"}]}},
    "one name for all pods": {"spec": {"hostname": "pod"}},
    "a container": {"spec": {"containers": [{"name": "more", "image": "localhost/none:9"}]}},
    "a first container": {"spec": {"initContainers": [{"name": "more", "image": "localhost/none:9"}]}},
    "the node's processes": {"spec": {"hostPID": True}},
}


def test_what_somebody_adds_to_the_pods_of_a_deployment_is_taken_out_again(quick_world: World) -> None:
    """The pods of a revision are what its name says. What a tool notes in annotations stays: kubectl rollout restart does."""
    world = quick_world
    world.create()
    world.wait_ready()
    name = f"svc-{world.target()}"
    note = {"metadata": {"annotations": {"example.com/restartedAt": "now"}}}
    built = by_hand(world, kinds.DEPLOYMENT, name, {"spec": {"template": note}}, manager="note")["spec"]["template"]
    for what, added in POD_CHANGES.items():
        done = by_hand(world, kinds.DEPLOYMENT, name, {"spec": {"template": added}})
        assert done["spec"]["template"] != built, what
        eventually(
            lambda: child(world, kinds.DEPLOYMENT, name)["spec"]["template"] == built, what=f"pods without {what}"
        )
    assert built["metadata"]["annotations"]["example.com/restartedAt"] == "now"
    world.wait_ready()
    before = world.settle()
    world.passes(2)
    assert world.versions() == before


def test_second_owner_of_a_child_is_taken_off(quick_world: World) -> None:
    """The garbage collector keeps what anybody else still owns: deleting the service would leave its pods serving."""
    world = quick_world
    world.create()
    world.wait_ready()
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    uid = world.apply({**head, "metadata": {"name": "owner"}})["metadata"]["uid"]
    name = f"svc-{world.target()}"
    built = child(world, kinds.DEPLOYMENT, name)["metadata"]["ownerReferences"]
    owner = {**head, "name": "owner", "uid": uid}
    done = by_hand(world, kinds.DEPLOYMENT, name, {"metadata": {"ownerReferences": [owner]}})
    assert len(done["metadata"]["ownerReferences"]) == 2
    eventually(
        lambda: child(world, kinds.DEPLOYMENT, name)["metadata"]["ownerReferences"] == built,
        what="the service is its only owner again",
    )


def test_name_taken_by_a_stranger_is_told_and_never_overwritten(world: World) -> None:
    body = {"metadata": {"name": "svc"}, "spec": {"selector": {"app": "other"}, "ports": [{"port": 1}]}}
    world.apply({"apiVersion": "v1", "kind": "Service", **body})
    world.create()
    assert "Service svc exists and does not belong to this service" in world.wait_reason("InvalidSpec")["message"]
    found = world.cluster.get(kinds.SERVICE, world.namespace, "svc")
    assert found is not None
    assert found["spec"]["selector"] == {"app": "other"}
    world.cluster._call("DELETE", kinds.SERVICE.path(world.namespace, "svc"))
    world.wait_ready()


@pytest.mark.parametrize("operator_up", [True, False])
def test_deletion_leaves_nothing(own_world: World, operator_up: bool) -> None:
    """nolar/kopf#1305, kaito#932: finalizers that nobody takes away."""
    world = own_world
    world.create()
    world.wait_ready()
    if not operator_up:
        world.operator.stop()
    world.delete()
    eventually(lambda: world.list(kinds.POD) == [] and world.children() == {}, timeout=30, what="nothing is left")
    assert world.cluster.get(kinds.INFERENCE_SERVICE, world.namespace, "svc") is None


def test_service_recreated_under_the_same_name_takes_over_nothing_of_the_old_one(world: World) -> None:
    world.create()
    first = world.wait_ready()["metadata"]["uid"]
    world.delete()
    world.create()
    eventually(lambda: world.service()["metadata"]["uid"] != first, what="another object")
    world.wait_ready(timeout=30)
    owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in world.children().values()}
    assert owners == {world.service()["metadata"]["uid"]}


def test_quick_successive_updates_end_in_the_last_one(world: World) -> None:
    """dynamo#13353: quick successive updates restarted everything."""
    world.create()
    world.wait_ready()
    for number in range(2, 8):
        world.create(engine={"image": f"localhost/none:{number}"})
    world.wait_ready()
    wanted = {
        deployment["metadata"]["name"]: deployment["spec"]["replicas"] for deployment in world.list(kinds.DEPLOYMENT)
    }
    assert {name for name, replicas in wanted.items() if replicas} == {f"svc-{world.target()}"}

    def images() -> set[str]:
        pods = [pod for pod in world.list(kinds.POD) if "deletionTimestamp" not in pod["metadata"]]
        return {pod["spec"]["containers"][0]["image"] for pod in pods}

    # A revision in between may have had its Deployment; its pod goes when the garbage collector comes to it.
    eventually(lambda: images() == {"localhost/none:7"}, what="only pods of the last one are there")


def test_two_operators_share_a_cluster_by_name(world: World) -> None:
    manifest = world.manifest("other")
    manifest["metadata"]["labels"][constants.LABEL_OPERATOR] = "somebody-else"
    world.apply(manifest)
    world.create()
    world.wait_ready()
    assert world.children("other") == {}
    assert "status" not in world.service("other")


def test_what_belongs_to_another_operators_service_costs_no_pass(slow_world: World) -> None:
    """Children carry no operator's name: one operator made passes over all services of all others, at each of their changes."""
    world = slow_world
    world.create()
    world.wait_ready()
    own, config_map = (world.namespace, "svc"), f"svc-{world.target()}"
    for value in ("one", "two"):
        metadata = {"name": "other", "labels": labels.service_labels("other")}
        theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": value}}
        world.cluster.apply(kinds.CONFIG_MAP, world.namespace, theirs)
        # The watch tells things of one kind in their order: with this pass the operator is past the other ConfigMap.
        before = world.operator.passes[own]
        world.cluster.patch(
            kinds.CONFIG_MAP, world.namespace, config_map, {"metadata": {"annotations": {"touched": value}}}
        )
        eventually(lambda seen=before: world.operator.passes[own] > seen, what="a pass over what is ours")  # type: ignore[misc]
    assert set(world.operator.passes) == {own}
    world.cluster._call("DELETE", kinds.CONFIG_MAP.path(world.namespace, "other"))


def test_what_takes_traffic_without_being_one_of_its_pods_is_told_and_not_counted(world: World) -> None:
    """A copy of a pod keeps its labels, and a Service sends traffic to labels: no gate stands before it."""
    world.create(replicas=1)
    world.wait_ready()
    (own,) = world.list(kinds.POD)
    copied = {**own["metadata"]["labels"], "pod-template-hash": "copied"}
    copy = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy", "labels": copied}}
    container = {key: own["spec"]["containers"][0][key] for key in ("name", "image", "ports")}
    placed = {"spec": {**world.kubelet.placement(), "automountServiceAccountToken": False, "containers": [container]}}
    world.cluster.create(kinds.POD, world.namespace, {**copy, **placed})
    told = world.wait_reason("UnverifiedEndpoint", kind="FingerprintVerified")
    assert (told["status"], "pod copy takes traffic" in told["message"]) == ("False", True)
    assert world.status()["serving"]["verifiedReplicas"] == world.status()["readyReplicas"] == 1
    world.cluster._call("DELETE", kinds.POD.path(world.namespace, "copy"))
    world.wait_reason("Verified", kind="FingerprintVerified")
    slice_labels = {**labels.service_labels("svc"), "kubernetes.io/service-name": "svc"}
    endpoints = [{"addresses": ["10.9.9.9"], "conditions": {"ready": True}}]
    written = {"metadata": {"name": "by-hand", "labels": slice_labels}, "addressType": "IPv4", "endpoints": endpoints}
    head = {"apiVersion": kinds.ENDPOINT_SLICE.api_version, "kind": kinds.ENDPOINT_SLICE.kind}
    world.cluster.create(kinds.ENDPOINT_SLICE, world.namespace, {**head, **written})
    assert "10.9.9.9" in world.wait_reason("UnverifiedEndpoint", kind="FingerprintVerified")["message"]
    world.cluster._call("DELETE", kinds.ENDPOINT_SLICE.path(world.namespace, "by-hand"))
    world.wait_reason("Verified", kind="FingerprintVerified")
