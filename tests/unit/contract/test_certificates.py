"""No certificate authority is read for plain http, and none is passed over for anything else."""

import pytest

from pratique_contract.certificates import must_verify


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8001", False),
        ("HTTP://pod.namespace.svc/verdict", False),
        ("https://127.0.0.1:8001", True),
        ("HTTPS://models.example", True),
        ("127.0.0.1:8001", True),
        ("", True),
        ("https://proxy.example/http://inner", True),
    ],
)
def test_only_plain_http_needs_no_certificate(url: str, expected: bool) -> None:
    assert must_verify(url) is expected
