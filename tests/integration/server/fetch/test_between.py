"""What stands between us and a source, or in its place: proxies, login pages, stores of another region or with another clock.

None of it is damage, and none of it is a bug of ours: the reason and the sentence have to say so.
"""

import socket
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.targets import Target
from tests.support.fetching import Place, failure, fetch, make_settings, same_content
from tests.support.hub import Fault, Peer
from tests.support.registry import Registry, file_layer

PAGE = Fault(status=200, body=b"<html>Please log in</html>", headers={"Content-Type": "text/html; charset=utf-8"})
XML = {"Content-Type": "application/xml"}
KEYS = Credentials(access_key_id="AKIAEXAMPLE", secret_access_key="a-secret-access-key")


class Store(Peer):
    """Something at the address of an S3 store."""

    def answer(self, request: Any) -> None:
        request.send(200, b"<ListBucketResult><Name>models</Name></ListBucketResult>", XML)


def page(path: str) -> Fault:
    return Fault(path=path, status=PAGE.status, body=PAGE.body, headers=PAGE.headers)


def s3_failure(tmp_path: Path, fault: Fault, *, stall_seconds: float = 5.0) -> FetchError:
    """How a fetch from a store with this fault ends."""
    with Store() as store:
        store.faults.append(fault)
        download = DownloadSpec(s3_endpoint=store.url, stall_seconds=stall_seconds)
        target = Target(uri="s3://models/tiny", revision=None, path=tmp_path / "s3-1")
        return failure(target, make_settings(download, credentials=KEYS))


def error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>no</Message><RequestId>1</RequestId></Error>".encode()


@pytest.mark.parametrize("path", ["*/config.json", "/cdn/*"])
def test_a_login_page_in_place_of_a_file_is_not_called_damage(place: Place, path: str) -> None:
    place.hub.faults.append(page(path))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "a web page: a login or a proxy stands in between" in error.message
    assert f"hf://owner/tiny at {place.commit[:12]}" in error.message


def test_a_right_file_that_is_called_a_page_is_taken(place: Place) -> None:
    """Small mirrors give every file the type their framework gives to pages."""
    place.hub.faults.append(Fault(path="*/resolve/*", headers={"Content-Type": "text/html"}))
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)


def test_a_page_that_is_gone_at_the_next_attempt_does_no_harm(place: Place) -> None:
    place.hub.faults.append(Fault(path="*/config.json", status=200, body=PAGE.body, headers=PAGE.headers, times=1))
    fetch(place.target(), place.settings())
    assert same_content(place.path, place.origin)


def test_a_login_page_in_place_of_a_manifest_is_not_called_damage(tmp_path: Path) -> None:
    with Registry() as registry:
        digest = registry.push(file_layer("config.json", b"{}"), file_layer("model.safetensors", b"w"))
        registry.faults.append(page("*/manifests/*"))
        target = Target(uri=f"oci://{registry.host}/models/tiny@{digest}", revision=None, path=tmp_path / "oci-1")
        error = failure(target, make_settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "a web page" in error.message


@pytest.mark.parametrize("status", [204, 302, 304])
def test_an_answer_without_content_is_told_as_what_it_is(place: Place, status: int) -> None:
    place.hub.faults.append(Fault(path="*/config.json", status=status))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert f"status {status}" in error.message


def test_a_redirect_that_leads_back_to_itself_ends(place: Place) -> None:
    path = f"/owner/tiny/resolve/{place.commit}/config.json"
    place.hub.faults.append(Fault(path=path, status=302, headers={"Location": path}))
    error = failure(place.target(), place.settings())
    assert error.reason is Reason.DOWNLOAD_FAILED
    assert "redirects" in error.message


@pytest.mark.parametrize(
    ("fault", "reason", "says"),
    [
        (PAGE, Reason.DOWNLOAD_FAILED, "does not answer s3://models/tiny/ as S3 does"),
        (Fault(status=200, body=b"<ok/>", headers=XML), Reason.DOWNLOAD_FAILED, "does not answer s3://models/tiny/ as S3 does"),
        (Fault(status=403, body=error_body("RequestTimeTooSkewed"), headers=XML), Reason.DOWNLOAD_FAILED, "the node's clock"),
        (Fault(status=301, body=error_body("PermanentRedirect"), headers=XML), Reason.DOWNLOAD_FAILED, "set s3Region"),
        (Fault(status=400, body=error_body("AuthorizationHeaderMalformed"), headers=XML), Reason.DOWNLOAD_FAILED, "set s3Region"),
        (Fault(status=503, body=error_body("SlowDown"), headers=XML), Reason.DOWNLOAD_RATE_LIMITED, "fewer requests"),
        (Fault(status=400, body=error_body("ExpiredToken"), headers=XML), Reason.DOWNLOAD_UNAUTHORIZED, "ExpiredToken"),
        (
            Fault(status=200, body=b"<ListBucketResult>", headers={"Content-Length": "900", "Connection": "close", **XML}),
            Reason.DOWNLOAD_TRUNCATED,
            "in mid-answer",
        ),
    ],
)  # fmt: skip
def test_what_a_store_answers_instead_has_its_own_remedy(
    tmp_path: Path, fault: Fault, reason: Reason, says: str
) -> None:
    error = s3_failure(tmp_path, fault)
    assert error.reason is reason
    assert says in error.message
    assert "bug" not in error.message


def test_a_store_that_says_nothing_is_stalled(tmp_path: Path) -> None:
    error = s3_failure(tmp_path, Fault(status=200, stall=1.0), stall_seconds=0.2)
    assert error.reason is Reason.DOWNLOAD_STALLED


def test_a_bucket_s_list_takes_the_environment_s_proxy_as_its_bytes_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a network that is left by a proxy only, a list that goes without it is `cannot be reached`."""
    target = Target(uri="s3://models/tiny", revision=None, path=tmp_path / "s3-1")
    settings = make_settings(DownloadSpec(s3_endpoint="http://store.invalid"), credentials=KEYS)
    with Store() as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pa55@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert failure(target, settings).reason is Reason.DOWNLOAD_NOT_FOUND  # the list came, and is empty
        assert {asked.path for asked in proxy.requests} == {"/models"}
        proxy.requests.clear()
        monkeypatch.setenv("no_proxy", "store.invalid")
        assert "store.invalid cannot be reached" in failure(target, settings).message
        assert proxy.requests == []


def test_a_model_comes_through_the_environment_s_proxy_and_what_it_may_not_reach_without(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub stands in for the proxy, too: it is asked for another host's addresses. Its storage is listed as one to reach directly."""
    monkeypatch.setenv("http_proxy", place.hub.url)
    monkeypatch.setenv("no_proxy", "localhost,fe80::/10,10.0.0.0/8")
    fetch(place.target(), make_settings(DownloadSpec(hub_endpoint="http://hub.invalid")))
    assert same_content(place.path, place.origin)


def test_an_address_that_speaks_no_tls_says_so(place: Place) -> None:
    settings = make_settings(DownloadSpec(hub_endpoint=place.hub.url.replace("http:", "https:")))
    assert "speaks no TLS" in failure(place.target(), settings).message


def test_a_name_that_nobody_knows_is_told_with_the_name(place: Place) -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("nowhere.invalid", 80)
    error = failure(place.target(), make_settings(DownloadSpec(hub_endpoint="http://nowhere.invalid")))
    assert "nowhere.invalid cannot be reached" in error.message
