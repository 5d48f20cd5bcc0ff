"""A hub with one small repository, a place for the fetched folder, and the command line as a person runs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pratique_server.fetch.selection import Wanted
from tests.support.fetching import NAME, Place, make_repository
from tests.support.hub import Hub
from tests.unit.cli.conftest import pratique  # noqa: F401 - a fixture


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin") as hub:
        yield Place(hub, origin, tmp_path / "cache" / "hf-1")


@pytest.fixture
def tokenizer_only() -> Wanted:
    return Wanted(weights=False)
