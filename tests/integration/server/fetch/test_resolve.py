"""``pratique resolve``: a name that can move becomes one that cannot, and a pod can fetch what was printed."""

import json
import ssl
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from pratique_server.fetch.progress import size_text
from pratique_server.fetch.store import Store
from pratique_server.fetch.targets import Target
from pratique_server.fetch.uris import parse_source
from tests.support.fetching import LOADED, NAME, Place, fetch, make_repository, make_settings, names_in
from tests.support.hub import Fault, Hub, Peer
from tests.support.registry import INDEX, MANIFEST, Registry, digest_of, file_layer, make_tar
from tests.unit.cli.conftest import Run

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 1000, "tokenizer.json": b"{}"}
ARTIFACT = [file_layer(name, content) for name, content in FILES.items()]
ARCHIVE = make_tar({f"tiny/{name}": content for name, content in FILES.items()})


def read(out: str) -> tuple[str, str]:
    value = yaml.safe_load(out)
    assert list(value) == ["uri", "revision"]
    return value["uri"], value["revision"]


@pytest.mark.parametrize(
    "arguments", [(f"hf://{NAME}@main",), (f"hf://{NAME}", "--revision", "main"), (f"hf://{NAME}",)]
)
def test_a_branch_becomes_its_commit(place: Place, pratique: Run, arguments: tuple[str, ...]) -> None:
    result = pratique("resolve", *arguments, "--hub-endpoint", place.hub.url)
    assert result.code == 0, result.err
    assert read(result.out) == (f"hf://{NAME}", place.commit)
    assert f"A pod fetches {len(LOADED)} files, " in result.err
    uri, revision = read(result.out)
    fetch(place.target(uri=uri, revision=revision), place.settings())


def test_nothing_is_fetched_to_learn_a_commit(place: Place, pratique: Run) -> None:
    assert pratique("resolve", f"hf://{NAME}@main", "--hub-endpoint", place.hub.url).code == 0
    assert not place.hub.asked(f"/{NAME}/resolve/*")
    assert not place.hub.asked("/cdn/*")


def test_programs_get_every_file_with_its_checksum(place: Place, pratique: Run) -> None:
    result = pratique("resolve", f"hf://{NAME}@main", "--hub-endpoint", place.hub.url, "-o", "json")
    value = json.loads(result.out)
    assert (value["uri"], value["revision"]) == (f"hf://{NAME}", place.commit)
    assert {file["path"] for file in value["files"]} == LOADED
    assert all(file["checksum"].partition(":")[0] in ("sha256", "git") for file in value["files"])


def test_a_tokenizer_is_resolved_without_weights_and_code_with_it(place: Place, pratique: Run) -> None:
    def names(*options: str) -> set[str]:
        result = pratique("resolve", f"hf://{NAME}", "--hub-endpoint", place.hub.url, "-o", "json", *options)
        return {file["path"] for file in json.loads(result.out)["files"]}

    assert names("--tokenizer-only") == LOADED - {"model.safetensors"}
    assert names("--code") == LOADED | {"modeling_tiny.py"}


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        (f"hf://{NAME}@no-such-branch", "has no revision no-such-branch of hf://owner/tiny: check the commit"),
        ("hf://owner/none", "DownloadNotFound"),
        ("hf://gpt2", "a manifest takes hf://OWNER/NAME"),
        ("pvc://models/tiny", "is mounted, not fetched, and has no revision"),
        ("oci://127.0.0.1/models/tiny", "oci://registry/repository:tag"),
        ("oci://127.0.0.1/models/tiny@v1", "oci://registry/repository:tag"),
        ("https://127.0.0.1/tiny.tar?token=secret", "credentials go into the Secret"),
        ("https://127.0.0.1/tiny.zip", "https://HOST/PATH.tar"),
        ("s3://bucket/prefix --revision main", "the digest that pratique resolve prints"),
    ],
)
def test_what_cannot_be_resolved_is_told_in_one_sentence(
    place: Place,
    pratique: Run,
    uri: str,
    sentence: str,
) -> None:
    result = pratique("resolve", *uri.split(), "--hub-endpoint", place.hub.url)
    assert result.code == 3
    assert result.out == ""
    assert sentence in result.err
    assert "secret" not in result.err


@pytest.mark.parametrize("said", ["main", "v1.0", "refs/pr/1", "", "a" * 39, "A" * 40])
def test_a_hub_that_answers_a_branch_with_another_moving_name_is_not_believed(
    place: Place, pratique: Run, said: str
) -> None:
    place.hub.repositories[NAME].commit = said
    result = pratique("resolve", f"hf://{NAME}@main", "--hub-endpoint", place.hub.url)
    assert (result.code, result.out) == (3, "")
    assert "no commit" in result.err


def test_what_a_hub_calls_its_files_does_not_steer_the_terminal(tmp_path: Path, pratique: Run) -> None:
    """A listing may hold any name; those that are not fetched are told, on a terminal and in a pod's log."""
    folder = make_repository(tmp_path / "origin" / NAME)
    names = ("\x1b]2;owned\x07.json", "a\nDownloadCorrupt: forged.json", "\u202egnp.json")
    for name in names:
        (folder / name).write_text("{}")
    with Hub(tmp_path / "origin") as hub:
        result = pratique("resolve", f"hf://{NAME}", "--hub-endpoint", hub.url)
    assert result.code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(result.err)
    assert not any(line.startswith("DownloadCorrupt") for line in result.err.splitlines())
    assert r"'\x1b]2;owned\x07.json'" in result.err


def test_credentials_are_those_of_fetch(tmp_path: Path, pratique: Run) -> None:
    make_repository(tmp_path / "origin" / NAME)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("hf_a-token-of-a-person")
    with Hub(tmp_path / "origin", token="hf_a-token-of-a-person") as hub:
        assert "DownloadNotFound" in pratique("resolve", f"hf://{NAME}", "--hub-endpoint", hub.url).err
        result = pratique("resolve", f"hf://{NAME}", "--hub-endpoint", hub.url, "--credentials", secret)
    assert result.code == 0
    assert "hf_a-token" not in result.err


class Tagged(Registry):
    def tag(self, name: str, digest: str) -> None:
        self._manifests[name] = self._manifests[digest]


@pytest.fixture
def registry() -> Iterator[Tagged]:
    with Tagged() as made:
        yield made


def test_a_tag_becomes_the_digest_of_its_manifest(registry: Tagged, pratique: Run, tmp_path: Path) -> None:
    digest = registry.push(*ARTIFACT)
    registry.tag("v1", digest)
    registry.faults.append(Fault(path="*/manifests/v1", times=1, status=503, headers={"Retry-After": "0"}))
    result = pratique("resolve", f"oci://{registry.host}/models/tiny:v1")
    assert result.code == 0, result.err
    assert read(result.out) == (f"oci://{registry.host}/models/tiny@{digest}", digest)
    assert "Trying again" in result.err
    registry.tag("v1", registry.push(*ARTIFACT, file_layer("merges.txt", b"new")))
    uri, revision = read(result.out)
    moved = pratique("resolve", uri, "--revision", revision)
    assert moved.out == result.out
    target = Target(uri=uri, revision=revision, path=tmp_path / "oci")
    fetch(target, make_settings())
    assert names_in(target.path) == set(FILES)


def test_a_tag_of_an_index_becomes_the_index_s_digest(registry: Tagged, pratique: Run) -> None:
    """The index is what was published; which of its manifests a node takes follows from it."""
    manifest = registry.push(*ARTIFACT)
    entry = {"mediaType": MANIFEST, "digest": manifest, "size": 1}
    index = registry.push_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    registry.tag("latest", index)
    result = pratique("resolve", f"oci://{registry.host}/models/tiny", "--revision", "latest")
    assert read(result.out)[1] == index


def test_a_tag_that_is_not_there_is_not_found(registry: Tagged, pratique: Run) -> None:
    result = pratique("resolve", f"oci://{registry.host}/models/tiny:v9")
    assert result.code == 3
    assert "DownloadNotFound: 127.0.0.1 has no manifest v9" in result.err


class Site(Peer):
    """One archive at /tiny.tar.gz."""

    content = ARCHIVE

    def answer(self, request: Any) -> None:
        if request.route == "/tiny.tar.gz":
            request.send_content(self.content, {})
        else:
            request.send(404, b"")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Site, Path]]:
    """The site, and a Secret with its authority."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    secret = tmp_path / "secret"
    secret.mkdir()
    authority.cert_pem.write_to_path(str(secret / "ca.crt"))
    with Site(tls=tls) as made:
        yield made, secret


def test_an_archive_is_read_for_its_digest_and_not_kept(
    site: tuple[Site, Path],
    pratique: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    peer, secret = site
    peer.faults.append(Fault(path="/tiny.tar.gz", skip=1, times=1, cut=1000))
    result = pratique("resolve", f"{peer.url}/tiny.tar.gz", "--credentials", secret)
    assert result.code == 0, result.err
    assert read(result.out) == (f"{peer.url}/tiny.tar.gz", digest_of(ARCHIVE))
    assert "compare it with the one its publisher names" in result.err
    assert f"A pod fetches 1 file, {size_text(len(ARCHIVE))}" in result.err
    assert list(room.iterdir()) == []
    assert parse_source(*read(result.out)).immutable


def test_an_archive_that_is_replaced_while_it_is_read_has_no_digest(
    site: tuple[Site, Path],
    pratique: Run,
) -> None:
    peer, secret = site
    peer.faults.append(Fault(path="/tiny.tar.gz", times=1, headers={"ETag": '"one"'}))
    peer.faults.append(Fault(path="/tiny.tar.gz", headers={"ETag": '"another"'}))
    result = pratique("resolve", f"{peer.url}/tiny.tar.gz", "--credentials", secret)
    assert result.code == 3
    assert "was replaced while it was being read" in result.err


def test_an_archive_that_does_not_fit_says_where_it_was_to_go(
    site: tuple[Site, Path],
    pratique: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Store, "free_bytes", lambda _: 1000)
    peer, secret = site
    result = pratique("resolve", f"{peer.url}/tiny.tar.gz", "--credentials", secret)
    assert result.code == 3
    assert "DiskFull" in result.err
    assert "set TMPDIR" in result.err


@pytest.mark.parametrize("command", ["resolve", "fetch"])
def test_a_retry_is_told_once(place: Place, pratique: Run, command: str) -> None:
    """The log says it, and the line about the progress, which is logged too, is the same news."""
    place.hub.faults.append(Fault(path="/api/models/*", times=1, status=429, headers={"Retry-After": "2"}))
    folder = (place.path,) if command == "fetch" else ()
    result = pratique(command, f"hf://{NAME}@{place.commit}", *folder, "--hub-endpoint", place.hub.url)
    assert result.code == 0, result.err
    assert len([line for line in result.err.splitlines() if line.startswith("Trying again")]) == 1, result.err


def test_a_rate_limit_of_all_connections_is_told_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Connections that are refused in the same pause say nothing new; whoever is refused after it does."""
    place.hub.faults.append(Fault(path="/*/resolve/*", times=4, status=429, headers={"Retry-After": "1"}))
    fetch(place.target(), place.settings())
    told = [record.created for record in caplog.records if record.message.startswith("Trying again")]
    assert told
    assert all(after - before > 0.9 for before, after in pairwise(told)), told


def test_the_last_word_of_a_fetch_is_that_all_is_there(place: Place, pratique: Run) -> None:
    place.hub.faults.append(Fault(path=place.weights, rate=200_000, times=1))
    result = pratique("fetch", f"hf://{NAME}@{place.commit}", place.path, "--hub-endpoint", place.hub.url)
    assert (result.code, "Downloading" in result.err) == (0, True), result.err
    assert result.err.splitlines()[-1].startswith("Fetched "), result.err
