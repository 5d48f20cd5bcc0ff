from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import dns, engine, gobuild, kind, loading, nodeimage, pins, rootfs
from e2e.cluster.archive import Image
from e2e.cluster.kind import Record


def make_node(ready: str = "True") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}]
    return {"kind": "Node", "metadata": {"name": "n"}, "status": {"conditions": conditions}}


def make_deployment(name: str, available: int) -> dict[str, Any]:
    return {"kind": "Deployment", "metadata": {"name": name}, "status": {"availableReplicas": available}}


def test_a_ready_node_with_names_and_storage_has_no_problem() -> None:
    items = [make_node(), make_deployment("coredns", 2), make_deployment("local-path-provisioner", 1)]
    assert kind.problems(items) == []


def test_each_missing_part_is_named() -> None:
    assert kind.problems([make_node("Unknown"), make_deployment("coredns", 0)]) == [
        "node n is not Ready",
        "CoreDNS is not available",
        "the storage provisioner is not available",
    ]
    assert kind.problems([])[0] == "there is no node"


def test_finds_the_default_storage_class() -> None:
    marked = {"metadata": {"annotations": {kind.DEFAULT_CLASS: "true"}}}
    assert kind.has_default_class([{"metadata": {}}, marked])
    assert not kind.has_default_class([{"metadata": {"annotations": None}}])


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    record = Record("localhost/pratique-node:1", private_engine=True, api_port=16443, host_ports=(1, 2, 3, 4))
    record.save(path)
    assert Record.load(path) == record
    for text in ("", "[]", '{"image": "x"}'):
        path.write_text(text)
        assert Record.load(path) is None


def test_only_an_answer_with_records_counts_as_resolved() -> None:
    query = dns.query("kubernetes.default.svc.cluster.local")
    assert struct.unpack(">H", query[:2])[0] == len(query) - 2
    good = b"\0\x20" + query[2:4] + struct.pack(">HHH", 0x8580, 1, 1) + bytes(20)
    assert dns.resolved(good)
    assert not dns.resolved(query)
    assert not dns.resolved(b"")
    assert not dns.resolved(good[:4] + struct.pack(">HHH", 0x8583, 1, 0) + bytes(20))


def test_component_images_get_every_name_that_kubeadm_kind_and_containerd_use() -> None:
    listed = (
        "registry.k8s.io/kube-proxy:v1.34.4\nregistry.k8s.io/coredns/coredns:v1.12.1\nregistry.k8s.io/pause:3.10.1\n"
    )
    constants = """
const kindnetdImage = "docker.io/kindest/kindnetd:v1"
const storageProvisionerImage = "docker.io/kindest/local-path-provisioner:v2"
const storageHelperImage = "docker.io/kindest/local-path-helper:v3"
"""
    names = nodeimage.expected_names(
        listed, kind_sources=constants, containerd_config='sandbox_image = "registry.k8s.io/pause:3.10"'
    )
    assert names == {
        "kube-proxy": ("registry.k8s.io/kube-proxy:v1.34.4",),
        "coredns": ("registry.k8s.io/coredns/coredns:v1.12.1",),
        "pause": ("registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10"),
        "kindnetd": ("docker.io/kindest/kindnetd:v1",),
        "local-path-provisioner": ("docker.io/kindest/local-path-provisioner:v2",),
        "local-path-helper": ("docker.io/kindest/local-path-helper:v3",),
    }


def test_pods_inherit_no_limits_and_get_the_hook() -> None:
    specification = {"process": {"args": ["sh"], "rlimits": [1]}, "hostname": "h"}
    assert nodeimage.pod_specification(specification) == {
        "process": {"args": ["sh"]},
        "hostname": "h",
        "hooks": {"createContainer": [{"path": "/kind/bin/mount-product-files.sh"}]},
    }


def test_program_names_follow_the_rules_of_go() -> None:
    programs = {module.name: module.programs() for module in pins.GO_MODULES}
    assert programs["etcd"] == ("server",)
    assert programs["kindnet"] == ("kindnet",)
    assert programs["containerd"] == ("containerd", "ctr", "containerd-shim-runc-v2")


def test_a_module_is_built_again_when_its_sum_its_flags_or_go_change(tmp_path: Path) -> None:
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "go.mod").write_text("module tool\n")
    (folder / "go.sum").write_text("one\n")
    module = pins.GoModule("tool", (".",), usual_s=1)
    tagged = pins.GoModule("tool", (".",), usual_s=1, tags=("no_zfs",))
    keys = [
        gobuild.module_key(module, version="go1.26", modules=tmp_path),
        gobuild.module_key(module, version="go1.27", modules=tmp_path),
        gobuild.module_key(tagged, version="go1.26", modules=tmp_path),
    ]
    (folder / "go.sum").write_text("two\n")
    keys.append(gobuild.module_key(module, version="go1.26", modules=tmp_path))
    assert len(set(keys)) == len(keys)


def test_every_module_is_pinned_with_checksums() -> None:
    for module in pins.GO_MODULES:
        text = (pins.MODULES / module.name / "go.mod").read_text()
        assert "replace" not in text or "=> ../" not in text
        if "require" in text:
            assert (pins.MODULES / module.name / "go.sum").stat().st_size > 0


def test_only_rules_that_dockerd_added_are_removed() -> None:
    saved = """*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.31.208.0/24 ! -o br-0123456789ab -j MASQUERADE
-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
-A DOCKER -i br-0123456789ab -j RETURN
COMMIT
"""
    assert list(engine.leftover_rules(saved)) == [
        ["-D", "PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "DOCKER"],
        ["-D", "POSTROUTING", "-s", "172.31.208.0/24", "!", "-o", "br-0123456789ab", "-j", "MASQUERADE"],
        ["-F", "DOCKER"],
        ["-X", "DOCKER"],
    ]


def test_reads_the_policy_that_dockerd_will_change() -> None:
    assert engine.forward_policy("-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n") == "DROP"
    assert engine.forward_policy("") == "ACCEPT"


def test_absolute_links_stay_inside_a_root(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/dash").write_text("shell")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/sh").symlink_to("/bin/dash")
    assert rootfs.resolve(tmp_path, "/bin/sh") == tmp_path / "usr/bin/dash"
    (tmp_path / "loop").symlink_to("/loop")
    with pytest.raises(OSError, match="too many links"):
        rootfs.resolve(tmp_path, "/loop")


def test_slimming_deletes_matches_and_never_follows_links(tmp_path: Path) -> None:
    (tmp_path / "usr/share/doc/a").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "usr/share/doc/link").symlink_to("../../../kept")
    rootfs.slim(tmp_path, ["usr/share/doc/*", "nothing/*"])
    assert list((tmp_path / "usr/share/doc").iterdir()) == []
    assert (tmp_path / "kept").is_dir()


def test_only_images_whose_name_the_node_lacks_are_sent() -> None:
    images = [Image((name,), (), {}) for name in ("localhost/a:1", "localhost/b:1")]
    assert loading.missing_images(images, present={"localhost/a:1", "localhost/b:0"}) == [images[1]]


def test_old_images_go_except_the_newest_and_those_in_use() -> None:
    history = [f"localhost/s:{n}" for n in range(loading.KEPT_IN_NODE + 3)]
    old = loading.superseded(
        ["localhost/other:1", "localhost/s:stray", *history], ["localhost/s"], history=history, used={"localhost/s:0"}
    )
    assert sorted(old) == ["localhost/s:1", "localhost/s:2", "localhost/s:stray"]


def make_pod(name: str, state: dict[str, object]) -> dict[str, object]:
    return {"metadata": {"namespace": "demo", "name": name}, "status": {"containerStatuses": [{"state": state}]}}


def test_after_a_restart_a_pod_counts_once_the_kubelet_has_told_what_became_of_it() -> None:
    pods = [
        make_pod("from-before", {"running": {"startedAt": "2026-05-01T10:00:00Z"}}),
        make_pod("again", {"running": {"startedAt": "2026-05-01T10:00:07Z"}}),
        make_pod("waits", {"waiting": {"reason": "CrashLoopBackOff"}}),
        {"metadata": {"namespace": "demo", "name": "pending"}, "status": {"phase": "Pending"}},
    ]
    assert kind.untold_since("2026-05-01T10:00:05.123456789Z", pods) == ["demo/from-before"]
