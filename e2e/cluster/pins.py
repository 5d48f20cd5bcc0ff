"""Every version, package list and name that decides what the cluster is made of. Go dependencies are pinned in
`modules/*/go.mod`; the versions here say which binary is which and under which tag kind expects it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
MODULES = HERE / "modules"

KUBERNETES = "v1.34.4"
CONTAINERD = "v2.3.4"
KIND = "v0.33.0"
KIND_MODULE = "sigs.k8s.io/kind"

CLUSTER = "pratique"
NODE = f"{CLUSTER}-control-plane"
NODE_MODELS = "/var/lib/pratique/models"
PUBLISHED_NODE_IMAGE = f"docker.io/kindest/node:{KUBERNETES}"
LOCAL_NODE_REPOSITORY = "localhost/pratique-node"
BASE_NODE_REPOSITORY = "localhost/pratique-node-base"

DEBIAN_SUITE = "bookworm"

# Unpacked into the cache, never installed: their maintainer scripts would start services on this machine.
UNPACKED_PACKAGES = ("docker.io", "containerd", "runc")
# Installed: each is a tool that the unpacked programs or this package call, or a library they link.
INSTALLED_PACKAGES = {
    "iptables": "/usr/sbin/iptables",
    "debootstrap": "/usr/sbin/debootstrap",
    "libdevmapper1.02.1": "/usr/lib/x86_64-linux-gnu/libdevmapper.so.1.02.1",
    "libseccomp2": "/usr/lib/x86_64-linux-gnu/libseccomp.so.2",
    "zstd": "/usr/bin/zstd",
}

# The packages of kind's own base image, less network storage and rootless support, plus what Debian's runc replaces.
NODE_PACKAGES = (
    "bash", "ca-certificates", "conntrack", "curl", "e2fsprogs", "ethtool", "iproute2", "iptables", "iputils-ping",
    "jq", "kmod", "libseccomp2", "mount", "nftables", "pigz", "procps", "runc", "socat", "systemd", "util-linux",
)  # fmt: skip
APPLICATION_PACKAGES = ("ca-certificates", "python3", "tzdata")


@dataclass(frozen=True)
class GoModule:
    """One directory under `modules/` and the programs it builds.

    `packages` are import paths ("." is the module's own main package); `usual_s` is the cold build time on two cores.
    """

    name: str
    packages: tuple[str, ...]
    usual_s: int
    tags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def programs(self) -> tuple[str, ...]:
        """File names of the built programs: the last path element, except a major version suffix."""
        return tuple(self._program(package) for package in self.packages)

    def _program(self, package: str) -> str:
        if package == ".":
            return self.name
        parts = package.split("/")
        last = parts[-1]
        return parts[-2] if last[:1] == "v" and last[1:].isdigit() else last


_VERSION_PACKAGE = "k8s.io/component-base/version"
_CNI = "github.com/containernetworking/plugins/plugins"

KUBERNETES_PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "kubeadm",
)  # fmt: skip
KUBERNETES_MODULE = GoModule(
    name="kubernetes",
    packages=tuple(f"k8s.io/kubernetes/cmd/{program}" for program in KUBERNETES_PROGRAMS),
    usual_s=320,
    variables=(
        (f"{_VERSION_PACKAGE}.gitVersion", KUBERNETES),
        (f"{_VERSION_PACKAGE}.gitMajor", "1"),
        (f"{_VERSION_PACKAGE}.gitMinor", KUBERNETES.split(".")[1]),
        # kubectl prints both; without a value it prints "archive" and a template.
        (f"{_VERSION_PACKAGE}.gitTreeState", "clean"),
        (f"{_VERSION_PACKAGE}.buildDate", "1970-01-01T00:00:00Z"),
    ),
)
KIND_TOOL = GoModule(name="kind", packages=(KIND_MODULE,), usual_s=5)
# In the order in which they are built: the longest first, and those that share its packages right behind it.
GO_MODULES = (
    KUBERNETES_MODULE,
    GoModule(name="local-path-provisioner", packages=("github.com/rancher/local-path-provisioner",), usual_s=35),
    GoModule(name="coredns", packages=(".",), usual_s=45),
    GoModule(
        name="containerd",
        packages=tuple(
            f"github.com/containerd/containerd/v2/cmd/{program}"
            for program in ("containerd", "ctr", "containerd-shim-runc-v2")
        ),
        usual_s=40,
        # The snapshotters that kind leaves out too: nothing in a node selects them.
        tags=("no_aufs", "no_zfs", "no_btrfs", "no_devmapper"),
        variables=(("github.com/containerd/containerd/v2/version.Version", CONTAINERD),),
    ),
    GoModule(name="etcd", packages=("go.etcd.io/etcd/server/v3",), usual_s=20),
    GoModule(name="cri-tools", packages=("sigs.k8s.io/cri-tools/cmd/crictl",), usual_s=25),
    GoModule(
        name="cni",
        packages=tuple(
            f"{_CNI}/{plugin}"
            for plugin in ("ipam/host-local", "main/loopback", "main/ptp", "main/bridge", "meta/portmap")
        ),
        usual_s=5,
    ),
    GoModule(name="kindnet", packages=(".",), usual_s=5),
    GoModule(name="pause", packages=(".",), usual_s=5),
    KIND_TOOL,
)
