"""Cache volumes that are not what they seem: that fold names, that are full of what was begun and left, that cannot be written."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.reasons import Reason
from pratique_server.fetch.lock import LockTimes
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.store import Store
from tests.support.fetching import NAME, Place, failure, fetch, make_repository, same_content
from tests.support.hub import Hub


def test_a_volume_that_takes_two_names_for_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMB shares do. Each of the two would overwrite the other, and the sentence would tell of a damaged source."""
    origin = make_repository(tmp_path / "origin" / NAME)
    (origin / "Config.json").write_text('{"another": "file"}')
    exists = Path.exists

    def folded(path: Path, **options: Any) -> bool:
        siblings = path.parent.iterdir() if ".probe" in path.parts and path.parent.is_dir() else ()
        return exists(path, **options) or any(path.name.lower() == other.name.lower() for other in siblings)

    with Hub(tmp_path / "origin") as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "exists", folded)
            error = failure(place.target(), place.settings())
        assert error.reason is Reason.DOWNLOAD_FAILED
        assert "Config.json and config.json are one file on the cache volume" in error.message
        assert hub.asked("*/resolve/*") == []
        fetch(place.target(), place.settings())  # a volume that keeps them apart
        assert same_content(place.path, origin)


def test_a_full_volume_names_what_was_begun_and_left_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that was deleted in mid-download leaves hundreds of gigabytes under a name that `ls` does not show."""
    left = place.path.with_name(".hf-of-a-deleted-service.partial")
    left.mkdir(parents=True)
    monkeypatch.setattr(Store, "free_bytes", lambda _: 100_000)
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DISK_FULL
    assert f"it also holds {left.name}" in error.message
    assert place.partial.name not in error.message
    assert f"hf://{NAME} at {place.commit[:12]}" in error.message


def test_a_volume_without_room_for_the_lock_is_full_and_nobody_is_waited_for_afterwards(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that could be created but not written was taken for another pod's, for as long as a dead one is."""
    write_text = Path.write_text

    def refuse(path: Path, *arguments: Any, **options: Any) -> int:
        if path.parent == Store(place.path).lock:
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_text(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", refuse)
        assert failure(place.target(), place.settings()).reason is Reason.DISK_FULL
    assert list(Store(place.path).lock.iterdir()) == []
    patient = replace(place.settings(), lock_times=LockTimes(beat_seconds=0.05, poll_seconds=0.02, dead_seconds=60.0))
    fetch(place.target(), patient)
    assert same_content(place.path, place.origin)


def test_a_folder_that_is_a_mount_is_refused_before_the_first_byte(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be renamed to it, which would be found out when everything has come, and again at each attempt."""
    place.path.mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == place.path)
    error = failure(place.target(), place.settings())
    assert "name a folder below it" in error.message
    assert place.hub.requests == []


def test_one_service_s_refused_token_is_not_the_other_s(tmp_path: Path) -> None:
    """They share the folder and its lock, and each says what its own credentials lead to."""
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin", token="hf_the-right-one") as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        wrong = place.settings(credentials=Credentials(token="hf_another-one"))
        assert failure(place.target(), wrong).reason is Reason.DOWNLOAD_UNAUTHORIZED
        fetch(place.target(), place.settings(credentials=Credentials(token="hf_the-right-one")))
        asked = len(hub.requests)
        fetch(place.target(), wrong)  # whoever may mount the volume may read it: nobody is asked
        assert len(hub.requests) == asked
    assert same_content(place.path, origin)


def test_a_complete_folder_on_a_volume_that_cannot_be_written_is_used(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that somebody has filled and mounts read-only."""
    fetch(place.target(), place.settings())
    asked = len(place.hub.requests)
    mkdir, real_open = Path.mkdir, os.open

    def no_folder(path: Path, *arguments: Any, **options: Any) -> None:
        if str(path).startswith(str(place.path.parent)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        mkdir(path, *arguments, **options)

    def no_file(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if str(path).startswith(str(place.path.parent)) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_open(path, flags, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", no_folder)
    monkeypatch.setattr(os, "open", no_file)
    fetch(place.target(), place.settings())
    assert len(place.hub.requests) == asked
    other = place.target(path=place.path.with_name("hf-2"))
    assert "mounted read-only" in failure(other, place.settings()).message
