"""Which distributions an image needs, read from pyproject.toml: base dependencies plus extras."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError


@dataclass(frozen=True)
class Project:
    """What the images take from pyproject.toml."""

    name: str
    version: str
    dependencies: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    scripts: Mapping[str, str]


def read_project(path: Path) -> Project:
    """The project file; ClusterError when it lacks what an image needs."""
    return parse_project(tomllib.loads(path.read_text()))


def parse_project(document: Mapping[str, Any]) -> Project:
    """The project from a parsed document."""
    try:
        project = document["project"]
        return Project(
            name=project["name"],
            version=project.get("version", "0.0.0"),
            dependencies=tuple(project.get("dependencies", ())),
            extras={name: tuple(items) for name, items in project.get("optional-dependencies", {}).items()},
            scripts=dict(project.get("scripts", {})),
        )
    except KeyError as error:
        raise ClusterError(f"pyproject.toml has no {error}") from error


def requirements(project: Project, extras: Sequence[str]) -> list[str]:
    """Sorted requirements of the base and some extras. An extra may name other extras of the project itself."""
    found = set(project.dependencies)
    pending, seen = list(extras), set[str]()
    itself = re.compile(rf"{re.escape(project.name)}\s*\[([^\]]+)\]$", re.IGNORECASE)
    while pending:
        extra = pending.pop()
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in project.extras:
            raise ClusterError(f"pyproject.toml has no extra {extra!r}")
        for item in project.extras[extra]:
            match = itself.match(item.strip())
            if match:
                pending += [name.strip() for name in match.group(1).split(",")]
            else:
                found.add(item)
    return sorted(found)
