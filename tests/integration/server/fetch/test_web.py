"""https:// over real TLS with an authority of our own: the archive's digest, its certificate, and what an archive may not do."""

import ssl
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch import transfer
from pratique_server.fetch.secrets import Credentials, read_credentials
from pratique_server.fetch.store import Store
from pratique_server.fetch.targets import Target
from tests.support.fetching import LOADED, NAME, failure, fetch, make_repository, make_settings, names_in
from tests.support.hub import Fault, Hub, Peer
from tests.support.registry import digest_of, make_tar

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 1000, "tokenizer.json": b"{}"}
ARCHIVE = make_tar({f"tiny-1.0/{name}": content for name, content in FILES.items()})


class Site(Peer):
    """One archive at /tiny.tar.gz; with a password, for those who know it."""

    content = ARCHIVE
    authorization: str | None = None

    def answer(self, request: Any) -> None:
        if self.authorization is not None and request.headers["Authorization"] != self.authorization:
            request.send(401, b"")
        elif request.route == "/tiny.tar.gz":
            request.send_content(self.content, {})
        else:
            request.send(404, b"")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def site(authority: trustme.CA) -> Iterator[Site]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(tls)
    with Site(tls=tls) as made:
        yield made


@pytest.fixture
def secret(authority: trustme.CA, tmp_path: Path) -> Path:
    """A mounted Secret with the authority's certificate."""
    folder = tmp_path / "secret"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    return folder


@pytest.fixture
def credentials(secret: Path) -> Credentials:
    return read_credentials(str(secret))


def make_target(site: Site, path: Path, **changes: Any) -> Target:
    fields = {"uri": f"{site.url}/tiny.tar.gz", "revision": digest_of(site.content), "path": path / "cache" / "https-1"}
    return Target(**{**fields, **changes})


def test_an_archive_s_folder_becomes_the_top(site: Site, credentials: Credentials, tmp_path: Path) -> None:
    target = make_target(site, tmp_path)
    fetch(target, make_settings(credentials=credentials))
    assert {name: (target.path / name).read_bytes() for name in names_in(target.path)} == FILES


def test_a_certificate_of_an_unknown_authority_says_what_to_give(site: Site, tmp_path: Path) -> None:
    error = failure(make_target(site, tmp_path), make_settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "ca.crt" in error.message


def test_the_hub_s_certificate_is_checked_and_may_be_of_our_authority(
    authority: trustme.CA, credentials: Credentials, tmp_path: Path
) -> None:
    make_repository(tmp_path / "origin" / NAME)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(tls)
    with Hub(tmp_path / "origin", tls=tls) as hub:
        target = Target(uri=f"hf://{NAME}", revision=hub.repositories[NAME].commit, path=tmp_path / "hf-1")
        download = DownloadSpec(hub_endpoint=hub.url)
        assert "ca.crt" in failure(target, make_settings(download)).message
        fetch(target, make_settings(download, credentials=credentials))
    assert names_in(target.path) == LOADED


def test_an_archive_of_another_digest_is_corrupt_and_nothing_is_unpacked(
    site: Site, credentials: Credentials, tmp_path: Path
) -> None:
    site.faults.append(Fault(flip=len(ARCHIVE) // 2))
    error = failure(make_target(site, tmp_path), make_settings(credentials=credentials))
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert digest_of(ARCHIVE) in error.message
    assert not list(tmp_path.rglob("config.json"))


def test_a_user_name_in_the_url_is_used_and_never_shown(
    site: Site, credentials: Credentials, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pratique_server")
    site.authorization = "Basic bWU6cGE1NXdvcmQ="
    uri = f"https://me:pa55word@127.0.0.1:{site.port}/tiny.tar.gz?X-Amz-Signature=abcdef"
    target = make_target(site, tmp_path, uri=uri)
    fetch(target, make_settings(credentials=credentials))
    receipt = (target.path / ".pratique-fetch.json").read_text()
    assert "pa55word" not in caplog.text + receipt
    assert "abcdef" not in caplog.text + receipt


def test_the_secret_s_user_name_and_password_are_used(site: Site, secret: Path, tmp_path: Path) -> None:
    site.authorization = "Basic bWU6cGE1NXdvcmQ="
    (secret / "username").write_text("me\n")
    (secret / "password").write_text("pa55word\n")
    fetch(make_target(site, tmp_path), make_settings(credentials=read_credentials(str(secret))))


def test_an_archive_that_is_none_is_corrupt(site: Site, credentials: Credentials, tmp_path: Path) -> None:
    site.content = b"<html>not an archive</html>" * 100
    error = failure(make_target(site, tmp_path), make_settings(credentials=credentials))
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert "not a tar archive" in error.message


def test_an_archive_of_unknown_length_is_fetched_to_its_end(
    site: Site, credentials: Credentials, tmp_path: Path
) -> None:
    site.faults.append(Fault(no_ranges=True, headers={"Content-Length": None, "Connection": "close"}))
    target = make_target(site, tmp_path)
    fetch(target, make_settings(credentials=credentials))
    assert names_in(target.path) == set(FILES)


def test_an_archive_of_unknown_length_ends_before_the_volume_is_full(
    site: Site, credentials: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that never ends would take the room of everybody who shares the volume."""
    monkeypatch.setattr(transfer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(Store, "free_bytes", lambda _: 1000)
    unknown = Fault(no_ranges=True, headers={"Content-Length": None, "Connection": "close"})
    site.faults += [unknown, unknown]
    error = failure(make_target(site, tmp_path), make_settings(credentials=credentials))
    assert error.reason is Reason.DISK_FULL
    assert "are still to be written" in error.message


def test_members_that_lead_out_of_the_folder_are_never_created(
    site: Site, credentials: Credentials, tmp_path: Path
) -> None:
    link = tarfile.TarInfo("tiny-1.0/generation_config.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard = tarfile.TarInfo("tiny-1.0/added_tokens.json")
    hard.type, hard.linkname = tarfile.LNKTYPE, "tiny-1.0/config.json"
    device = tarfile.TarInfo("tiny-1.0/vocab.json")
    device.type = tarfile.CHRTYPE
    outside = {"../evil.json": b"{}", "/tmp/pratique-evil.json": b"{}", "tiny-1.0/../../evil.json": b"{}"}
    files = {f"tiny-1.0/{name}": content for name, content in FILES.items()}
    site.content = make_tar({**outside, **files, "tiny-1.0/weights.pt": b"pickle"}, members=[link, hard, device])
    target = make_target(site, tmp_path)
    fetch(target, make_settings(credentials=credentials))
    assert names_in(target.path) == set(FILES)
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/tmp/pratique-evil.json").exists()


def test_an_archive_of_two_models_is_refused(site: Site, credentials: Credentials, tmp_path: Path) -> None:
    site.content = make_tar({f"{folder}/{name}": content for folder in "ab" for name, content in FILES.items()})
    error = failure(make_target(site, tmp_path), make_settings(credentials=credentials))
    assert "several models" in error.message


def test_an_archive_with_pickles_only_says_so(site: Site, credentials: Credentials, tmp_path: Path) -> None:
    site.content = make_tar({"m/config.json": b"{}", "m/pytorch_model.bin": b"pickle"})
    error = failure(make_target(site, tmp_path), make_settings(credentials=credentials))
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "pytorch_model.bin" in error.message


def test_a_redirect_to_an_address_without_tls_is_refused(site: Site, credentials: Credentials, tmp_path: Path) -> None:
    with Site() as plain:
        site.faults.append(Fault(status=302, headers={"Location": f"{plain.url}/tiny.tar.gz"}))
        error = failure(make_target(site, tmp_path), make_settings(credentials=credentials))
    assert "without TLS" in error.message
