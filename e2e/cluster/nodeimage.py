"""The node image: kind's own `build node-image`, fed with programs and a root file system that we made.

Three inputs are prepared. The *base* is a Debian root with kind's own base files (read from kind's Go module), the
container runtime and the CNI plug-ins. The *component images* hold one Go program each under the names that kubeadm
and kind expect. The *server tarball* has the layout of a Kubernetes release, so that kind needs to pull nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster import archive, gobuild, pins, rootfs
from e2e.cluster.archive import Image, Layer, Source
from e2e.cluster.content import digest_of, digest_of_files
from e2e.cluster.engine import Engine
from e2e.cluster.machine import Machine
from e2e.cluster.progress import Progress, output, run

PATH_VARIABLE = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CNI_PLUGINS = ("host-local", "loopback", "ptp", "portmap", "bridge")
RUNTIME = ("containerd", "ctr", "containerd-shim-runc-v2", "crictl")
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
UNITS = ("kubelet", "containerd", "undo-mount-hacks")
NETWORK_TOOLS = ("nft", "conntrack", "ip", "xtables-nft-multi", "kmod")
IPTABLES_NAMES = tuple(
    f"{family}{action}" for family in ("iptables", "ip6tables") for action in ("", "-save", "-restore")
)
XTABLES = "usr/lib/x86_64-linux-gnu/xtables"


def reference(*, root_key: str, machine: Machine, go_version: str) -> str:
    """The node image's name; equal inputs, equal name."""
    programs = [gobuild.module_key(module, version=go_version) for module in pins.GO_MODULES]
    recipe = digest_of_files(pins.HERE, [pins.HERE / "nodeimage.py"])
    key = digest_of(programs, root_key, machine.sys_resource, recipe)
    return f"{pins.LOCAL_NODE_REPOSITORY}:{pins.KUBERNETES}-{key}"


def build(
    name: str,
    *,
    engine: Engine,
    root: Path,
    programs: Mapping[str, Path],
    machine: Machine,
    progress: Progress,
    work: Path,
    logs: Path,
) -> None:
    """Build the image `name` in the engine."""
    work.mkdir(parents=True, exist_ok=True)
    source = gobuild.module_source(pins.KIND_MODULE, pins.KIND_TOOL)
    base_name = f"{pins.BASE_NODE_REPOSITORY}:{name.rpartition(':')[2]}"
    with tempfile.TemporaryDirectory(prefix="node-image-", dir=work) as scratch:
        stage = Path(scratch)
        with progress.step("Packing the node's base image", usual_s=10):
            _load_base(
                base_name, engine=engine, root=root, programs=programs, machine=machine, kind=source, stage=stage
            )
        with progress.step("Packing the Kubernetes images", usual_s=25):
            tarball = _server_tarball(stage, root=root, programs=programs, kind=source)
        with progress.step("Building the node image with kind", usual_s=30):
            command = ["kind", "build", "node-image", "--type", "file", "--arch", "amd64"]
            command += ["--base-image", base_name, "--image", name, str(tarball)]
            environment = dict(engine.environment, PATH=f"{programs['kind'].parent}:{engine.path}")
            run(command, log=logs / "node-image.log", env=environment)


# --- base -----------------------------------------------------------------------------------------------------------


def _load_base(
    name: str,
    *,
    engine: Engine,
    root: Path,
    programs: Mapping[str, Path],
    machine: Machine,
    kind: Path,
    stage: Path,
) -> None:
    overlay = stage / "overlay"
    _copy_kind_files(kind / "images/base/files", overlay)
    for program in RUNTIME:
        _install(programs[program], overlay / "usr/local/bin")
    for plugin in CNI_PLUGINS:
        _install(programs[plugin], overlay / "opt/cni/bin")
    (overlay / "etc/kubernetes/manifests").mkdir(parents=True)
    _enable_units(overlay, root)
    configuration = overlay / "etc/containerd/config.toml"
    configuration.write_text(containerd_configuration(configuration.read_text(), sys_resource=machine.sys_resource))
    specification = json.loads(output([programs["ctr"], "oci", "spec"]))
    (overlay / "etc/containerd/cri-base.json").write_text(json.dumps(pod_specification(specification)))
    layer = archive.write_layer(
        stage / "base.tar", [Source(root, keep_owner=True), Source(overlay)], compression="none"
    )
    entrypoint = ["/usr/local/bin/entrypoint", "/sbin/init"]
    # systemd stops on SIGRTMIN+3 and looks for `container` to know where it is.
    config = {"Env": [PATH_VARIABLE, "container=docker"], "StopSignal": "SIGRTMIN+3", "Entrypoint": entrypoint}
    archive.write_docker_archive(stage / "base-image.tar", [Image((name,), (layer,), config)])
    layer.file.unlink()
    engine.docker("load", "--input", str(stage / "base-image.tar"), timeout_s=300)
    (stage / "base-image.tar").unlink()


def _copy_kind_files(files: Path, overlay: Path) -> None:
    """kind's base files with the modes of its Dockerfile: programs 0755, everything else 0644."""
    for source in sorted(path for path in files.rglob("*") if path.is_file()):
        relative = source.relative_to(files)
        target = overlay / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        executable = relative.is_relative_to("usr/local/bin") or relative.is_relative_to("kind/bin")
        target.chmod(0o755 if executable else 0o644)


def _enable_units(overlay: Path, root: Path) -> None:
    """What `systemctl enable` and `mask` do, without running the node's systemctl."""
    wants = overlay / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    for unit in UNITS:
        (wants / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    # It would register formats in the kernel that is shared with this machine.
    (overlay / "etc/systemd/system/systemd-binfmt.service").symlink_to("/dev/null")
    (overlay / "usr/sbin").mkdir(parents=True)
    (overlay / "usr/sbin/init").symlink_to("/usr/lib/systemd/systemd")
    journald = overlay / "etc/systemd/journald.conf"
    journald.write_text((root / "etc/systemd/journald.conf").read_text() + "ReadKMsg=no\n")


def containerd_configuration(text: str, *, sys_resource: bool) -> str:
    """kind's containerd configuration. Without CAP_SYS_RESOURCE runc may not lower an OOM score, and every sandbox
    would fail to start."""
    if sys_resource:
        return text
    return text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")


def pod_specification(specification: dict[str, Any]) -> dict[str, Any]:
    """The base runtime specification of pods: no limits of its own, and kind's hook that hides the machine's id."""
    process = {key: value for key, value in specification["process"].items() if key != "rlimits"}
    hooks = dict(specification.get("hooks") or {})
    hooks["createContainer"] = [*hooks.get("createContainer", []), {"path": "/kind/bin/mount-product-files.sh"}]
    return specification | {"process": process, "hooks": hooks}


def _install(program: Path, folder: Path, *, name: str | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (name or program.name)
    shutil.copyfile(program, target)
    target.chmod(0o755)


# --- component images -----------------------------------------------------------------------------------------------


def expected_names(listed: str, *, kind_sources: str, containerd_config: str) -> dict[str, tuple[str, ...]]:
    """Which names each component image must have.

    From `kubeadm config images list`, from the constants in kind's sources, and from the sandbox image in containerd's
    configuration (a second name for the pause image).
    """
    names: dict[str, tuple[str, ...]] = {line.rpartition(":")[0].rpartition("/")[2]: (line,) for line in listed.split()}
    for key, constant in (
        ("kindnetd", "kindnetdImage"),
        ("local-path-provisioner", "storageProvisionerImage"),
        ("local-path-helper", "storageHelperImage"),
    ):
        names[key] = (_match(rf'{constant} = "([^"]+)"', kind_sources),)
    sandbox = _match(r'sandbox_image = "([^"]+)"', containerd_config)
    names["pause"] = tuple(dict.fromkeys((*names["pause"], sandbox)))
    return names


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"kind {pins.KIND} has no {pattern}"
    return found.group(1)


def _server_tarball(stage: Path, *, root: Path, programs: Mapping[str, Path], kind: Path) -> Path:
    """A Kubernetes server tarball. Its four archives are where kind looks for images; those that are not part of a
    Kubernetes release travel in the archive of kube-proxy."""
    sources = kind / "pkg/build/nodeimage"
    names = expected_names(
        output([programs["kubeadm"], "config", "images", "list", "--kubernetes-version", pins.KUBERNETES]),
        kind_sources=(sources / "const_cni.go").read_text() + (sources / "const_storage.go").read_text(),
        containerd_config=(kind / "images/base/files/etc/containerd/config.toml").read_text(),
    )
    folder = stage / "kubernetes/server/bin"
    folder.mkdir(parents=True)
    images = _ImageFactory(stage / "images", programs)
    for component in CONTROL_PLANE:
        image = images.program(names[component], component)
        archive.write_docker_archive(folder / f"{component}.tar", [image])
    network = images.layer("network", _network_tools(root, stage / "network"))
    others = [
        images.program(names["kube-proxy"], "kube-proxy", below=network),
        images.program(names["kindnetd"], "kindnet", below=network, entrypoint="/usr/local/bin/kindnet"),
        images.program(names["etcd"], "server", as_name="etcd"),
        images.program(names["coredns"], "coredns", entrypoint="/usr/local/bin/coredns"),
        images.program(names["pause"], "pause", entrypoint="/usr/local/bin/pause"),
        images.program(names["local-path-provisioner"], "local-path-provisioner"),
        images.tools(names["local-path-helper"], _copy_with_libraries(root, stage / "helper", ("sh", "mkdir", "rm"))),
    ]
    archive.write_docker_archive(folder / "kube-proxy.tar", others)
    for program in ("kubeadm", "kubelet", "kubectl"):
        _install(programs[program], folder)
    (stage / "kubernetes/version").write_text(pins.KUBERNETES)
    target = stage / "server.tar.gz"
    # kind wants gzip; level 0 stores, the parts that matter are compressed already.
    with tarfile.open(target, "w:gz", compresslevel=0) as tar:
        tar.add(stage / "kubernetes", "kubernetes")
    return target


class _ImageFactory:
    """Component images out of single programs."""

    def __init__(self, folder: Path, programs: Mapping[str, Path]) -> None:
        self._folder = folder
        self._programs = programs
        folder.mkdir(parents=True)

    def layer(self, name: str, root: Path) -> Layer:
        return archive.write_layer(self._folder / f"{name}.layer", [Source(root)], compression="gzip")

    def program(
        self,
        references: tuple[str, ...],
        program: str,
        *,
        as_name: str | None = None,
        below: Layer | None = None,
        entrypoint: str | None = None,
    ) -> Image:
        root = self._folder / program
        _install(self._programs[program], root / "usr/local/bin", name=as_name)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        layers = (self.layer(program, root),)
        return Image(references, (below, *layers) if below else layers, _config(entrypoint))

    def tools(self, references: tuple[str, ...], root: Path) -> Image:
        return Image(references, (self.layer(root.name, root),), _config("/usr/bin/sh"))


def _config(entrypoint: str | None) -> dict[str, object]:
    config: dict[str, object] = {"Env": [PATH_VARIABLE], "WorkingDir": "/"}
    return config | {"Entrypoint": [entrypoint]} if entrypoint else config


def _network_tools(root: Path, target: Path) -> Path:
    """iptables, nft, ip and conntrack with every library, those of the iptables plug-ins too: without libm the
    `statistic` match does not load, kube-proxy cannot sync, and node ports are dead on a node that looks Ready."""
    plugins = sorted(f"/{path.relative_to(root)}" for path in (root / XTABLES).glob("*.so"))
    _copy_with_libraries(root, target, NETWORK_TOOLS, also=plugins)
    shutil.copytree(root / XTABLES, target / XTABLES, symlinks=True, dirs_exist_ok=True)
    for name in IPTABLES_NAMES:
        (target / "usr/sbin" / name).symlink_to("xtables-nft-multi")
    (target / "usr/sbin/modprobe").symlink_to("kmod")
    (target / "run").mkdir()
    return target


def _copy_with_libraries(root: Path, target: Path, tools: Iterable[str], *, also: Iterable[str] = ()) -> Path:
    """Copy programs out of a root file system with the libraries that its own `ldd` names."""
    found = [_find(root, tool) for tool in tools]
    listed = output(["chroot", root, "/usr/bin/ldd", *found, *also])
    for library in sorted(set(re.findall(r"(?:=> |^\s+)(/\S+)", listed, re.MULTILINE))):
        copy = target / library.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(rootfs.resolve(root, library), copy)
        copy.chmod(0o755)
    for program in found:
        folder = target / ("usr/sbin" if "sbin" in program else "usr/bin")
        _install(rootfs.resolve(root, program), folder, name=Path(program).name)
    if (target / "usr/bin").is_dir():
        (target / "bin").symlink_to("usr/bin")
    return target


def _find(root: Path, tool: str) -> str:
    for folder in ("usr/sbin", "usr/bin"):
        if (root / folder / tool).exists() or (root / folder / tool).is_symlink():
            return f"/{folder}/{tool}"
    raise FileNotFoundError(f"{tool} is not in {root}")
