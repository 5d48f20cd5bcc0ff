"""When to try again, how long to wait, and when a connection counts as stalled."""

from datetime import UTC, datetime

import pytest

from pratique_contract.reasons import Reason
from pratique_server.fetch.errors import FetchError, NotFoundError, RateLimitedError, TruncatedError
from pratique_server.fetch.http_client import explain_status, retry_after
from pratique_server.fetch.retry import GAIN_BYTES, Attempts, RetryPolicy, StallRule, StallWatch

POLICY = RetryPolicy(attempts=3, pause_seconds=1.0, pause_seconds_max=4.0, retry_after_seconds_max=100.0)
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def test_pauses_grow_and_then_the_error_is_final_with_its_own_reason() -> None:
    attempts, error = Attempts(POLICY), TruncatedError("cut", transient=True)
    assert 0.5 <= attempts.after(error) <= 1.0
    assert 1.0 <= attempts.after(error) <= 2.0
    with pytest.raises(TruncatedError, match="cut; gave up after 3 attempts"):
        attempts.after(error)


def test_an_attempt_that_brought_much_starts_the_count_anew() -> None:
    attempts, error = Attempts(POLICY), TruncatedError("cut", transient=True)
    for _ in range(50):
        attempts.after(error, gained=GAIN_BYTES)


def test_an_attempt_that_brought_a_little_does_not() -> None:
    attempts, error = Attempts(POLICY), TruncatedError("cut", transient=True)
    attempts.after(error, gained=GAIN_BYTES - 1)
    attempts.after(error, gained=GAIN_BYTES - 1)
    with pytest.raises(TruncatedError):
        attempts.after(error, gained=GAIN_BYTES - 1)


def test_what_no_attempt_can_cure_is_raised_at_once() -> None:
    with pytest.raises(NotFoundError):
        Attempts(POLICY).after(NotFoundError("no"))


def test_the_peer_s_own_time_is_kept_up_to_a_limit() -> None:
    attempts = Attempts(POLICY)
    assert attempts.after(RateLimitedError("slow", transient=True, wait_seconds=17.0)) == 17.0
    with pytest.raises(RateLimitedError, match="101 s"):
        attempts.after(RateLimitedError("slow", transient=True, wait_seconds=101.0))


def test_a_peer_that_says_now_and_refuses_again_is_asked_at_our_own_pace() -> None:
    attempts, error = Attempts(POLICY), RateLimitedError("slow", transient=True, wait_seconds=0.0)
    assert 0.5 <= attempts.after(error) <= 1.0
    assert 1.0 <= attempts.after(error) <= 2.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:01:00 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"ratelimit": '"api";r=0;t=55'}, 55.0),
        ({}, None),
    ],
)
def test_reads_when_to_come_back_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "reason", "transient"),
    [
        (400, Reason.DOWNLOAD_FAILED, False),
        (401, Reason.DOWNLOAD_UNAUTHORIZED, False),
        (403, Reason.DOWNLOAD_UNAUTHORIZED, False),
        (404, Reason.DOWNLOAD_NOT_FOUND, False),
        (408, Reason.DOWNLOAD_FAILED, True),
        (410, Reason.DOWNLOAD_NOT_FOUND, False),
        (412, Reason.DOWNLOAD_CORRUPT, False),
        (429, Reason.DOWNLOAD_RATE_LIMITED, True),
        (500, Reason.DOWNLOAD_FAILED, True),
        (503, Reason.DOWNLOAD_FAILED, True),
    ],
)
def test_every_status_has_a_reason_and_a_remedy(status: int, reason: Reason, transient: bool) -> None:
    error = explain_status(status, "config.json", host="host", headers={})
    assert isinstance(error, FetchError)
    assert (error.reason, error.transient) == (reason, transient)
    assert "host" in error.message
    assert "config.json" in error.message


def test_a_connection_stalls_when_a_whole_period_brought_too_little() -> None:
    watch = StallWatch(StallRule(seconds=10.0, bytes_min=100), now=0.0)
    assert not watch.stalled(1, 9.9)
    assert watch.stalled(1, 10.0)
    assert not watch.stalled(99, 15.0)
    assert not watch.stalled(1, 20.0)
