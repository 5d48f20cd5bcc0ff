"""Run the Python files that lie in a model's folder, only when the release asks for it, and exactly those that were hashed.

Every ``.py`` file of the folder is read once, hashed, and executed from that memory: nothing is written, nothing is read again, no
cache in a home directory decides. Relative imports see these files and no others. The folder's other files are hashed as well, since the
code may read them. What they import from installed packages is not part of the manifest's ``model``; what they do, they do with the
engine process's rights.
"""

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import msgspec

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.artifacts.files import (
    TOKENIZER_BYTE_FILES,
    TOKENIZER_JSON_FILES,
    LoadedFile,
    hash_bytes,
    hash_bytes_file,
)
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.weights import INDEX_FILE, SINGLE_FILE, read_bytes

_PACKAGE_PREFIX: Final = "pratique_model_code_"
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
FILES_MAX: Final = 256
DATA_FILES_MAX: Final = 1024
_ELSEWHERE_IN_MANIFEST: Final = frozenset(
    {"config.json", "generation_config.json", "chat_template.jinja", SINGLE_FILE, INDEX_FILE}
)


class RemoteCode:
    """A folder's Python files as a package that can be imported once; ``files`` are their entries for the manifest."""

    def __init__(self, sources: dict[str, bytes]) -> None:
        self.files: list[LoadedFile] = [hash_bytes(name, content) for name, content in sorted(sources.items())]
        identity = hashlib.sha256(repr([(entry.path, entry.sha256) for entry in self.files]).encode()).hexdigest()
        self._package = f"{_PACKAGE_PREFIX}{identity[:16]}"
        self._finder = _MemoryFinder(self._package, sources)

    def load_class(self, reference: str, *, field: str) -> Any:
        """The class that a value such as ``modeling_x.XForCausalLM`` names. ``field`` is where it stands, for the error."""
        module_name, _, class_name = reference.rpartition(".")
        if "--" in reference or not module_name or not class_name.isidentifier():
            raise LoadError(f"{field} is {reference!r}; only a class of a file in the model's own folder is run.")
        if not self._finder.has(f"{self._package}.{module_name}"):
            raise LoadError(f"{field} names {module_name}.py, which the model folder does not have.")
        try:
            module = self._import(f"{self._package}.{module_name}")
        except (Exception, SystemExit) as error:  # the folder's code may raise anything
            raise LoadError(f"{module_name}.py of the model folder failed: {type(error).__name__}: {error}") from error
        found = getattr(module, class_name, None)
        if not isinstance(found, type):
            raise LoadError(f"{field} names {class_name}, which {module_name}.py does not define.")
        return found

    def _import(self, name: str) -> ModuleType:
        if self._finder not in sys.meta_path:
            # The same bytes have the same package name: a second load finds the first one's modules.
            sys.meta_path.insert(0, self._finder)
        return importlib.import_module(name)


class _MemoryFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and executes the package's modules from memory; other names are not its own."""

    def __init__(self, package: str, sources: dict[str, bytes]) -> None:
        self._sources = {package: b""}
        self._packages = {package}
        self._paths = {package: f"{package}/__init__.py"}
        for path, content in sources.items():
            parts = path.removesuffix(".py").split("/")
            for depth in range(1, len(parts)):  # a folder is a package, with or without an __init__.py
                folder = ".".join((package, *parts[:depth]))
                self._sources.setdefault(folder, b"")
                self._packages.add(folder)
            module = ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))
            if parts[-1] == "__init__":
                self._packages.add(module)
            self._sources[module] = content
            self._paths[module] = f"{package}/{path}"

    def has(self, name: str) -> bool:
        return name in self._sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=self._paths.get(fullname, fullname), is_package=self.is_package(fullname)
        )
        spec.has_location = True  # ``__file__`` names no real file; whoever wants the source asks the loader
        return spec

    def is_package(self, fullname: str) -> bool:
        return fullname in self._packages

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._sources[fullname])

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._sources[fullname], self._paths.get(fullname, fullname))


def read_data_files(folder: Path) -> list[LoadedFile]:
    """Entries for whatever else the code could read in its folder: hidden files aside, and what the manifest has anyway (the
    configuration, the weights that are loaded, the tokenizer's files). Raises ``LoadError``."""
    found: list[LoadedFile] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or _is_passed_over(name) or name.endswith(".py") or _is_in_manifest(folder, name):
            continue
        if len(found) == DATA_FILES_MAX:
            raise LoadError(
                f"The model folder has more than {DATA_FILES_MAX} files beside its code; move them elsewhere."
            )
        try:
            found.append(msgspec.structs.replace(hash_bytes_file(path), path=name))
        except OSError as error:
            raise LoadError(f"{name} cannot be read: {error.strerror or error}.") from error
    return found


def _is_in_manifest(folder: Path, name: str) -> bool:
    if name in _ELSEWHERE_IN_MANIFEST or name in TOKENIZER_JSON_FILES or name in TOKENIZER_BYTE_FILES:
        return True
    # Of sharded weights only what the index names is loaded; another file may be read by nobody but the code.
    return name.endswith(".safetensors") and (folder / INDEX_FILE).exists() and name in _shards(folder)


def _shards(folder: Path) -> frozenset[str]:
    try:
        return frozenset(str(shard) for shard in json.loads(read_bytes(folder / INDEX_FILE))["weight_map"].values())
    except (*JSON_ERRORS, KeyError, TypeError, AttributeError):
        return frozenset()  # the index is refused when the weights are read


def _is_passed_over(name: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


def read_remote_code(folder: Path) -> RemoteCode:
    """Read every Python file of the folder (hidden folders and compiled leftovers aside); raises ``LoadError``."""
    sources: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if _is_passed_over(name):
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise LoadError(f"{name} cannot be read: {error.strerror or error}.") from error
        if len(content) > FILE_BYTES_MAX or len(sources) == FILES_MAX:
            raise LoadError(
                f"The model folder's code is refused at {name}: at most {FILES_MAX} files of {FILE_BYTES_MAX} bytes are run."
            )
        sources[name] = content
    return RemoteCode(sources)
