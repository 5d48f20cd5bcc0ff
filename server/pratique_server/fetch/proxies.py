"""Which proxy the environment names for a host: one set of rules for three HTTP clients that each have their own.

``HTTP_PROXY``, ``HTTPS_PROXY`` and ``ALL_PROXY`` name one, in either case. ``NO_PROXY`` lists what is reached without: names (with all
below them), addresses, networks (``10.0.0.0/8``, ``fe80::/10``), ``*``.
"""

import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import httpx

from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.secrets import clean_url

_SCHEMES: Final = ("http", "https")


def proxy_of(scheme: str) -> str | None:
    """The proxy's URL for addresses of a scheme, with its user name and password. Raises ``FetchError`` for one that cannot be used."""
    proxies = getproxies_environment()
    named = (proxies.get(scheme) or proxies.get("all") or "").strip()
    if not named:
        return None
    url = named if "://" in named else f"http://{named}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        usable = False
    if not usable:
        raise FetchError(
            f"The proxy {clean_url(url)} of the environment cannot be used: name one as http://host:port in {scheme.upper()}_PROXY"
        )
    return url


def goes_direct(host: str) -> bool:
    """Whether ``NO_PROXY`` lists the host."""
    if proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return any(_holds(entry.strip(), address) for entry in listed.split(","))


def proxy_for(url: str) -> str | None:
    """The proxy's URL for one address; None where it is reached without."""
    parts = urlsplit(url)
    return None if goes_direct(parts.hostname or "") else proxy_of(parts.scheme)


class ByEnvironment(httpx.BaseTransport):
    """Sends each request through the proxy for its scheme and host: a redirect may lead from one that has one to one that has none."""

    def __init__(self, **options: object) -> None:
        self._direct = httpx.HTTPTransport(**options)  # type: ignore[arg-type]
        self._proxied = {
            scheme: httpx.HTTPTransport(proxy=proxy, **options)  # type: ignore[arg-type]
            for scheme in _SCHEMES
            if (proxy := proxy_of(scheme)) is not None
        }

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        transport = self._proxied.get(request.url.scheme)
        if transport is None or goes_direct(request.url.host):
            transport = self._direct
        return transport.handle_request(request)

    def close(self) -> None:
        for transport in (self._direct, *self._proxied.values()):
            transport.close()


def _holds(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:  # a name
        return False
