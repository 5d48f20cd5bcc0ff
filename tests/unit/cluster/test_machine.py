from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import engine, kind, nodeimage
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import CAP_SYS_RESOURCE, Machine, cgroup_version, has_capability
from e2e.cluster.settings import Settings, first_free, from_environment


def make_machine(*, sys_resource: bool = True, cgroup: int = 2) -> Machine:
    return Machine(root=True, sys_resource=sys_resource, cgroup=cgroup)


@pytest.mark.parametrize(("bounding", "expected"), [("000001ffffffffff", True), ("000001fffeffffff", False)])
def test_reads_a_capability_from_the_bounding_set(bounding: str, expected: bool) -> None:
    status = f"Name:\tpython\nCapEff:\t000001ffffffffff\nCapBnd:\t{bounding}\n"
    assert has_capability(status, CAP_SYS_RESOURCE) is expected


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", 2),
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", 1),
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", 1),
    ],
)
def test_a_hybrid_hierarchy_counts_as_version_one(mounts: str, version: int) -> None:
    assert cgroup_version(mounts) == version


def test_the_runtime_wrapper_is_used_only_where_the_capability_is_missing() -> None:
    assert engine.daemon_configuration(make_machine(sys_resource=True)) == {}
    bounded = engine.daemon_configuration(make_machine(sys_resource=False))
    assert bounded["default-runtime"] == "bounded"


def test_oom_scores_are_restricted_only_where_the_capability_is_missing() -> None:
    text = 'snapshotter = "overlayfs"\nrestrict_oom_score_adj = false\n'
    assert nodeimage.containerd_configuration(text, sys_resource=True) == text
    assert "restrict_oom_score_adj = true" in nodeimage.containerd_configuration(text, sys_resource=False)


def test_kubelet_is_told_to_accept_cgroup_v1_only_there() -> None:
    settings = Settings(cache=Path("/cache"))
    assert kind.configuration(settings, api_port=1, machine=make_machine(cgroup=2))["kubeadmConfigPatches"] == []
    (patch,) = kind.configuration(settings, api_port=1, machine=make_machine(cgroup=1))["kubeadmConfigPatches"]
    assert "failCgroupV1: false" in patch


def test_everything_listens_on_the_loopback_address_only() -> None:
    settings = Settings(cache=Path("/cache"), host_ports=(1, 2, 3, 4))
    rendered = kind.configuration(settings, api_port=16443, machine=make_machine())
    (node,) = rendered["nodes"]
    assert rendered["networking"]["apiServerAddress"] == "127.0.0.1"
    assert [(p["containerPort"], p["hostPort"], p["listenAddress"]) for p in node["extraPortMappings"]] == [
        (30080, 1, "127.0.0.1"),
        (30081, 2, "127.0.0.1"),
        (30082, 3, "127.0.0.1"),
        (30083, 4, "127.0.0.1"),
    ]
    assert node["extraMounts"] == [
        {"hostPath": "/cache/models", "containerPath": "/var/lib/pratique/models", "readOnly": False}
    ]


def test_settings_come_from_the_environment() -> None:
    environment = {"PRATIQUE_CACHE": "/c", "PRATIQUE_CLUSTER": "existing", "PRATIQUE_NODE_PORTS": "1,2,3,4"}
    settings = from_environment(environment, home=Path("/home/a"))
    assert (settings.cache, settings.provider, settings.host_ports) == (Path("/c"), "existing", (1, 2, 3, 4))
    assert from_environment({}, home=Path("/home/a")).kubeconfig == Path("/home/a/.cache/pratique/kubeconfig")
    assert from_environment(environment, home=Path("/"), provider="auto").provider == "auto"


@pytest.mark.parametrize(
    "environment", [{"PRATIQUE_CLUSTER": "minikube"}, {"PRATIQUE_NODE_PORTS": "1,2"}, {"PRATIQUE_API_PORT": "http"}]
)
def test_settings_that_make_no_sense_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ClusterError):
        from_environment(environment, home=Path("/"))


def test_a_taken_port_is_stepped_over() -> None:
    assert first_free(16443, free=lambda port: port >= 16445) == 16445
    with pytest.raises(ClusterError):
        first_free(1, free=lambda _: False, tries=3)
