"""What stands under the final name: complete and verified, or nothing; damaged later, it is found and repaired."""

import hashlib
import json
import random
import resource
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pratique_contract.manifest import FileEntry
from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.artifacts.files import CONFIG_OMITTED, hash_json_file
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.expected import Expected
from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.store import Receipt, Store
from pratique_server.fetch.targets import Target
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


def entry_of(path: Path, digest: str | None = None) -> FileEntry:
    return FileEntry(
        path=path.name,
        size=path.stat().st_size,
        sha256=digest or f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip(folder / WEIGHTS),
        lambda folder: (folder / WEIGHTS).write_bytes(b""),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "extra.json").write_text("{}"),
        lambda folder: link(folder / "tokenizer.json", "config.json"),
    ],
    ids=["flipped", "emptied", "removed", "added", "linked"],
)
def test_a_folder_damaged_later_is_found_and_repaired(place: Place, damage: object) -> None:
    fetch(place.target(), place.settings())
    assert callable(damage)
    damage(place.path)
    asked = len(place.hub.asked("*/resolve/*"))
    fetch(place.target(), place.settings())
    assert names_in(place.path) == LOADED
    assert same_content(place.path, place.origin)
    assert len(place.hub.asked("*/resolve/*")) - asked <= 3  # what was whole is not fetched again


def test_a_damaged_folder_has_lost_its_name_when_it_cannot_be_repaired(place: Place) -> None:
    """A partial or wrong file is never loaded, whatever happens to the repair."""
    fetch(place.target(), place.settings())
    flip(place.path / WEIGHTS)
    place.hub.faults.append(Fault(path=place.weights, status=500))
    failure(place.target(), place.settings())
    assert not place.path.exists()
    place.hub.faults.clear()
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)


def test_a_tokenizer_s_folder_gets_its_weights_without_losing_its_name(place: Place, tokenizer_only: Wanted) -> None:
    fetch(place.target(wanted=tokenizer_only), place.settings())
    folder = place.path.stat().st_ino
    fetch(place.target(), place.settings())
    assert names_in(place.path) == LOADED
    assert place.path.stat().st_ino == folder
    assert not place.partial.exists()
    fetch(place.target(wanted=tokenizer_only), place.settings())  # and the tokenizer's pod is content with it
    assert names_in(place.path) == LOADED


def test_a_holder_that_was_taken_for_dead_waits_for_its_successor(place: Place) -> None:
    """A node that hung for a minute: the one that took over may be half-way; when it lets go, the rest is fetched."""
    place.hub.faults.append(Fault(path=place.weights, rate=200_000, times=1))
    fetching = threading.Thread(target=fetch, args=(place.target(), place.settings()))
    fetching.start()
    store = Store(place.path)
    deadline = time.monotonic() + 10
    while not place.hub.asked(place.weights) and time.monotonic() < deadline:
        time.sleep(0.01)
    successor = {"beat": "released", "name": "pod-b", "line": "", "process": {}}
    (store.lock / "00000002").write_text(json.dumps(successor))
    fetching.join(timeout=20)
    assert same_content(place.path, place.origin)
    assert names_in(place.path) == LOADED
    assert max(path.name for path in store.lock.iterdir()) == "00000003"


def test_more_files_than_a_process_may_have_open(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin" / NAME)
    for number in range(150):
        (origin / f"extra-{number}.json").write_text(f'{{"number": {number}}}')
    (origin / "empty.json").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Hub(tmp_path / "origin") as hub:
        place = Place(hub, origin, tmp_path / "cache" / "hf-1")
        used = len(list(Path("/proc/self/fd").iterdir()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, hard))
        try:
            fetch(place.target(), place.settings())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(names_in(place.path)) == len(LOADED) + 151
    assert same_content(place.path, origin)


def test_a_folder_of_other_files_is_left_alone(place: Place) -> None:
    place.path.mkdir(parents=True)
    (place.path / "thesis.txt").write_text("years of work")
    error = failure(place.target(), place.settings())
    assert "no fetch has put there" in error.message
    assert names_in(place.path) == {"thesis.txt"}


def test_an_empty_folder_is_filled(place: Place) -> None:
    """A kubelet makes one where a container mounts a folder of the volume that is not there."""
    place.path.mkdir(parents=True)
    fetch(place.target(), place.settings())
    assert names_in(place.path) == LOADED


def test_a_folder_of_another_source_is_refused(place: Place) -> None:
    fetch(place.target(), place.settings())
    error = failure(place.target(uri="hf://owner/other"), place.settings())
    assert f"holds hf://{NAME}" in error.message


def test_what_an_earlier_attempt_left_behind_is_not_published(place: Place) -> None:
    place.partial.mkdir(parents=True)
    (place.partial / "evil.json").write_text("{}")
    (place.partial / WEIGHTS).write_bytes(bytes(300_000))
    fetch(place.target(), place.settings())
    assert names_in(place.path) == LOADED
    assert same_content(place.path, place.origin)


def test_a_link_in_the_partial_folder_is_not_followed(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    place.partial.mkdir(parents=True)
    (place.partial / "config.json").symlink_to(outside)
    fetch(place.target(), place.settings())
    assert outside.read_text() == "mine"
    assert same_content(place.path, place.origin)


def test_links_that_another_tenant_of_the_volume_planted_lead_nowhere(place: Place, tmp_path: Path) -> None:
    """Whoever shares the cache volume can put a link where a folder of ours is to be: we would write, and remove, elsewhere."""
    outside = tmp_path / "outside"
    (outside / "additional_chat_templates").mkdir(parents=True)
    (outside / "mine.json").write_text("mine")
    before = sorted(path.name for path in outside.rglob("*"))
    place.partial.parent.mkdir(parents=True)
    place.partial.symlink_to(outside)
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)
    shutil.rmtree(place.path)
    (place.partial / ".state").parent.mkdir()
    (place.partial / ".state").symlink_to(outside)
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)
    assert sorted(path.name for path in outside.rglob("*")) == before
    shutil.rmtree(place.path)
    place.path.symlink_to(outside)
    assert "is a link" in failure(place.target(), place.settings()).message
    assert sorted(path.name for path in outside.rglob("*")) == before


@pytest.mark.parametrize("form", ["bytes", "json"])
def test_a_source_that_is_not_the_approved_release_is_corrupt(place: Place, form: str) -> None:
    """LLMKube#1767: another model behind the same status. Also where the folder is there already, and without fetching it again."""
    path = place.origin / ("config.json" if form == "json" else WEIGHTS)
    entry = entry_of(path, f"sha256:{'0' * 64}").model_copy(update={"form": form})
    target = place.target(expected=Expected({entry.path: entry}))
    error = failure(target, place.settings())
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert entry.path in error.message
    assert entry.sha256 in error.message
    assert not place.path.exists()
    asked = len(place.hub.asked("*/resolve/*"))
    assert failure(target, place.settings()).reason is Reason.DOWNLOAD_CORRUPT
    fetch(place.target(), place.settings())
    assert failure(target, place.settings()).reason is Reason.DOWNLOAD_CORRUPT
    assert len(place.hub.asked("*/resolve/*")) == asked


def test_the_approved_release_passes_in_both_forms(place: Place) -> None:
    config = hash_json_file(place.origin / "config.json", CONFIG_OMITTED)
    json_entry = FileEntry(
        path="config.json", size=config.size, sha256=config.sha256, form="json", omitted=tuple(config.omitted)
    )
    weights = entry_of(place.origin / WEIGHTS)
    target = place.target(expected=Expected({"config.json": json_entry, WEIGHTS: weights}))
    fetch(target, place.settings())
    assert names_in(place.path) == LOADED


def test_a_file_the_record_names_and_the_source_has_not_is_told(place: Place) -> None:
    entry = FileEntry(path="vocab.json", size=2, sha256=f"sha256:{'1' * 64}")
    error = failure(place.target(expected=Expected({"vocab.json": entry})), place.settings())
    assert "vocab.json is not in the source" in error.message


def test_the_receipt_names_every_file_with_its_digest(place: Place) -> None:
    fetch(place.target(), place.settings())
    receipt = Store(place.path).read_receipt()
    assert isinstance(receipt, Receipt)
    assert {f.path: f.sha256 for f in receipt.files} == {
        name: hashlib.sha256((place.origin / name).read_bytes()).hexdigest() for name in LOADED
    }


@pytest.mark.parametrize("name", ["../stolen.json", "/etc/hostname", "a/../../x.json", ".hidden.json"])
def test_a_receipt_that_names_files_elsewhere_is_none(place: Place, name: str) -> None:
    """Another tenant of the volume can write one: what it names would be hashed, kept, and noted down beside."""
    fetch(place.target(), place.settings())
    path = place.path / ".pratique-fetch.json"
    receipt = json.loads(path.read_text())
    receipt["files"][0]["path"] = name
    path.write_text(json.dumps(receipt))
    assert Store(place.path).read_receipt() is None
    assert "holds files that no fetch has put there" in failure(place.target(), place.settings()).message


def test_a_receipt_that_is_no_receipt_makes_nobody_believe_the_folder(place: Place) -> None:
    fetch(place.target(), place.settings())
    (place.path / ".pratique-fetch.json").write_text(json.dumps({"files": []}))
    assert "no fetch has put there" in failure(place.target(), place.settings()).message


FAULTS = st.builds(
    Fault,
    path=st.sampled_from(["*", "/cdn/*", "*/config.json", "*/resolve/*", "*/tokenizer.json", "/api/*"]),
    times=st.integers(1, 4),
    skip=st.integers(0, 2),
    status=st.sampled_from([None, None, None, None, 200, 206, 302, 404, 416, 429, 500]),
    body=st.sampled_from([b"", b"x", b"[]", b"{}"]),
    cut=st.none() | st.integers(0, 40_000),
    flip=st.none() | st.integers(0, 40_000),
    no_ranges=st.booleans(),
    extra=st.sampled_from([b"", b"more"]),
    headers=st.sampled_from(
        [
            {},
            {},
            {"Content-Range": "bytes 0-9/10"},
            {"Content-Length": None, "Connection": "close"},
            {"Content-Encoding": "gzip"},
            {"X-Repo-Commit": "f" * 40},
            {"ETag": '"0"'},
        ]
    ),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(faults=st.lists(FAULTS, max_size=4), seed=st.integers(0, 1000))
def test_whatever_the_peer_sends_a_folder_that_is_accepted_is_the_source_s(
    tmp_path_factory: pytest.TempPathFactory, faults: list[Fault], seed: int
) -> None:
    """And one that is not accepted is not there. Faults are used up, so a second attempt often succeeds, from what the first one left."""
    root = tmp_path_factory.mktemp("peer")
    origin = make_repository(root / "origin" / NAME, weight_bytes=random.Random(seed).randrange(40_000), seed=seed)
    with Hub(root / "origin") as hub:
        hub.faults += faults
        place = Place(hub, origin, root / "cache" / "hf-1")
        target = Target(uri=f"hf://{NAME}", revision=place.commit, path=place.path)
        for _ in range(2):
            try:
                fetch(target, make_settings(DownloadSpec(hub_endpoint=hub.url)))
            except FetchError:
                assert not place.path.exists()
                continue
            assert names_in(place.path) == LOADED
            assert same_content(place.path, origin)
            break
    shutil.rmtree(root)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link(path: Path, to: str) -> None:
    path.unlink()
    path.symlink_to(to)
