"""The environment's proxy variables, as clusters set them."""

import pytest

from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.http_client import make_client, make_tls
from pratique_server.fetch.proxies import goes_direct, proxy_for, proxy_of
from pratique_server.fetch.secrets import Credentials

DUAL_STACK = "localhost,127.0.0.1,::1,10.0.0.0/8,fe80::/10,[fd00::]/8,.svc,.cluster.local"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("host", "direct"),
    [
        ("hub.models.svc", True),
        ("s3.models.svc.cluster.local", True),
        ("10.96.0.1", True),
        ("fe80::1", True),
        ("[fe80::1]", True),
        ("11.0.0.1", False),
        ("2001:db8::1", False),
        ("huggingface.co", False),
        ("svc.example", False),
    ],
)
def test_what_is_in_the_cluster_is_reached_without_the_proxy(
    monkeypatch: pytest.MonkeyPatch, host: str, direct: bool
) -> None:
    monkeypatch.setenv("NO_PROXY", DUAL_STACK)
    assert goes_direct(host) is direct


def test_a_network_of_a_dual_stack_cluster_ends_no_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx takes its colons for a port and gives up: `Invalid port: ':'`."""
    monkeypatch.setenv("NO_PROXY", DUAL_STACK)
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    make_client(Credentials(), DownloadSpec(), tls=make_tls(Credentials())).close()
    assert proxy_for("https://huggingface.co") == "http://proxy.example:3128"
    assert proxy_for("https://hub.models.svc") is None


@pytest.mark.parametrize("named", ["socks5://proxy:1080", "http://proxy:port", "ftp://proxy", "http://"])
def test_a_proxy_that_cannot_be_used_is_told_with_the_form_that_can(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)
    with pytest.raises(FetchError, match="http://host:port in HTTPS_PROXY"):
        make_client(Credentials(), DownloadSpec(), tls=make_tls(Credentials()))


def test_its_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:pa55word@proxy:1080")
    with pytest.raises(FetchError) as raised:
        proxy_of("https")
    assert "pa55word" not in raised.value.message


def test_a_scheme_without_a_proxy_takes_the_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy:1")
    monkeypatch.setenv("HTTPS_PROXY", " http://secure:2 ")
    assert (proxy_of("http"), proxy_of("https")) == ("http://proxy:1", "http://secure:2")
