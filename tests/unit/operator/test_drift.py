"""What others added to a child: what may stay, and the patch that takes out what may not."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_operator.desired import children as build
from pratique_operator.drift import contains, find_excess, name_fields
from tests.unit.operator.worlds import make_owner, make_target

Manifest = dict[str, Any]

KEYS = st.text("abc", min_size=1, max_size=2)
VALUES = st.recursive(
    st.integers() | st.text("abc", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def deployment() -> Manifest:
    return build.build_deployment(make_owner(), make_target(), replicas=1, marks={}, progress_deadline_seconds=60)


def patched(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    old = value if isinstance(value, dict) else {}
    kept = {key: inner for key, inner in old.items() if key not in patch}
    return {**kept, **{key: patched(old.get(key), inner) for key, inner in patch.items() if inner is not None}}


BUILT: dict[str, Manifest] = {
    "entry": build.build_entry_service(make_owner(), "rev"),
    "revision": build.build_revision_service(make_owner(), "rev"),
    "budget": build.build_disruption_budget(make_owner(), "rev"),
    "account": build.build_service_account(make_owner()),
    "deployment": deployment(),
}


@pytest.mark.parametrize("name", BUILT)
def test_what_we_build_has_nothing_too_much(name: str) -> None:
    assert find_excess(BUILT[name], BUILT[name]) == {}


ADDED: dict[str, tuple[str, Manifest]] = {
    "selector": ("entry", {"spec": {"selector": {"canary": "no"}}}),
    "selector of a revision": ("revision", {"spec": {"selector": {"canary": "no"}}}),
    "addresses": ("entry", {"spec": {"externalIPs": ["192.0.2.7"]}}),
    "budget": ("budget", {"spec": {"selector": {"matchLabels": {"canary": "no"}}}}),
    "another way to count": ("budget", {"spec": {"minAvailable": 1}}),
    "whom a load balancer lets in": ("entry", {"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}}),
    "a name elsewhere": ("entry", {"spec": {"externalName": "example.com"}}),
    "a pause": ("deployment", {"spec": {"paused": True}}),
    "expressions": ("budget", {"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}}),
    "labels of pods": ("deployment", {"spec": {"template": {"metadata": {"labels": {"canary": "no"}}}}}),
    "first containers": ("deployment", {"spec": {"template": {"spec": {"initContainers": [{"name": "x"}]}}}}),
    "one name for all pods": ("deployment", {"spec": {"template": {"spec": {"hostname": "x"}}}}),
    "gates": ("deployment", {"spec": {"template": {"spec": {"readinessGates": [{"conditionType": "x"}]}}}}),
    "the node's network": ("deployment", {"spec": {"template": {"spec": {"hostNetwork": True}}}}),
}


@pytest.mark.parametrize("what", ADDED)
def test_key_that_decides_traffic_or_what_runs_is_patched_out(what: str) -> None:
    name, added = ADDED[what]
    observed = patched(deepcopy(BUILT[name]), added)
    assert contains(observed, BUILT[name])  # an apply would change nothing
    excess = find_excess(observed, BUILT[name])
    assert patched(observed, excess) == BUILT[name]
    assert len(list(name_fields(excess))) == 1


@pytest.mark.parametrize("key", ["command", "envFrom", "workingDir", "lifecycle", "volumeDevices"])
def test_what_makes_a_container_run_something_else_is_patched_out(key: str) -> None:
    observed = deepcopy(BUILT["deployment"])
    container = observed["spec"]["template"]["spec"]["containers"][0]
    intent = deepcopy(BUILT["deployment"])
    container[key] = ["x"]
    # The service's own preStop is one field of the container, and stays when nothing was added to it.
    intent["spec"]["template"]["spec"]["containers"][0].pop(key, None)
    excess = find_excess(observed, intent)
    assert list(name_fields(excess)) == ["spec.template.spec.containers"]
    assert patched(observed, excess) == intent


@pytest.mark.parametrize(
    ("field", "added"),
    [("securityContext", {"runAsUser": 0}), ("lifecycle", {"postStart": {"exec": {"command": ["x"]}}})],
)
def test_what_loosens_a_container_is_patched_out(field: str, added: Manifest) -> None:
    observed = deepcopy(BUILT["deployment"])
    observed["spec"]["template"]["spec"]["containers"][0][field] |= added
    assert patched(observed, find_excess(observed, BUILT["deployment"])) == BUILT["deployment"]


CHANGED: dict[str, tuple[str, Manifest]] = {
    "a folder of a volume": ("volumeMounts", {"subPath": "x"}),
    "a port of the node": ("ports", {"hostPort": 8001}),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_is_added_to_an_item_of_a_container_is_patched_out(what: str) -> None:
    field, added = CHANGED[what]
    observed = deepcopy(BUILT["deployment"])
    observed["spec"]["template"]["spec"]["containers"][0][field][0] |= added
    assert patched(observed, find_excess(observed, BUILT["deployment"])) == BUILT["deployment"]


@pytest.mark.parametrize(
    ("place", "added"),
    [
        (("volumes", 0), {"emptyDir": {}}),
        (("containers", 0, "env", 0), {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}),
        (("containers", 0, "readinessProbe"), {"tcpSocket": {"port": 1}}),
        (("containers", 0, "livenessProbe"), {"exec": {"command": ["true"]}}),
        (("containers", 0, "startupProbe"), {"grpc": {"port": 1}}),
    ],
)
def test_what_the_api_allows_one_of_is_what_we_chose(place: tuple[str | int, ...], added: Manifest) -> None:
    """Whether somebody has put his own in its stead or beside it."""
    observed = deepcopy(BUILT["deployment"])
    found: Any = observed["spec"]["template"]["spec"]
    for part in place:
        found = found[part]
    found |= added
    assert patched(observed, find_excess(observed, BUILT["deployment"])) == BUILT["deployment"]
    for key in {"configMap", "value", "httpGet"} & set(found):
        del found[key]
    assert patched(observed, find_excess(observed, BUILT["deployment"])) == BUILT["deployment"]


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probe_asks_this_pod_and_nobody_else(probe: str) -> None:
    observed = deepcopy(BUILT["deployment"])
    found = observed["spec"]["template"]["spec"]["containers"][0][probe]
    found |= {"successThreshold": 1, "terminationGracePeriodSeconds": 1}
    if "httpGet" in found:
        found["httpGet"] |= {"scheme": "HTTP", "host": "192.0.2.7", "httpHeaders": [{"name": "a", "value": "b"}]}
    after = patched(observed, find_excess(observed, BUILT["deployment"]))
    assert after == BUILT["deployment"]  # the API server fills in the rest again


@pytest.mark.parametrize(
    "added", [{"items": [{"key": "a", "path": "b"}]}, {"optional": True}, {"items": [], "defaultMode": 420}]
)
def test_volume_shows_the_files_it_was_made_for(added: Manifest) -> None:
    observed = deepcopy(BUILT["deployment"])
    (config,) = [v for v in observed["spec"]["template"]["spec"]["volumes"] if "configMap" in v]
    config["configMap"] |= added
    assert patched(observed, find_excess(observed, BUILT["deployment"])) == BUILT["deployment"]


def test_item_of_another_manager_in_a_list_of_ours_is_patched_out() -> None:
    """An apply leaves it, so that each pass would apply for nothing."""
    for path in (("spec", "ports"), ("metadata", "ownerReferences")):
        observed = deepcopy(BUILT["entry"])
        observed[path[0]][path[1]].insert(0, {"name": "theirs"})
        excess = find_excess(observed, BUILT["entry"])
        assert list(name_fields(excess)) == [".".join(path)]
        assert patched(observed, excess) == BUILT["entry"]


def test_what_the_server_fills_in_and_what_tools_note_is_theirs() -> None:
    observed = deepcopy(BUILT["deployment"])
    observed["metadata"] |= {"finalizers": ["x/y"], "resourceVersion": "1"}
    observed["metadata"]["labels"]["argocd"] = observed["metadata"]["annotations"]["argocd"] = "app"
    template = observed["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = "now"
    template["spec"] |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "x"}
    container = template["spec"]["containers"][0]
    container["terminationMessagePath"] = "/dev/termination-log"
    container["readinessProbe"] |= {"successThreshold": 1}
    container["readinessProbe"]["httpGet"] |= {"scheme": "HTTP"}
    template["spec"]["volumes"][0]["configMap"] |= {"defaultMode": 420}
    observed["status"] = {"replicas": 1}
    assert find_excess(observed, BUILT["deployment"]) == {}


@given(st.dictionaries(KEYS, VALUES, max_size=3), st.dictionaries(KEYS, VALUES, max_size=3))
def test_a_selector_is_the_intent_again_whatever_somebody_made_of_it(observed: Manifest, intent: Manifest) -> None:
    """Together with the apply of our fields, at any depth."""
    wanted = {"kind": "Service", "spec": {"selector": intent}}
    stored = {"kind": "Service", "spec": {"selector": patched(observed, intent)}}
    assert patched(stored, find_excess(stored, wanted)) == wanted
