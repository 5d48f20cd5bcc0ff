"""s3:// against a real S3-compatible server, and the rules for what its checksums prove."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from awscrt import checksums

from pratique_contract.manifest import FileEntry
from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.bucket import BucketRemote, choose_checksum
from pratique_server.fetch.expected import Expected
from pratique_server.fetch.fetcher import Fetcher
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.hashing import Checksum
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.resolve import Resolved, resolve
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.store import Store
from pratique_server.fetch.targets import Target
from tests.support import s3
from tests.support.fetching import (
    LOADED,
    WEIGHTS,
    failure,
    fetch,
    make_repository,
    make_settings,
    names_in,
    same_content,
)
from tests.unit.cli.conftest import Run

BUCKET = "models"
CREDENTIALS = Credentials(access_key_id=s3.ACCESS_KEY, secret_access_key=s3.SECRET_KEY)


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3]:
    with s3.serve() as running:
        yield running


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own."""
    return f"{request.node.name.partition('[')[0]}/"


@pytest.fixture
def origin(server: s3.S3, prefix: str, tmp_path: Path) -> Path:
    folder = make_repository(tmp_path / "origin")
    server.upload(BUCKET, prefix, folder)
    return folder


def make_target(prefix: str, tmp_path: Path, **changes: Any) -> Target:
    return Target(
        **{"uri": f"s3://{BUCKET}/{prefix}", "revision": None, "path": tmp_path / "cache" / "s3-1", **changes}
    )


def settings_for(server: s3.S3, credentials: Credentials = CREDENTIALS) -> Any:
    return make_settings(DownloadSpec(s3_endpoint=server.endpoint), credentials=credentials)


def test_fetches_what_a_server_loads_below_the_prefix(server: s3.S3, prefix: str, origin: Path, tmp_path: Path) -> None:
    target = make_target(prefix, tmp_path)
    fetch(target, settings_for(server))
    assert names_in(target.path) == LOADED
    assert same_content(target.path, origin)


def test_the_store_s_own_checksum_is_what_an_object_is_held_against(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    content = (origin / WEIGHTS).read_bytes()
    digest = hashlib.sha256(content)
    headers: Any = {
        "x-amz-checksum-sha256": base64.b64encode(digest.digest()).decode(),
        "x-amz-sdk-checksum-algorithm": "SHA256",
    }
    server.client.put_object(BUCKET, f"{prefix}{WEIGHTS}", io.BytesIO(content), len(content), metadata=headers)
    target = make_target(prefix, tmp_path)
    fetch(target, settings_for(server))
    receipt = Store(target.path).read_receipt()
    assert receipt is not None
    (version,) = [entry.version for entry in receipt.files if entry.path == WEIGHTS]
    assert version.endswith(f"sha256:{digest.hexdigest()}")


@pytest.mark.parametrize("algorithm", ["crc64nvme", "crc32c"])
def test_the_checksum_that_clients_leave_with_large_objects_is_computed(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path, algorithm: str
) -> None:
    """The ETag of an object that came in parts says nothing of its bytes: this is all the store knows of the whole."""
    name = f"x-amz-checksum-{algorithm}"
    content = (origin / WEIGHTS).read_bytes()
    value = getattr(checksums, algorithm)(content).to_bytes(8 if algorithm == "crc64nvme" else 4, "big")
    target = make_target(prefix, tmp_path)

    def upload(checksum: bytes) -> None:
        headers: Any = {name: base64.b64encode(checksum).decode(), "x-amz-sdk-checksum-algorithm": algorithm.upper()}
        server.client.put_object(BUCKET, f"{prefix}{WEIGHTS}", io.BytesIO(content), len(content), metadata=headers)

    upload(bytes(len(value)))
    error = failure(target, settings_for(server))
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert f"{WEIGHTS} is {algorithm}:{value.hex()}; the source says" in error.message
    upload(value)
    fetch(target, settings_for(server))
    receipt = Store(target.path).read_receipt()
    assert receipt is not None
    assert [e.version.partition(" ")[2] for e in receipt.files if e.path == WEIGHTS] == [f"{algorithm}:{value.hex()}"]


def test_an_object_that_was_replaced_is_fetched_anew_and_the_others_are_kept(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    """LLMKube#619: nothing in the URI says that the bytes behind it are others now."""
    target = make_target(prefix, tmp_path)
    fetch(target, settings_for(server))
    kept = (target.path / WEIGHTS).stat().st_ino
    (origin / "config.json").write_text('{"another": true}')
    server.upload(BUCKET, prefix, origin)
    fetch(target, settings_for(server))
    assert same_content(target.path, origin)
    assert (target.path / WEIGHTS).stat().st_ino == kept


def test_an_object_that_is_replaced_while_it_is_fetched_is_never_put_together_from_both(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of two uploads have a right length and no right digest; the store itself is asked to refuse."""
    locate, asked = BucketRemote.locate, []

    def replace_before_the_second_part(remote: BucketRemote, file: Any) -> Any:
        asked.append(file.path)
        if asked.count(WEIGHTS) == 2:
            server.client.put_object(BUCKET, f"{prefix}{WEIGHTS}", io.BytesIO(bytes(300_000)), 300_000)
        return locate(remote, file)

    monkeypatch.setattr(BucketRemote, "locate", replace_before_the_second_part)
    target = make_target(prefix, tmp_path)
    error = failure(target, settings_for(server))
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert f"{WEIGHTS} was replaced" in error.message
    assert not target.path.exists()
    fetch(target, settings_for(server))
    assert (target.path / WEIGHTS).read_bytes() == bytes(300_000)


def test_an_object_that_was_added_is_fetched_and_one_that_was_removed_goes(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    target = make_target(prefix, tmp_path)
    fetch(target, settings_for(server))
    server.client.put_object(BUCKET, f"{prefix}generation_config.json", io.BytesIO(b"{}"), 2)
    server.client.remove_object(BUCKET, f"{prefix}merges.txt")
    fetch(target, settings_for(server))
    assert names_in(target.path) == LOADED - {"merges.txt"} | {"generation_config.json"}


def test_an_unchanged_prefix_is_listed_and_not_fetched_again(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    target = make_target(prefix, tmp_path)
    fetch(target, settings_for(server))
    before = target.path.stat().st_mtime_ns
    fetch(target, settings_for(server))
    assert target.path.stat().st_mtime_ns == before


def test_with_a_release_record_a_folder_that_matches_needs_no_network(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256((origin / WEIGHTS).read_bytes()).hexdigest()
    entry = FileEntry(path=WEIGHTS, size=300_000, sha256=f"sha256:{digest}")
    target = make_target(prefix, tmp_path, expected=Expected({WEIGHTS: entry}))
    fetch(target, settings_for(server))
    fetch(target, make_settings(DownloadSpec(s3_endpoint="http://127.0.0.1:1")))


def test_objects_that_are_not_the_approved_ones_are_corrupt(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    entry = FileEntry(path=WEIGHTS, size=300_000, sha256=f"sha256:{'0' * 64}")
    target = make_target(prefix, tmp_path, expected=Expected({WEIGHTS: entry}))
    error = failure(target, settings_for(server))
    digest = hashlib.sha256((origin / WEIGHTS).read_bytes()).hexdigest()
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert all(part in error.message for part in (WEIGHTS, digest, "0" * 64))
    assert not target.path.exists()


def resolved(server: s3.S3, prefix: str, **wanted: bool) -> Resolved:
    fetcher = Fetcher(settings_for(server), Progress(), Halt())
    try:
        return resolve(fetcher, f"s3://{BUCKET}/{prefix}", None, Wanted(**wanted))
    finally:
        fetcher.close()


def test_a_resolved_prefix_is_immutable_and_refused_when_an_object_was_replaced(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    """LLMKube#619: a bucket has no name for what it held when the release was declared; the digest of its list is one."""
    found = resolved(server, prefix)
    assert (found.uri, found.revision[:7]) == (f"s3://{BUCKET}/{prefix.rstrip('/')}", "sha256:")
    assert {file.path for file in found.files} == LOADED
    target = make_target(prefix, tmp_path, uri=found.uri, revision=found.revision)
    fetch(target, settings_for(server))
    assert same_content(target.path, origin)
    (origin / "config.json").write_text('{"another": true}')
    server.upload(BUCKET, prefix, origin)
    error = failure(replace(target, path=tmp_path / "cache" / "s3-2"), settings_for(server))
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert found.revision in error.message
    assert resolved(server, prefix).revision in error.message
    fetch(
        target, make_settings(DownloadSpec(s3_endpoint="http://127.0.0.1:1"))
    )  # what came before needs the bucket no more


def test_the_command_prints_a_prefix_s_revision_and_says_what_only_a_record_proves(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path, pratique: Run
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "accessKeyId").write_text(s3.ACCESS_KEY)
    (secret / "secretAccessKey").write_text(s3.SECRET_KEY)
    server.client.put_object(
        BUCKET, f"{prefix}model-2.safetensors", io.BytesIO(bytes(6 * 2**20)), -1, part_size=5 * 2**20
    )
    options = ("--s3-endpoint", server.endpoint, "--credentials", secret)
    result = pratique("resolve", f"s3://{BUCKET}/{prefix}", *options)
    assert result.code == 0, result.err
    uri, revision = (line.partition(": ")[2] for line in result.out.splitlines())
    assert (uri, revision) == (f"s3://{BUCKET}/{prefix.rstrip('/')}", resolved(server, prefix).revision)
    assert "only a release record proves the bytes: model-2.safetensors" in result.err
    assert s3.SECRET_KEY not in result.err
    assert pratique("resolve", uri, "--revision", revision, *options).out == result.out
    other = pratique("resolve", uri, "--revision", f"sha256:{'0' * 64}", *options)
    assert (other.code, other.out) == (3, "")
    assert revision in other.err


def test_what_no_server_loads_moves_no_revision(server: s3.S3, prefix: str, origin: Path) -> None:
    before = resolved(server, prefix).revision
    (origin / "README.md").write_text("another story")
    server.upload(BUCKET, prefix, origin)
    assert resolved(server, prefix).revision == before
    assert resolved(server, prefix, weights=False).revision == before
    server.client.remove_object(BUCKET, f"{prefix}merges.txt")
    assert resolved(server, prefix).revision != before


def test_a_tokenizer_s_folder_gets_its_weights_when_they_are_wanted(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path
) -> None:
    fetch(make_target(prefix, tmp_path, wanted=Wanted(weights=False)), settings_for(server))
    target = make_target(prefix, tmp_path)
    kept = (target.path / "tokenizer.json").stat().st_ino
    fetch(target, settings_for(server))
    assert names_in(target.path) == LOADED
    assert same_content(target.path, origin)
    assert (target.path / "tokenizer.json").stat().st_ino == kept


def test_a_bucket_that_is_not_there_is_not_found(server: s3.S3, tmp_path: Path) -> None:
    target = make_target("x/", tmp_path, uri="s3://no-such-bucket/x")
    error = failure(target, settings_for(server))
    assert error.reason is Reason.DOWNLOAD_NOT_FOUND
    assert "NoSuchBucket" in error.message


def test_a_prefix_with_nothing_below_it_is_not_found(server: s3.S3, origin: Path, tmp_path: Path) -> None:
    error = failure(make_target("no/such/prefix", tmp_path), settings_for(server))
    assert error.reason is Reason.DOWNLOAD_NOT_FOUND
    assert "holds no object" in error.message


def test_a_bucket_s_policy_that_refuses_is_unauthorized(server: s3.S3, tmp_path: Path) -> None:
    server.client.make_bucket("closed")
    server.client.put_object("closed", "config.json", io.BytesIO(b"{}"), 2)
    server.client.put_object("closed", WEIGHTS, io.BytesIO(b"w"), 1)
    statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::closed/*"}
    server.client.set_bucket_policy("closed", json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    error = failure(make_target("", tmp_path, uri="s3://closed"), settings_for(server))
    assert error.reason is Reason.DOWNLOAD_UNAUTHORIZED
    assert s3.SECRET_KEY not in error.message


def test_the_signature_stays_out_of_what_is_said(
    server: s3.S3, prefix: str, origin: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pratique_server")
    target = make_target(prefix, tmp_path)
    fetch(target, settings_for(server))
    receipt = (target.path / ".pratique-fetch.json").read_text()
    assert "Signature" not in caplog.text + receipt
    assert s3.ACCESS_KEY not in caplog.text + receipt


SHA256 = base64.b64encode(bytes(range(32))).decode()
MD5 = "0" * 32


@pytest.mark.parametrize(
    ("etag", "headers", "expected"),
    [
        (MD5, {"x-amz-checksum-sha256": SHA256}, Checksum("sha256", bytes(range(32)).hex())),
        (MD5, {}, Checksum("md5", MD5)),
        (MD5, {"x-amz-checksum-sha256": f"{SHA256}-3"}, Checksum("md5", MD5)),
        (f"{MD5}-3", {"x-amz-checksum-type": "COMPOSITE", "x-amz-checksum-sha256": SHA256}, None),
        (f"{MD5}-3", {}, None),
        (f"{MD5}-3", {"x-amz-checksum-type": "COMPOSITE", "x-amz-checksum-crc32c": "AAAAAA=="}, None),
        (
            f"{MD5}-3",
            {"x-amz-checksum-type": "FULL_OBJECT", "x-amz-checksum-crc64nvme": "rosUhgp5mIg="},
            Checksum("crc64nvme", "ae8b14860a799888"),
        ),
        (MD5, {"x-amz-server-side-encryption": "aws:kms"}, None),
        (MD5, {"x-amz-server-side-encryption": "AES256"}, Checksum("md5", MD5)),
        (MD5, {"x-amz-server-side-encryption-customer-algorithm": "AES256"}, None),
    ],
)
def test_only_a_checksum_of_the_whole_object_counts(
    etag: str, headers: dict[str, str], expected: Checksum | None
) -> None:
    assert choose_checksum(etag, headers) == expected
