"""Whether there is a certificate to check: what an HTTP client is given as ``verify``.

Reading all certificate authorities takes 20 ms of one core, in which an event loop does nothing else; for plain http they are of no use.
Not for a client that follows redirects: one may lead from plain http to https.
"""

from urllib.parse import urlsplit


def must_verify(url: str) -> bool:
    """False for plain http only."""
    return urlsplit(url).scheme.lower() != "http"
