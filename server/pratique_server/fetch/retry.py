"""When to try again, and when to give up. Pure but for the random part of a pause.

An attempt that brought ``GAIN_BYTES`` or more starts the count anew: a connection that drops every hundred megabytes still gets a large
file across, while one that brings a few bytes each time does not keep a pod waiting for ever.
"""

import random
from dataclasses import dataclass
from typing import Final

from pratique_server.fetch.errors import FetchError, RateLimitedError
from pratique_server.fetch.progress import size_text

GAIN_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """``attempts`` in a row without gain; pauses double from ``pause_seconds`` to ``pause_seconds_max``."""

    attempts: int = 5
    pause_seconds: float = 1.0
    pause_seconds_max: float = 30.0
    # Waiting longer than this for a rate limit is a person's decision.
    retry_after_seconds_max: float = 300.0


class Attempts:
    """Counts the failures of one thing; ``after`` says how long to wait or raises the error for good."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failed = 0

    def after(self, error: FetchError, *, gained: int = 0) -> float:
        if not error.transient:
            raise error
        self._failed = 1 if gained >= GAIN_BYTES else self._failed + 1
        if self._failed >= self._policy.attempts:
            raise self._spent(error) from error
        pause = min(self._policy.pause_seconds * 2.0 ** (self._failed - 1), self._policy.pause_seconds_max)
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads many pods, keeps no secret
        if error.wait_seconds is None:
            return pause
        if error.wait_seconds > self._policy.retry_after_seconds_max:
            raise self._too_long(error, error.wait_seconds) from error
        # A peer that says "now" to everybody and refuses again would see all attempts within a moment.
        return max(pause, error.wait_seconds)

    def _spent(self, error: FetchError) -> FetchError:
        return type(error)(f"{error.message}; gave up after {self._failed} attempts")

    def _too_long(self, error: FetchError, seconds: float) -> FetchError:
        return type(error)(f"{error.message}; it asks to wait {seconds:.0f} s, too long to wait for here")


@dataclass(frozen=True, kw_only=True)
class StallRule:
    """At least ``bytes_min`` in every ``seconds``."""

    seconds: float
    bytes_min: int

    def describe(self) -> str:
        return f"less than {size_text(self.bytes_min)} in {self.seconds:.0f} s"


class StallWatch:
    """Hears of every piece of one body; ``stalled`` when a whole period brought too little."""

    def __init__(self, rule: StallRule, now: float) -> None:
        self._rule = rule
        self._since = now
        self._count = 0

    def stalled(self, count: int, now: float) -> bool:
        self._count += count
        if now - self._since < self._rule.seconds:
            return False
        slow = self._count < self._rule.bytes_min
        self._since, self._count = now, 0
        return slow


def is_rate_limit(error: FetchError) -> bool:
    """Whether every connection to this peer should hold back, not only the one that was told."""
    return isinstance(error, RateLimitedError)
