"""Loading images into the node's containerd, sending only the blobs that it does not have.

containerd accepts an archive whose manifest names layers that are in its content store already, so a changed code
layer costs kilobytes and not the gigabyte of torch below it. When it refuses, the whole archive is sent.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Sequence

from e2e.cluster import archive, lifecycle, pins
from e2e.cluster.archive import Image
from e2e.cluster.engine import Engine
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.lifecycle import Context
from e2e.cluster.progress import Progress, tail

CTR = ("ctr", "--namespace=k8s.io")
IMPORT = (*CTR, "images", "import", "--digests", "--snapshotter=overlayfs", "-")
# They share all but the code layer; tests of other checkouts may still name an older one.
KEPT_IN_NODE = 12


class Node:
    """The node's containerd, through `docker exec`."""

    def __init__(self, engine: Engine, name: str = pins.NODE) -> None:
        self._engine = engine
        self._name = name

    def run(self, *command: str) -> str:
        """Standard output of a program in the node."""
        return self._engine.docker("exec", self._name, *command)

    def references(self) -> set[str]:
        """Names of the images it has."""
        return set(self.run(*CTR, "images", "ls", "-q").split())

    def blobs(self) -> set[str]:
        """Digests in its content store."""
        return set(self.run(*CTR, "content", "ls", "-q").split())

    def kubelet_sees(self, reference: str) -> bool:
        """Whether the kubelet's view has the image too."""
        try:
            self.run("crictl", "inspecti", "-q", reference)
        except CommandError:
            return False
        return True

    def import_images(self, images: Sequence[Image], *, without: Collection[str]) -> int:
        """Stream an archive into containerd; the number of blob bytes sent."""
        command = ["docker", "exec", "--interactive", self._name, *IMPORT]
        environment = dict(os.environ, **self._engine.environment)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        assert process.stdin is not None
        assert process.stderr is not None
        sent = 0
        broken: OSError | None = None
        try:
            sent = archive.write_oci_archive(process.stdin, images, without=without)
            process.stdin.close()
        except OSError as error:  # the receiver gave up; what it printed says why
            broken = error
        errors = process.stderr.read().decode(errors="replace")
        code = process.wait()
        if code != 0 or broken is not None:
            raise CommandError(command="ctr images import", code=code, log=None, tail=tail(errors) or str(broken))
        return sent

    def remove(self, reference: str) -> None:
        """Forget an image; the layers that others use stay."""
        self.run(*CTR, "images", "rm", reference)


def missing_images(images: Sequence[Image], *, present: Collection[str]) -> list[Image]:
    """The images of which the node lacks a name."""
    return [image for image in images if any(reference not in present for reference in image.references)]


def load(node: Node, images: Sequence[Image], *, progress: Progress) -> None:
    """Make the node have the images."""
    missing = missing_images(images, present=node.references())
    if not missing:
        progress.say("The node has both images already")
        return
    present = node.blobs()
    absent = {name: blob for name, blob in archive.blobs_of(missing).items() if name not in present}
    size = sum(len(blob) if isinstance(blob, bytes) else blob.stat().st_size for blob in absent.values())
    names = ", ".join(reference for image in missing for reference in image.references)
    with progress.step(f"Loading {names} ({size / 1e6:.1f} MB to send)", usual_s=1 + size / 25e6):
        try:
            node.import_images(missing, without=present)
        except CommandError as error:
            progress.say(f"containerd did not take the thin archive, sending everything: {error}")
            node.import_images(missing, without=())
        unseen = [r for image in missing for r in image.references if not node.kubelet_sees(r)]
        if unseen:
            raise ClusterError(f"imported, but the kubelet does not see {', '.join(unseen)}")


def prune(node: Node, repositories: Sequence[str], *, keep: Collection[str], context: Context) -> None:
    """Remove old images of ours from the node: not those that a pod names, and not the last few."""
    history_file = context.settings.cache / "loaded.json"
    try:
        history: list[str] = json.loads(history_file.read_text())
    except (OSError, ValueError):
        history = []
    history = [*(name for name in history if name not in keep), *keep]
    present = node.references()
    used = _images_of_pods(context)
    old = superseded(sorted(present), repositories, history=history, used=used)
    for reference in old:
        node.remove(reference)
    history_file.write_text(json.dumps([name for name in history if name in present and name not in old]))


def superseded(
    present: Sequence[str], repositories: Sequence[str], *, history: Sequence[str], used: Collection[str]
) -> list[str]:
    """Which images to remove: per repository all but the last loaded ones, and never one that is used."""
    old = []
    for repository in repositories:
        ours = [reference for reference in present if reference.startswith(f"{repository}:")]
        ours.sort(key=lambda reference: history.index(reference) if reference in history else -1, reverse=True)
        old += [reference for reference in ours[KEPT_IN_NODE:] if reference not in used]
    return old


def _images_of_pods(context: Context) -> set[str]:
    engine = lifecycle.recorded_engine(context)
    assert engine is not None
    path = "{range .items[*]}{.spec.containers[*].image} {.spec.initContainers[*].image} {end}"
    return set(context.kind(engine).kubectl("get", "pods", "--all-namespaces", "-o", f"jsonpath={path}").split())
