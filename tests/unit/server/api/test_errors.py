"""The error tree and the table of statuses agree with each other and with the documentation."""

import re
from pathlib import Path

import pytest

from pratique_server import errors
from pratique_server.api.errors import error_body, error_headers, rule_of

DOCS = Path(__file__).parents[4] / "docs" / "server.md"
# Endings that are never told over HTTP: nobody is there to read.
SILENT = {errors.CancelledByClientError, errors.SlowReaderError}


def concrete_errors() -> list[type[errors.PratiqueError]]:
    """Every class of the tree that says something of its own."""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.PratiqueError) and value not in SILENT
    ]
    bases = {errors.PratiqueError, errors.RequestError, errors.UnavailableError}
    return [value for value in classes if value not in bases]


def row_of(kind: type[errors.PratiqueError]) -> tuple[str, str, str]:
    rule = rule_of(kind("x"))
    retry = "no" if rule.retry_after is None else f"after {rule.retry_after} s"
    return (str(rule.status), kind.code, retry)


def test_the_documented_table_is_the_table() -> None:
    documented = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \| ([^|]+) \|$", DOCS.read_text(), re.MULTILINE))
    assert documented == {row_of(kind) for kind in concrete_errors()}


@pytest.mark.parametrize("kind", concrete_errors(), ids=lambda kind: kind.__name__)
@pytest.mark.req("R99")
def test_every_error_says_whether_to_retry_and_422_does_not_exist(kind: type[errors.PratiqueError]) -> None:
    """fastapi#14400: 422 where clients expect 400."""
    headers = dict(error_headers(kind("x")))
    assert headers[b"x-should-retry"] in (b"true", b"false")
    assert (b"retry-after" in headers) == (headers[b"x-should-retry"] == b"true")
    assert rule_of(kind("x")).status != 422


def test_messages_are_bounded() -> None:
    assert len(error_body(errors.InvalidRequestError("x" * 1_000_000))) < 2000
