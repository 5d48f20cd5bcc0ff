"""The sentence that stands in the CR at night: it names what helps, which is not the same for causes that look alike."""

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import urllib3

from pratique_contract.reasons import Reason
from pratique_server.fetch.errors import FetchError, NotFoundError, explain_os_error
from pratique_server.fetch.http_client import explain_status, explain_transport, raise_for_status, retry_after
from pratique_server.fetch.registry import Repository
from pratique_server.fetch.secrets import Credentials, read_credentials

URL = "https://hub.example/x?sig=secret"
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


@pytest.mark.parametrize(
    ("text", "remedy", "not_helpful"),
    [
        ("unable to get local issuer certificate", "ca.crt", "clock"),
        ("self-signed certificate", "ca.crt", "clock"),
        ("certificate has expired", "the node's clock", "ca.crt"),
        ("certificate is not yet valid", "the node's clock", "ca.crt"),
        ("Hostname mismatch, certificate is not valid for 'hub.example'", "a name it is made for", "ca.crt"),
    ],
)
def test_a_certificate_is_refused_with_what_helps_against_that(text: str, remedy: str, not_helpful: str) -> None:
    """An authority in the Secret makes no expired certificate valid, and a clock that is a year off looks like one."""
    message = explain_transport(httpx.ConnectError(VERIFY + text), URL).message
    assert remedy in message
    assert not_helpful not in message
    assert "hub.example" in message


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (httpx.ReadTimeout("timed out"), Reason.DOWNLOAD_STALLED, "stallSeconds"),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "timed out"), Reason.DOWNLOAD_STALLED, "stallSeconds"),  # type: ignore[arg-type]
        (httpx.RemoteProtocolError("peer closed"), Reason.DOWNLOAD_TRUNCATED, "proxy or mirror"),
        (urllib3.exceptions.ProtocolError("Connection broken"), Reason.DOWNLOAD_TRUNCATED, "proxy or mirror"),
        (httpx.DecodingError("incorrect header check"), Reason.DOWNLOAD_FAILED, "encoding"),
        (httpx.ConnectError("Name or service not known"), Reason.DOWNLOAD_FAILED, "check the endpoint"),
        (httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version"), Reason.DOWNLOAD_FAILED, "speaks no TLS"),
        (httpx.ProxyError("502 Bad Gateway"), Reason.DOWNLOAD_FAILED, "NO_PROXY"),
    ],
)
def test_what_broke_below_http_has_the_same_reason_whichever_library_met_it(
    error: Exception, reason: Reason, says: str
) -> None:
    found = explain_transport(error, URL)
    assert (found.reason, "secret" in found.message) == (reason, False)
    assert says in found.message


def test_a_proxy_that_wants_a_password_is_not_asked_again() -> None:
    assert not explain_transport(httpx.ProxyError("407 Proxy Authentication Required"), URL).transient
    error = explain_status(407, "config.json", host="hub.example", headers={})
    assert not error.transient
    assert "HTTPS_PROXY" in error.message


@pytest.mark.parametrize("status", [204, 302, 304])
def test_an_answer_that_brings_nothing_is_told_by_its_status(status: int) -> None:
    """And not as a file of no bytes, which would be damage."""
    error = explain_status(status, "config.json", host="hub.example", headers={})
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert error.transient
    assert f"status {status}" in error.message


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_a_date_to_come_back_at_is_read_by_the_clock_of_whoever_wrote_it(hours: int) -> None:
    headers = {"retry-after": "Thu, 01 Jan 2026 12:01:00 GMT", "date": "Thu, 01 Jan 2026 12:00:30 GMT"}
    assert retry_after(headers, NOW + timedelta(hours=hours)) == 30.0


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "is full: enlarge it"),
        (errno.EDQUOT, "is full: enlarge it"),
        (errno.EROFS, "mounted read-only"),
        (errno.EXDEV, "a folder below it"),
        (errno.EBUSY, "a folder below it"),
        (errno.EACCES, "fsGroup"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_file_system_s_refusal_says_what_to_do_about_it(tmp_path: Path, code: int, says: str) -> None:
    error = explain_os_error(OSError(code, os.strerror(code)), str(tmp_path / "hf-1"))
    assert says in error.message
    assert (error.reason is Reason.DISK_FULL) == (code in (errno.ENOSPC, errno.EDQUOT))


def test_a_volume_without_inodes_is_not_told_to_be_enlarged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`df` shows half of it free, and a larger disk of the same kind would not help."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=1000, f_favail=0))
    error = explain_os_error(OSError(errno.ENOSPC, "No space left on device"), str(tmp_path / "hf-1"))
    assert error.reason is Reason.DISK_FULL
    assert "no inodes left" in error.message
    assert "enlarge" not in error.message


def test_a_sentence_names_the_source_it_is_about_once() -> None:
    """A service has several: the model, a tokenizer, adapters, and each has a config.json."""
    error = NotFoundError("host has no config.json").about("hf://owner/tiny")
    assert isinstance(error, NotFoundError)
    assert error.message == "host has no config.json (while fetching hf://owner/tiny)"
    assert error.about("hf://owner/tiny").message == error.message


@pytest.mark.parametrize("key", ["token", "accessKeyId", "secretAccessKey", "sessionToken"])
@pytest.mark.parametrize("value", ["hf_“quoted”", "\ufeffhf_token", "hf_to\u200bken"])
def test_a_key_that_was_copied_with_something_else_is_told_and_not_shown(tmp_path: Path, key: str, value: str) -> None:
    """No header can hold it: the error would come from a library, in its words, about something else."""
    for name in {key, *({"accessKeyId", "secretAccessKey"} if "Key" in key else ())}:
        (tmp_path / name).write_text(value if name == key else "fine", encoding="utf-8")
    with pytest.raises(FetchError, match=f"{key} of the Secret has characters") as raised:
        read_credentials(str(tmp_path))
    assert value not in raised.value.message


def test_a_password_may_be_any_text(tmp_path: Path) -> None:
    (tmp_path / "username").write_text("jörg", encoding="utf-8")
    (tmp_path / "password").write_text("straße", encoding="utf-8")
    assert read_credentials(str(tmp_path)).password == "straße"


@pytest.mark.parametrize(
    ("name", "host"), [("docker.io", "registry-1.docker.io"), ("quay.io", "quay.io"), ("host:5000", "host:5000")]
)
def test_a_registry_is_asked_where_its_api_is(name: str, host: str) -> None:
    with httpx.Client() as client:
        repository = Repository(name, "owner/tiny", client=client, credentials=Credentials())
        assert repository.blob_url("sha256:0") == f"https://{host}/v2/owner/tiny/blobs/sha256:0"


REGISTRY = {
    "errors": [{"code": "UNAUTHORIZED", "message": "authentication required", "detail": [{"Type": "repository"}] * 50}]
}


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("application/json", json.dumps(REGISTRY), "UNAUTHORIZED: authentication required"),
        ("application/json", '{"error": "Invalid username or password."}', "Invalid username or password."),
        ("application/json", '{"error": {"code": 401, "message": "no"}}', "401: no"),
        ("application/json", '["what"]', '["what"]'),
        ("application/json", '{"errors": []}', '{"errors": []}'),
        ("application/json", "[" * 4000, "[[["),
        ("text/xml", "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>", "AccessDenied: Request has expired"),
        ("text/plain", "go away\n", "go away"),
        ("text/html", "<html>" + "x" * 900, ""),
    ],
)  # fmt: skip
def test_what_a_peer_says_leaves_room_for_what_helps(kind: str, body: str, told: str) -> None:
    """A condition's message has 400 characters; the whole of a registry's answer would take the end of the sentence."""
    answer = httpx.Response(401, headers={"content-type": kind}, stream=httpx.ByteStream(body.encode()))
    with (
        httpx.Client(transport=httpx.MockTransport(lambda _: answer)) as client,
        client.stream("GET", "https://registry.example/x") as response,
        pytest.raises(FetchError) as raised,
    ):
        raise_for_status(response, f"manifest sha256:{'0' * 64} of models/tiny")
    message = raised.value.about("oci://registry.example/models/tiny@sha256:000000000000").message
    assert told in message
    assert "check the credentials in the Secret" in message
    assert len(message) <= 400
