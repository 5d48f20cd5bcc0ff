"""hf:// through the real huggingface_hub client against a server that speaks the hub's protocol."""

import json
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import set_client_factory, snapshot_download

from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.http_client import make_tls
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.selection import Wanted
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
    same_content,
)
from tests.support.hub import Fault, Hub

TOKEN = "hf_averysecrettoken"


def test_fetches_what_a_server_loads_and_nothing_else(place: Place) -> None:
    fetch(place.target(), place.settings())
    assert names_in(place.path) == LOADED
    assert same_content(place.path, place.origin)
    assert not place.partial.exists()


def test_our_hub_is_one_for_the_library_s_own_download_too(place: Place, tmp_path: Path) -> None:
    """What these tests are worth depends on it."""
    tls = make_tls(Credentials())
    set_client_factory(lambda: httpx2.Client(verify=tls, follow_redirects=True))
    snapshot_download(
        NAME, revision=place.commit, endpoint=place.hub.url, local_dir=tmp_path / "theirs", token=False, max_workers=2
    )
    fetch(place.target(), place.settings())
    assert all((tmp_path / "theirs" / name).read_bytes() == (place.path / name).read_bytes() for name in LOADED)


def test_takes_the_revision_from_the_uri_too(place: Place) -> None:
    fetch(place.target(uri=f"hf://{NAME}@{place.commit}", revision=None), place.settings())
    assert names_in(place.path) == LOADED


def test_never_asks_for_a_pickle_and_says_that_it_was_left_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fetch(place.target(), place.settings())
    assert place.hub.asked("*.bin") == []
    assert any("pytorch_model.bin" in line and "can run code" in line for line in caplog.messages)


def test_a_repository_with_pickles_only_is_refused_in_a_sentence(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin" / NAME)
    (origin / WEIGHTS).unlink()
    with Hub(tmp_path / "origin") as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "pytorch_model.bin" in error.message
    assert "convert the model" in error.message
    assert not place.path.exists()


def test_python_files_come_only_with_declared_code(place: Place) -> None:
    fetch(place.target(wanted=Wanted(code=True)), place.settings())
    assert names_in(place.path) == LOADED | {"modeling_tiny.py"}


def test_a_tokenizer_is_fetched_without_the_weights(place: Place, tokenizer_only: Wanted) -> None:
    fetch(place.target(wanted=tokenizer_only), place.settings())
    assert names_in(place.path) == LOADED - {WEIGHTS}


def test_a_large_file_comes_over_several_connections(place: Place) -> None:
    fetch(place.target(), place.settings())
    ranges = {asked.range for asked in place.hub.asked("/cdn/*")}
    assert {"bytes=0-99999", "bytes=100000-199999", "bytes=200000-299999"} <= ranges


def test_the_token_opens_a_private_repository_and_never_reaches_the_storage(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin", token=TOKEN) as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        fetch(place.target(), place.settings(credentials=Credentials(token=TOKEN)))
        assert {asked.authorization for asked in hub.asked("/cdn/*")} == {None}
        assert {asked.authorization for asked in hub.asked("/api/*")} == {f"Bearer {TOKEN}"}
    assert names_in(place.path) == LOADED


def test_a_private_repository_without_a_token_is_not_found_and_says_what_to_give(tmp_path: Path) -> None:
    """The hub answers 401 both for what does not exist and for what is private."""
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin", token=TOKEN) as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_NOT_FOUND
    assert "the Secret has no token" in error.message


def test_a_wrong_token_is_unauthorized_and_stays_out_of_the_message(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin", token="hf_theotherone") as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        error = failure(place.target(), place.settings(credentials=Credentials(token=TOKEN)))
    assert error.reason is Reason.DOWNLOAD_UNAUTHORIZED
    assert TOKEN not in error.message


def test_a_gated_repository_says_to_accept_its_terms(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin" / NAME)
    with Hub(tmp_path / "origin", gated=True) as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        error = failure(place.target(), place.settings(credentials=Credentials(token=TOKEN)))
    assert error.reason is Reason.DOWNLOAD_UNAUTHORIZED
    assert "accept the model's terms" in error.message


@pytest.mark.parametrize(
    ("uri", "revision", "named"),
    [(f"hf://{NAME}", "0" * 40, "0" * 40), ("hf://owner/other", "0" * 40, "owner/other")],
)
def test_what_does_not_exist_is_not_found(place: Place, uri: str, revision: str, named: str) -> None:
    error = failure(place.target(uri=uri, revision=revision), place.settings())
    assert error.reason is Reason.DOWNLOAD_NOT_FOUND
    assert named in error.message
    assert len(place.hub.asked("/api/*")) == 1  # asking again would not help


def test_a_branch_is_pinned_to_its_commit_and_followed_when_it_moves(place: Place, tmp_path: Path) -> None:
    """LLMKube#619: a cache under a moving name must not serve yesterday's files."""
    target = place.target(revision="main")
    fetch(target, place.settings())
    first = place.commit
    assert json.loads((place.path / ".pratique-fetch.json").read_text())["revision"] == first
    moved = make_repository(tmp_path / "moved" / NAME, seed=2)
    with Hub(tmp_path / "moved") as hub:
        fetch(target, make_settings(DownloadSpec(hub_endpoint=hub.url)))
    assert same_content(place.path, moved)


def test_a_commit_that_is_there_needs_no_network(place: Place) -> None:
    fetch(place.target(), place.settings())
    asked = len(place.hub.requests)
    fetch(place.target(), place.settings())
    assert len(place.hub.requests) == asked


def test_an_answer_of_another_commit_is_refused(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/config.json", headers={"X-Repo-Commit": "f" * 40}))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert place.commit in error.message


def test_a_page_lost_from_the_listing_is_not_a_smaller_repository(place: Place) -> None:
    """A mirror that knows no cursors answers the second page with nothing, and what is on it was never asked for."""
    fault = Fault(path="/api/models/*/tree/*", skip=1, status=200, body=b"[]")
    place.hub.faults.append(fault)
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "left " in error.message
    assert "files out of its listing" in error.message
    assert not place.path.exists()
    place.hub.faults[:] = [replace(fault, times=1)]
    fetch(place.target(), place.settings())  # a page that is lost once is asked for again
    assert names_in(place.path) == LOADED


@pytest.mark.parametrize("answer", [{"sha": "f" * 40, "siblings": []}, {"siblings": []}, {"sha": None}])
def test_a_hub_that_answers_for_another_revision_is_not_believed(place: Place, answer: dict[str, object]) -> None:
    body = json.dumps({"_id": "0", "id": NAME, "modelId": NAME, "private": False, **answer}).encode()
    place.hub.faults.append(Fault(path="/api/models/*/revision/*", status=200, body=body))
    error = failure(place.target(), place.settings())
    assert place.commit in error.message
    assert not place.path.exists()


def test_a_hub_that_names_no_files_is_not_believed(place: Place) -> None:
    body = json.dumps({"_id": "0", "id": NAME, "modelId": NAME, "private": False, "sha": place.commit}).encode()
    place.hub.faults.append(Fault(path="/api/models/*/revision/*", status=200, body=body))
    assert "it names no files" in failure(place.target(), place.settings()).message


def test_a_peer_that_is_no_hub_is_told_in_a_sentence(place: Place) -> None:
    place.hub.faults.append(Fault(path="/api/*", headers={"Content-Type": "text/html"}, status=200, body=b"<html>"))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "does not answer as a hub does" in error.message
