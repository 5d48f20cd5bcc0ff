"""The releases of the suite, made once, and the report: ``--mutation-report FOLDER`` writes ``mutation.json`` and ``mutation.md``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.releases import Releases

ROWS = "mutation"


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One row of the report; the test fills it."""
    value: dict[str, Any] = {}
    request.node.user_properties.append((ROWS, value))
    return value


def folder_of(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
