"""A hub with one small repository, and a place for the fetched folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.fetcher import Settings
from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.targets import Target
from tests.support.fetching import NAME, WEIGHTS, make_repository, make_settings
from tests.support.hub import Hub


@dataclass(frozen=True)
class Place:
    """A hub, the repository's origin, and the folder on the cache volume."""

    hub: Hub
    origin: Path
    path: Path

    @property
    def commit(self) -> str:
        return self.hub.repositories[NAME].commit

    @property
    def partial(self) -> Path:
        return self.path.with_name(f".{self.path.name}.partial")

    @property
    def weights(self) -> str:
        """The path under which the hub's storage has the weights."""
        return f"/cdn/{self.hub.repositories[NAME].files[WEIGHTS].sha256}"

    def target(self, **changes: Any) -> Target:
        fields: dict[str, Any] = {"uri": f"hf://{NAME}", "revision": self.commit, "path": self.path}
        return Target(**{**fields, **changes})

    def settings(self, **changes: Any) -> Settings:
        return make_settings(DownloadSpec(hub_endpoint=self.hub.url), **changes)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin") as hub:
        yield Place(hub, origin, tmp_path / "cache" / "hf-1")


@pytest.fixture
def tokenizer_only() -> Wanted:
    return Wanted(weights=False)
