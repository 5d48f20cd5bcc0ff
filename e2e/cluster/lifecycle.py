"""`up`, `down`, `status`: which engine, what has to be built, and in which order.

`up` does nothing slow when the cluster runs. Otherwise Go programs and root file systems are built side by side (one
needs the processors, the other mostly the network), then the node image, then the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.cluster import gobuild, kind, nodeimage, packages, pins, rootfs
from e2e.cluster.content import Cache
from e2e.cluster.engine import Engine, PrivateEngine
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.kind import Kind, Record
from e2e.cluster.machine import Machine
from e2e.cluster.progress import Progress, output
from e2e.cluster.settings import Settings, first_free


@dataclass(frozen=True)
class Context:
    """What every command needs."""

    settings: Settings
    cache: Cache
    machine: Machine
    progress: Progress

    @property
    def tools(self) -> Path:
        """Links to kubectl, kind and docker of this cluster."""
        return self.settings.cache / "bin"

    def kind(self, engine: Engine) -> Kind:
        """kind on an engine."""
        return Kind(self.settings, engine=engine, machine=self.machine, tools=self.tools)

    def private_engine(self) -> PrivateEngine:
        """Our dockerd; unpacks it when needed."""
        unpacked = packages.engine_root(self.cache, self.machine, progress=self.progress, logs=self.settings.logs)
        home = self.settings.engine_home
        return PrivateEngine(home, programs=unpacked, machine=self.machine, logs=self.settings.logs)


def recorded_engine(context: Context) -> Engine | None:
    """The engine of the cluster that was created, or None when there is no record of one."""
    record = Record.load(kind.record_path(context.settings))
    if record is None:
        return None
    return context.private_engine().engine() if record.private_engine else Engine()


def up(context: Context, *, recreate: bool = False) -> None:
    """Make the cluster exist and serve."""
    if context.settings.provider == "existing":
        _check_existing(context)
        return
    if recreate:
        down(context, purge=False)
    if _runs_already(context):
        return
    if context.settings.provider == "auto" and _published(context):
        return
    _offline(context)


def _check_existing(context: Context) -> None:
    try:
        server = json.loads(output(["kubectl", "version", "-o", "json"], timeout_s=20))["serverVersion"]["gitVersion"]
    except (CommandError, KeyError, ValueError) as error:
        raise ClusterError(f"the current kubeconfig reaches no cluster: {error}") from error
    context.progress.say(f"Using the existing cluster of the current kubeconfig, Kubernetes {server}")


def _runs_already(context: Context) -> bool:
    record = Record.load(kind.record_path(context.settings))
    engine = recorded_engine(context)
    if record is None or engine is None or not context.kind(engine).healthy():
        return False
    wanted = _node_image(context)
    context.progress.say(f"Cluster {pins.CLUSTER} is up: export KUBECONFIG={context.settings.kubeconfig}")
    if record.image not in (wanted, pins.PUBLISHED_NODE_IMAGE):
        context.progress.say(f"Its node image {record.image} is not the one of this tree; `up --recreate` replaces it")
    return True


def _node_image(context: Context) -> str:
    root_key = rootfs.NODE.key(context.settings.mirror)
    return nodeimage.reference(root_key=root_key, machine=context.machine, go_version=gobuild.go_version())


# --- a docker engine that is there, and the published image ---------------------------------------------------------


def _published(context: Context) -> bool:
    engine = Engine()
    if not engine.answers():
        return False
    if not engine.has_image(pins.PUBLISHED_NODE_IMAGE):
        context.progress.say(f"Pulling {pins.PUBLISHED_NODE_IMAGE}")
        try:
            engine.docker("pull", pins.PUBLISHED_NODE_IMAGE, timeout_s=900)
        except CommandError as error:
            context.progress.say(f"It cannot be pulled, building it instead: {error}")
            return False
    if not shutil.which("kind"):
        folder = gobuild.build(
            context.cache,
            pins.KIND_TOOL,
            version=gobuild.go_version(),
            progress=context.progress,
            logs=context.settings.logs,
        )
        _link(context.tools, {"kind": folder / "kind"})
    _ensure_cluster(context, engine, pins.PUBLISHED_NODE_IMAGE, private=False)
    return True


# --- everything built here ------------------------------------------------------------------------------------------


def _offline(context: Context) -> None:
    packages.install_missing(context.machine, progress=context.progress, logs=context.settings.logs)
    engine = Engine()
    # Two engines on one machine fight over docker0 and the firewall: ours starts only where none runs.
    own = None if engine.answers() else context.private_engine()
    programs, root = build_inputs(context)
    if own is not None:
        engine = own.start()
    docker = Path(_which("docker", engine.path))
    _link(context.tools, {"kubectl": programs["kubectl"], "kind": programs["kind"], "docker": docker})
    image = _node_image(context)
    if not engine.has_image(image):
        nodeimage.build(
            image,
            engine=engine,
            root=root,
            programs=programs,
            machine=context.machine,
            progress=context.progress,
            work=context.settings.cache / "work",
            logs=context.settings.logs,
        )
        _remove_old_images(engine, keep=image)
    _ensure_cluster(context, engine, image, private=own is not None)


def build_inputs(context: Context) -> tuple[dict[str, Path], Path]:
    """The programs and the root file system of the node, side by side."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        root = pool.submit(build_root, context, rootfs.NODE)
        programs = gobuild.build_all(context.cache, progress=context.progress, logs=context.settings.logs)
        return programs, root.result()


def prune(context: Context) -> None:
    """Delete cache entries that were not used lately. Only when nothing is being built: it also deletes what looks like
    the remains of a killed run."""
    for entries, keep in (("go", 2 * len(pins.GO_MODULES)), ("root", 4), ("engine", 1), ("layer", 10)):
        context.cache.prune(entries, keep=keep)


def build_root(context: Context, recipe: rootfs.RootFileSystem) -> Path:
    """A Debian root file system of this run's mirror."""
    return rootfs.build(
        context.cache,
        recipe,
        mirror=context.settings.mirror,
        machine=context.machine,
        progress=context.progress,
        logs=context.settings.logs,
    )


def _remove_old_images(engine: Engine, *, keep: str) -> None:
    tag = keep.rpartition(":")[2]
    listed = engine.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    ours = [name for name in listed if name.startswith((pins.LOCAL_NODE_REPOSITORY, pins.BASE_NODE_REPOSITORY))]
    for name in ours:
        if name.rpartition(":")[2] != tag:
            with contextlib.suppress(CommandError):  # still used by a container
                engine.docker("image", "rm", name)


def _ensure_cluster(context: Context, engine: Engine, image: str, *, private: bool) -> None:
    cluster = context.kind(engine)
    state = engine.container_state(pins.NODE)
    record = Record.load(kind.record_path(context.settings))
    created = False
    if state is not None and not _comes_back(context, cluster, record, image):
        context.progress.say("The cluster that is there cannot be used; creating it again")
        cluster.delete()
        state = None
    if state is None:
        api_port = first_free(context.settings.api_port)
        cluster.create(image, api_port=api_port, progress=context.progress)
        record = Record(image, private, api_port, context.settings.host_ports)
        created = True
    assert record is not None
    replace(record, private_engine=private).save(kind.record_path(context.settings))
    kind.fetch_kubectl(engine, context.tools)
    cluster.verify(progress=context.progress)
    verb = "created" if created else "back"
    context.progress.say(f"Cluster {pins.CLUSTER} is {verb}: export KUBECONFIG={context.settings.kubeconfig}")


def _comes_back(context: Context, cluster: Kind, record: Record | None, image: str) -> bool:
    if record is None or record.image != image or not context.settings.kubeconfig.exists():
        return False
    return cluster.start(progress=context.progress)


def down(context: Context, *, purge: bool) -> None:
    """Delete the cluster, stop the dockerd we started; with `purge` delete what they left on the machine."""
    if context.settings.provider == "existing":
        raise ClusterError("an existing cluster is not ours to delete")
    record_file = kind.record_path(context.settings)
    private = context.private_engine() if context.settings.engine_home.exists() else None
    engine = recorded_engine(context) or (private.engine() if private is not None else None)
    if engine is not None and engine.answers():
        with context.progress.step(f"Deleting cluster {pins.CLUSTER}", usual_s=4):
            context.kind(engine).delete()
    record_file.unlink(missing_ok=True)
    context.settings.kubeconfig.unlink(missing_ok=True)
    if private is not None:
        with context.progress.step("Stopping the private dockerd", usual_s=3):
            if purge and private.engine().answers():
                _remove_networks(private.engine())
            private.stop()
        if purge:
            private.purge()


def _remove_networks(engine: Engine) -> None:
    with contextlib.suppress(CommandError):
        engine.docker("network", "rm", "kind")


def status(context: Context) -> bool:
    """Print what there is; whether the cluster serves."""
    record = Record.load(kind.record_path(context.settings))
    engine = recorded_engine(context)
    healthy = engine is not None and context.kind(engine).healthy()
    print(f"cluster     {pins.CLUSTER}: {'up' if healthy else 'down'}")
    print(f"cache       {context.settings.cache}")
    if record is not None:
        print(f"node image  {record.image}")
        print(f"engine      {'private dockerd' if record.private_engine else 'the docker engine of this machine'}")
        print(f"API         https://127.0.0.1:{record.api_port}")
        print(f"node ports  30080..30083 -> {', '.join(map(str, record.host_ports))} on 127.0.0.1")
        print(f"kubeconfig  {context.settings.kubeconfig}")
    return healthy


def environment(context: Context) -> dict[str, str]:
    """Variables for a shell or a test run."""
    if context.settings.provider == "existing":
        return {}
    variables = {"KUBECONFIG": str(context.settings.kubeconfig)}
    engine = recorded_engine(context)
    if engine is not None and "DOCKER_HOST" in engine.environment:
        variables["DOCKER_HOST"] = engine.environment["DOCKER_HOST"]
    if context.tools.is_dir():
        variables["PATH"] = f"{context.tools}:{os.environ.get('PATH', os.defpath)}"
    return variables


def _link(folder: Path, programs: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in programs.items():
        temporary = folder / f".{name}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(program.resolve())  # it may be found through this very folder
        temporary.replace(folder / name)


def _which(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise ClusterError(f"{name} is not in {path}")
    return found
