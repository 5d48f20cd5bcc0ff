"""Whatever goes wrong on the way: cured where it can be, and else told by a reason of its own."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.store import Store
from tests.support.fetching import (
    LOADED,
    NAME,
    WEIGHTS,
    Place,
    failure,
    fetch,
    make_repository,
    make_settings,
    names_in,
    quick_limits,
    same_content,
)
from tests.support.hub import Fault, Hub


def test_a_cut_body_is_resumed_where_it_ended(place: Place) -> None:
    place.hub.faults.append(Fault(path=place.weights, cut=30_000, times=1))
    fetch(place.target(), place.settings(limits=quick_limits(part_bytes=10**6)))
    assert [asked.range for asked in place.hub.asked(place.weights)] == [None, "bytes=30000-299999"]
    assert same_content(place.path, place.origin)


def test_a_body_that_is_cut_every_time_is_truncated(place: Place) -> None:
    place.hub.faults.append(Fault(path="/cdn/*", cut=10))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_TRUNCATED
    assert "gave up after 3 attempts" in error.message
    assert not place.path.exists()


def test_a_connection_that_drops_again_and_again_but_brings_much_gets_there(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin" / NAME, weight_bytes=6 * 1024 * 1024)
    with Hub(tmp_path / "origin") as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        hub.faults.append(Fault(path=place.weights, cut=1_200_000, times=5))
        fetch(place.target(), place.settings(limits=quick_limits(part_bytes=10**8)))
        assert len(hub.asked(place.weights)) == 6
    assert same_content(place.path, origin)


def test_a_wrong_byte_is_found_and_the_file_fetched_once_more(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/tokenizer.json", flip=3, times=1))
    fetch(place.target(), place.settings())
    assert len(place.hub.asked("*/tokenizer.json")) == 2
    assert same_content(place.path, place.origin)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_file_that_stays_wrong_is_corrupt_with_both_digests(place: Place, name: str) -> None:
    place.hub.faults.append(Fault(path=place.weights if name == WEIGHTS else f"*/{name}", flip=3))
    error = failure(place.target(), place.settings())
    entry = place.hub.repositories["owner/tiny"].files[name]
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert name in error.message
    assert (entry.sha256 if name == WEIGHTS else entry.blob) in error.message
    assert "fetched twice" in error.message
    assert not place.path.exists()


def test_a_file_that_was_wrong_twice_is_not_resumed_from(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/config.json", flip=3, times=2))
    failure(place.target(), place.settings())
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_bytes_are_unauthorized_at_once(place: Place, status: int) -> None:
    place.hub.faults.append(Fault(path="/cdn/*", status=status))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_UNAUTHORIZED
    assert "Signature" not in error.message


def test_a_file_that_is_gone_is_not_found(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/config.json", status=404))
    assert failure(place.target(), place.settings()).reason is Reason.DOWNLOAD_NOT_FOUND


@pytest.mark.parametrize("path", ["/api/*", "*/resolve/*/config.json", "/cdn/*"])
def test_a_rate_limit_is_waited_for(place: Place, path: str) -> None:
    place.hub.faults.append(Fault(path=path, status=429, headers={"Retry-After": "1"}, times=1))
    started = time.monotonic()
    fetch(place.target(), place.settings())
    assert time.monotonic() - started >= 1.0
    assert names_in(place.path) == LOADED


def test_a_rate_limit_that_does_not_end_has_its_own_reason(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/resolve/*", status=429))
    assert failure(place.target(), place.settings()).reason is Reason.DOWNLOAD_RATE_LIMITED


def test_a_rate_limit_of_an_hour_is_told_at_once(place: Place) -> None:
    place.hub.faults.append(Fault(path="/api/*", status=429, headers={"Retry-After": "3600"}))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_RATE_LIMITED
    assert "3600 s" in error.message
    assert len(place.hub.asked("/api/*")) == 1


def test_a_stalled_connection_is_dropped_and_resumed(place: Place) -> None:
    place.hub.faults.append(Fault(path="/cdn/*", stall=1.5, stall_at=20_000, times=1))
    settings = make_settings(DownloadSpec(hub_endpoint=place.hub.url, stall_seconds=0.3))
    fetch(place.target(), settings)
    assert same_content(place.path, place.origin)


def test_a_peer_that_drips_is_left_and_then_stalled(place: Place) -> None:
    """Bytes do come, so no read ever times out: only the rate tells."""
    place.hub.faults.append(Fault(path="/cdn/*", rate=400))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_STALLED
    assert "too slowly" in error.message


def test_a_server_error_is_tried_again_and_then_told(place: Place) -> None:
    place.hub.faults.append(Fault(path="/cdn/*", status=503, times=2))
    fetch(place.target(), place.settings())
    place.hub.faults.append(Fault(path="/api/*", status=500))
    other = place.target(path=place.path.with_name("hf-2"))
    error = failure(other, place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "status 500" in error.message


def test_an_endpoint_that_is_not_there_is_told_with_what_to_check(place: Place) -> None:
    settings = make_settings(DownloadSpec(hub_endpoint="http://127.0.0.1:1"))
    error = failure(place.target(), settings)
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "127.0.0.1:1 cannot be reached" in error.message
    assert "network policy" in error.message


def test_a_peer_without_ranges_sends_the_whole_file_over_one_connection(place: Place) -> None:
    place.hub.faults.append(Fault(path="/cdn/*", no_ranges=True))
    fetch(place.target(), place.settings())
    assert [asked.range for asked in place.hub.asked(place.weights)] == ["bytes=0-99999"]
    assert same_content(place.path, place.origin)


def test_a_peer_without_ranges_that_cuts_is_read_again_from_the_start(place: Place) -> None:
    place.hub.faults += [
        Fault(path="/cdn/*", no_ranges=True, cut=50_000, times=1),
        Fault(path="/cdn/*", no_ranges=True),
    ]
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)


def test_a_size_that_is_not_the_listed_one_is_corrupt(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/config.json", extra=b"more"))
    assert failure(place.target(), place.settings()).reason is Reason.DOWNLOAD_CORRUPT


def test_a_volume_without_room_is_refused_before_the_first_byte(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "free_bytes", lambda _: 100_000)
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DISK_FULL
    assert "97.7 KiB left" in error.message
    assert place.hub.asked("*/resolve/*") == []


def test_a_limit_the_file_system_does_not_know_is_kept_too(place: Place) -> None:
    """kserve#4852: a kubelet evicts the pod whose emptyDir grew over its sizeLimit, and says little."""
    download = DownloadSpec(hub_endpoint=place.hub.url, cache_bytes_max=200_000)
    assert failure(place.target(), make_settings(download)).reason is Reason.DISK_FULL


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_volume_that_fills_up_meanwhile_is_full(place: Place, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DISK_FULL
    assert not place.path.exists()


def test_a_volume_that_cannot_be_written_says_how_to_make_it_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Store, "open_partial", refuse)
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "fsGroup" in error.message


def test_progress_says_how_much_how_fast_and_how_long(place: Place) -> None:
    progress = Progress()
    fetch(place.target(), place.settings(), progress=progress)
    verdict = progress.current()
    assert verdict.reason is Reason.DOWNLOADING
    assert "(100 %)" in verdict.message
    assert place.commit[:12] in verdict.message
