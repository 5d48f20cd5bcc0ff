"""Our two images, made without a container engine: three layers each, cached by what is in them.

    root          Debian with Python, shared by both
    dependencies  what pip installs for an extra, byte-compiled
    code          our own packages, byte-compiled: the only layer that changes while one works

Byte code is compiled with unchecked hashes: Python then trusts it without looking at time stamps, which layers do not
keep, and the first import of torch does not compile thousands of files in a root that cannot be written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import archive, lifecycle, loading, packages, pins, rootfs
from e2e.cluster.archive import Image, Layer, Source
from e2e.cluster.content import digest_of, digest_of_files, write_atomically
from e2e.cluster.dependencies import Project, read_project, requirements
from e2e.cluster.errors import ClusterError
from e2e.cluster.lifecycle import Context
from e2e.cluster.progress import run, succeeds

DEPENDENCIES = "opt/pratique/deps"
CODE = "opt/pratique/app"
TAG_LENGTH = 16
# Measured on torch's layer (1.05 GB): zstd is written in half of gzip's time and loads as fast, 5 s; plain tar takes 16 s.
COMPRESSION = "zstd"
PYTHON = (3, 11)
# Every glibc that Debian 12 can run; pip does not derive the older tags from the newest one.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)),
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64",
)  # fmt: skip
# Headers, static libraries, build tools and test suites: nothing that serves a request imports them.
LEFT_OUT = tuple(
    f"{DEPENDENCIES}/{pattern}"
    for pattern in (
        "bin", "*.a", "*.pyi", "torch/include", "torch/share", "torch/test", "torch/bin/protoc*", "torch/bin/test_*",
        "torch/lib/*.lib", "numpy/*/tests", "numpy/tests", "sympy/*/tests", "networkx/*/tests",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """One image: which extras it installs and which of our packages it carries (folder, package)."""

    name: str
    extras: tuple[str, ...]
    code: tuple[tuple[str, str], ...]
    usual_s: int

    @property
    def repository(self) -> str:
        """The image's name without a tag."""
        return f"localhost/pratique-{self.name}"


_SHARED = (("contract", "pratique_contract"), ("cli", "pratique_cli"))
RECIPES = (
    Recipe("operator", ("operator", "cli"), (*_SHARED, ("operator", "pratique_operator")), usual_s=30),
    Recipe("server", ("server", "cli"), (*_SHARED, ("server", "pratique_server")), usual_s=100),
)


def prepare(context: Context) -> None:
    """Install what the build calls. Not part of `build`, which may run beside other things that install."""
    packages.install_missing(context.machine, progress=context.progress, logs=context.settings.logs)


def load(context: Context, images: Sequence[Image], *, output: Path | None = None) -> None:
    """Load what the node lacks (or write an archive), and say under which names."""
    references = {recipe.name: image.references[0] for recipe, image in zip(RECIPES, images, strict=True)}
    if output is not None:
        with output.open("wb") as target:
            archive.write_oci_archive(target, images)
        context.progress.say(f"Wrote {output}")
    elif context.settings.provider == "existing":
        raise ClusterError("images cannot be loaded into an existing cluster; write an archive with `images --output`")
    else:
        engine = lifecycle.recorded_engine(context)
        if engine is None:
            raise ClusterError("there is no cluster to load images into; run `python -m e2e.cluster up` first")
        node = loading.Node(engine)
        loading.load(node, images, progress=context.progress)
        loading.prune(node, [recipe.repository for recipe in RECIPES], keep=references.values(), context=context)
    write_atomically(context.settings.cache / "images.json", json.dumps(references, indent=2) + "\n")
    for name, reference in references.items():
        print(f"{name} {reference}")


def build(context: Context) -> list[Image]:
    """The images, in the order of RECIPES."""
    project = read_project(pins.REPOSITORY / "pyproject.toml")
    builder = _Builder(context, project)
    with ThreadPoolExecutor(max_workers=3) as pool:
        root = pool.submit(builder.root)
        dependencies = [pool.submit(builder.dependencies, recipe) for recipe in reversed(RECIPES)]
        code = [builder.code(recipe) for recipe in RECIPES]
        lower = [root.result(), *(layer.result() for layer in dependencies)]
    stacks = [(lower[0], below, above) for below, above in zip(reversed(lower[1:]), code, strict=True)]
    return [_image(recipe, layers, project) for recipe, layers in zip(RECIPES, stacks, strict=True)]


def _image(recipe: Recipe, layers: tuple[Layer, ...], project: Project) -> Image:
    config = {
        "User": f"{rootfs.USER_ID}:{rootfs.USER_ID}",
        "WorkingDir": "/opt/pratique",
        "Entrypoint": ["/usr/bin/python3", "-m", "pratique_cli"],
        "Env": [
            "PATH=/usr/local/bin:/usr/bin:/bin",
            f"PYTHONPATH=/{CODE}:/{DEPENDENCIES}",
            "PYTHONUNBUFFERED=1",
            "PYTHONDONTWRITEBYTECODE=1",
            # The working directory is not a place to import from.
            "PYTHONSAFEPATH=1",
            "HOME=/tmp",
            "LANG=C.UTF-8",
        ],
        "Labels": {
            "org.opencontainers.image.title": f"{project.name}-{recipe.name}",
            "org.opencontainers.image.version": project.version,
        },
    }
    unnamed = Image((), layers, config)
    tag = archive.digest(unnamed.manifest()).removeprefix("sha256:")[:TAG_LENGTH]
    return Image((f"{recipe.repository}:{tag}",), layers, config)


class _Builder:
    """Layers of one run."""

    def __init__(self, context: Context, project: Project) -> None:
        self._context = context
        self._project = project
        self._constraints = pins.REPOSITORY / "constraints.txt"

    def root(self) -> Layer:
        """Debian and Python."""
        context = self._context
        key = digest_of("root", rootfs.APPLICATION.key(context.settings.mirror), COMPRESSION)

        def write(target: Path) -> Layer:
            tree = lifecycle.build_root(context, rootfs.APPLICATION)
            return archive.write_layer(target, [Source(tree, keep_owner=True)], compression=COMPRESSION)

        return self._layer(key, write)

    def dependencies(self, recipe: Recipe) -> Layer:
        """What pip installs for a recipe."""
        wanted = requirements(self._project, recipe.extras)
        constraints = self._constraints.read_text() if self._constraints.exists() else ""
        key = digest_of("pip", wanted, constraints, wheel_names(find_links()), PLATFORMS, LEFT_OUT, COMPRESSION)
        if self._context.cache.has("layer", key):
            return self._layer(key, _never)
        with self._context.progress.step(
            f"Installing Python packages of the {recipe.name} image", usual_s=recipe.usual_s
        ):
            return self._layer(key, lambda target: self._install(recipe, wanted, target))

    def _install(self, recipe: Recipe, wanted: Sequence[str], target: Path) -> Layer:
        tree = target.parent / "tree"
        folder = tree / DEPENDENCIES
        log = self._context.settings.logs / f"pip-{recipe.name}.log"
        command = [*pip_command(), "install", "--target", folder, "--no-compile", "--only-binary=:all:"]
        command += ["--python-version", ".".join(map(str, PYTHON)), "--implementation", "cp"]
        command += [part for platform in PLATFORMS for part in ("--platform", platform)]
        if self._constraints.exists():
            command += ["--constraint", self._constraints]
        run([*command, *wanted], log=log, env={"PIP_FIND_LINKS": " ".join(find_links())})
        byte_compile(tree, log=log)
        layer = archive.write_layer(target, [Source(tree, exclude=LEFT_OUT)], compression=COMPRESSION)
        shutil.rmtree(tree)
        return layer

    def code(self, recipe: Recipe) -> Layer:
        """Our own packages, the installed distribution's name and version, and the command `pratique`.

        The key is taken from a copy: the tree may be edited between hashing and packing.
        """
        work = self._context.settings.cache / "work"
        work.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="code-", dir=work) as scratch:
            tree = Path(scratch) / "tree"
            for folder, package in recipe.code:
                copy_package(pins.REPOSITORY / folder / package, tree / CODE / package)
            _write_distribution(tree, self._project)
            files = [path for path in tree.rglob("*") if path.is_file()]
            key = digest_of("code", digest_of_files(tree, files), COMPRESSION)

            def write(target: Path) -> Layer:
                byte_compile(tree, log=self._context.settings.logs / "code.log")
                return archive.write_layer(target, [Source(tree)], compression=COMPRESSION)

            return self._layer(key, write)

    def _layer(self, key: str, write: Callable[[Path], Layer]) -> Layer:
        def fill(target: Path) -> None:
            write(target / "layer").save(target / "layer.json")

        entry = self._context.cache.entry("layer", key, fill)
        return Layer.load(entry / "layer.json", file=entry / "layer")


def _never(target: Path) -> Layer:
    raise AssertionError(f"{target} was there a moment ago")


def copy_package(source: Path, target: Path) -> None:
    """Copy a package without what Python and editors leave in it."""
    if not source.is_dir():
        raise ClusterError(f"{source} is missing: it goes into an image")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "*.orig", "*~", ".*")
    shutil.copytree(source, target, ignore=ignore)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _write_distribution(tree: Path, project: Project) -> None:
    """What pip would leave: metadata, so that importlib.metadata knows the version, and the commands."""
    information = tree / CODE / f"{project.name}-{project.version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version}\n")
    commands = tree / "usr/local/bin"
    commands.mkdir(parents=True)
    for name, target in sorted(project.scripts.items()):
        module, _, function = target.partition(":")
        script = commands / name
        script.write_text(f"#!/usr/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)


def find_links() -> list[str]:
    """Where pip looks for wheels besides its index: what the environment says, and a folder of shared wheels that may
    lie beside the repository (a CPU build of torch there makes the server image four times smaller)."""
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    beside = pins.REPOSITORY.parent / "shared" / "wheels"
    return [*links, str(beside)] if beside.is_dir() else links


def wheel_names(links: Sequence[str]) -> list[str]:
    """The wheels that lie in local folders: with another one there pip may choose differently."""
    return sorted(path.name for link in links if Path(link).is_dir() for path in Path(link).glob("*.whl"))


def interpreter() -> str:
    """A Python of the images' version: byte code is valid for one version only."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    name = f"python{PYTHON[0]}.{PYTHON[1]}"
    found = shutil.which(name)
    if found is None:
        raise ClusterError(f"{name} is needed to byte-compile the images' packages")
    return found


def pip_command() -> list[str | Path]:
    """pip of an interpreter that has one: environments made by other tools often lack it."""
    base = getattr(sys, "_base_executable", sys.executable)
    for candidate in (sys.executable, base, "python3"):
        if succeeds([candidate, "-m", "pip", "--version"]):
            return [candidate, "-m", "pip"]
    raise ClusterError("pip is needed to install the images' Python packages")


def byte_compile(tree: Path, *, log: Path) -> None:
    """Compile every module below `tree`, reproducibly, with the paths they will have in the image.

    Exit codes are ignored: packages ship templates and old syntax that nobody imports.
    """
    command = [interpreter(), "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(tree), "-p", "/", str(tree / "opt")]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        environment = dict(os.environ, PYTHONHASHSEED="0")
        subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, env=environment, check=False)
