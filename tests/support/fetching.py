"""A small model repository, and a fetch with short pauses: what every test of fetching starts from."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.fetcher import Fetcher, Settings
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.lock import LockTimes
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.retry import RetryPolicy, StallRule
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.targets import Target
from pratique_server.fetch.transfer import TransferLimits
from tests.support.hub import Hub

WEIGHTS = "model.safetensors"
NAME = "owner/tiny"
# Everything a server loads of the repository below.
LOADED = {
    "added_tokens.json",
    "additional_chat_templates/tools.jinja",
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    WEIGHTS,
    "spiece.model",
    "tokenizer.json",
}
QUICK_LOCK = LockTimes(beat_seconds=0.05, poll_seconds=0.02, dead_seconds=1.5)


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


def make_repository(folder: Path, *, weight_bytes: int = 300_000, seed: int = 1) -> Path:
    """A folder like a published model's: what is loaded, and what must not be."""
    folder.mkdir(parents=True)
    for name in LOADED - {WEIGHTS}:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"name": name, "seed": seed}), encoding="utf-8")
    (folder / WEIGHTS).write_bytes(random.Random(seed).randbytes(weight_bytes))
    for name in ("README.md", "pytorch_model.bin", "modeling_tiny.py", "onnx/model.onnx", ".gitattributes"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"{name} {seed}".encode())
    return folder


def quick_limits(**changes: Any) -> TransferLimits:
    """Parts of 100 kB, no pauses to speak of."""
    limits = TransferLimits(
        connections=4,
        stall=StallRule(seconds=0.3, bytes_min=1000),
        retry=RetryPolicy(attempts=3, pause_seconds=0.01, pause_seconds_max=0.02, retry_after_seconds_max=2.0),
        part_bytes=100_000,
    )
    return replace(limits, **changes)


def make_settings(
    download: DownloadSpec | None = None,
    *,
    credentials: Credentials | None = None,
    limits: TransferLimits | None = None,
) -> Settings:
    return Settings(
        download=download or DownloadSpec(),
        credentials=credentials or Credentials(),
        limits=limits or quick_limits(),
        lock_times=QUICK_LOCK,
    )


def fetch(target: Target, settings: Settings, *, progress: Progress | None = None, halt: Halt | None = None) -> None:
    """Fetch one target; raises what the fetcher raises."""
    fetcher = Fetcher(settings, progress or Progress(), halt or Halt())
    try:
        fetcher.fetch(target)
    finally:
        fetcher.close()


def failure(target: Target, settings: Settings) -> FetchError:
    """The error a fetch ends with."""
    try:
        fetch(target, settings)
    except FetchError as error:
        return error
    raise AssertionError("the fetch succeeded")


def names_in(folder: Path) -> set[str]:
    """Files below a folder, without the receipt."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return found - {".pratique-fetch.json"}


def same_content(folder: Path, origin: Path) -> bool:
    """Whether every file in the folder is the origin's."""
    return all((folder / name).read_bytes() == (origin / name).read_bytes() for name in names_in(folder))
