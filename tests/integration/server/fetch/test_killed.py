"""A process that is killed before any one of its changes to the cache volume: what stands under the final name is still complete, and
the next process gets to the end.

The child is a fork that kills itself: an audit hook sees every file that is opened for writing, renamed, removed, and every folder made or
removed, whoever does it. kserve#3256: a node that restarts finds whatever was there at that moment.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.store import RECEIPT_FILE, Store
from tests.support.fetching import NAME, WEIGHTS, Place, fetch, names_in, quick_limits, same_content
from tests.support.hub import Hub

FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', WEIGHTS: bytes(range(256)) * 40}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
STEPS_MAX = 500

Moment = Callable[[int, str], bool]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Place]:
    origin = tmp_path / "origin" / NAME
    origin.mkdir(parents=True)
    for name, content in FILES.items():
        (origin / name).write_bytes(content)
    with Hub(tmp_path / "origin") as hub:
        yield Place(hub, origin, tmp_path / "cache" / "hf-1")


def die_at(moment: Moment, place: Place) -> bool:
    """Fetch in a child that is killed before the change for which ``moment`` (its number, its path) is true; False when it was not."""
    child = os.fork()
    if child == 0:
        _be_the_child(moment, place)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child's fetch failed"
    return False


def _be_the_child(moment: Moment, place: Place) -> None:
    count, root = 0, str(place.path.parent)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        change = event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES)
        if not change or not str(arguments[0]).startswith(root):
            return
        count += 1
        if moment(count, str(arguments[0])):
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    with contextlib.suppress(BaseException):
        sys.addaudithook(hook)
        fetch_small(place)
        code = 0
    os._exit(code)


def fetch_small(place: Place, wanted: Wanted | None = None) -> None:
    fetch(place.target(wanted=wanted or Wanted()), place.settings(limits=quick_limits(connections=1)))


def require_whole(place: Place) -> None:
    """Everything the receipt names is there and is the source's."""
    receipt = Store(place.path).read_receipt()
    assert receipt is not None
    for entry in receipt.files:
        assert (place.path / entry.path).read_bytes() == FILES[entry.path]


def every_step(place: Place, prepare: Callable[[], None], *, stride: int, stays_whole: bool = True) -> int:
    """Kill at the first change, a later one, and so on until none is left; after each, a fetch that is not killed. ``stays_whole``: the
    folder may be missing, but what stands there is complete at any moment."""
    place.path.parent.mkdir()
    for step in range(1, STEPS_MAX, stride):
        prepare()
        if not die_at(lambda count, _, step=step: count == step, place):  # type: ignore[misc]
            return step
        if stays_whole and place.path.exists():
            require_whole(place)
        fetch_small(place)
        assert names_in(place.path) == set(FILES)
        assert same_content(place.path, place.origin)
        assert names_in(place.partial) == set()  # empty folders may stay
    raise AssertionError(f"more than {STEPS_MAX} changes")


def wipe(place: Place) -> None:
    for path in sorted(place.path.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_first_fetch_may_be_killed_at_any_moment(small: Place) -> None:
    assert every_step(small, lambda: wipe(small), stride=2) > 20


def test_a_repair_may_be_killed_at_any_moment(small: Place) -> None:
    def damage() -> None:
        wipe(small)
        fetch_small(small)
        (small.path / "config.json").write_bytes(b"[]")

    assert every_step(small, damage, stride=5, stays_whole=False) > 20


def test_a_tokenizer_s_folder_that_gets_its_weights_may_be_killed_at_any_moment(
    small: Place, tokenizer_only: Wanted
) -> None:
    def prepare() -> None:
        wipe(small)
        fetch_small(small, tokenizer_only)

    assert every_step(small, prepare, stride=5) > 20


def test_killed_when_all_is_there_but_not_published_nothing_is_fetched_again(small: Place) -> None:
    """The files are written out before that, which takes minutes for a large model: it must not begin anew."""
    assert die_at(lambda _, path: path == str(small.partial / RECEIPT_FILE), small)
    assert not small.path.exists()
    asked = len(small.hub.asked("*/resolve/*"))
    fetch_small(small)
    assert len(small.hub.asked("*/resolve/*")) == asked
    require_whole(small)
