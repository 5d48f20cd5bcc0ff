"""What this pod may do right now: one truth for the probes and for the API's admission.

Facts come in (verdict, engine heartbeat, drain); out come readiness and liveness. Reading takes microseconds and never
touches the engine. Written from the event loop, read from the management thread: every field is one reference, replaced whole.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pratique_contract import ReleaseManifest, Verdict
from pratique_contract.verdict import on_one_line
from pratique_server.engine.protocol import EngineStats

LOOP_SILENCE_SECONDS_MAX: Final = 120.0


class VerdictSource(Protocol):
    """Where the cached verdict is read."""

    def current(self) -> Verdict: ...


@dataclass(frozen=True)
class Readiness:
    """Whether traffic is welcome, and why not: ``reason`` is CamelCase, ``message`` a sentence."""

    ready: bool
    reason: str
    message: str

    def line(self) -> str:
        return f"{self.reason}: {on_one_line(self.message)}"


@dataclass(frozen=True)
class EngineReport:
    """The engine's last report and when it was read (monotonic seconds)."""

    stats: EngineStats
    read_at: float


class PodStatus:
    """Shared by the API, the management port and the life cycle."""

    def __init__(
        self,
        verdicts: VerdictSource,
        *,
        heartbeat_seconds_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verdicts = verdicts
        self._heartbeat_seconds_max = heartbeat_seconds_max
        self._clock = clock
        self.manifest: ReleaseManifest | None = None
        self.engine_up = False
        self.report: EngineReport | None = None
        self.draining_since: float | None = None
        self.refusing = False
        self.beat_at: float | None = None

    @property
    def verdict(self) -> Verdict:
        return self._verdicts.current()

    @property
    def fingerprint(self) -> str | None:
        """What is loaded here; known before the verdict is."""
        return self.manifest.fingerprint if self.manifest is not None else self.verdict.fingerprint

    @property
    def stats(self) -> EngineStats | None:
        report = self.report
        return report.stats if report is not None else None

    @property
    def draining(self) -> bool:
        return self.draining_since is not None

    def begin_drain(self) -> bool:
        """Not ready from now on. Returns whether this call was the first."""
        if self.draining:
            return False
        self.draining_since = self._clock()
        return True

    def heartbeat_age_seconds(self) -> float | None:
        """Age of the engine's last sign of life, or None before the first."""
        report = self.report
        if report is None:
            return None
        return self._clock() - report.read_at + report.stats.heartbeat_age_seconds

    def engine_problem(self) -> Readiness | None:
        """Why the engine cannot be used, or None when it can."""
        if not self.engine_up:
            return Readiness(False, "EngineUnreachable", "The engine is not running")
        age = self.heartbeat_age_seconds()
        if age is not None and age > self._heartbeat_seconds_max:
            return Readiness(False, "EngineUnreachable", f"The engine gave no sign of life for {age:.0f} s")
        return None

    def beat(self) -> None:
        """The API's event loop is alive; called from it."""
        self.beat_at = self._clock()

    def liveness(self) -> Readiness:
        """Whether a restart could help: only when the API's event loop is stuck. Never depends on the verdict."""
        beat_at = self.beat_at
        if beat_at is not None and self._clock() - beat_at > LOOP_SILENCE_SECONDS_MAX:
            return Readiness(False, "Stuck", "The API's event loop gave no sign of life")
        return Readiness(True, "Alive", "The process is running")

    def verified(self) -> Readiness:
        """The start-up question: did the verdict pass?"""
        verdict = self.verdict
        return Readiness(verdict.passed, str(verdict.reason), verdict.message)

    def readiness(self) -> Readiness:
        """Verdict, heartbeat and drain together."""
        if self.draining:
            return Readiness(False, "Draining", "The pod is finishing its live requests before it stops")
        verified = self.verified()
        if not verified.ready:
            return verified
        return self.engine_problem() or verified

    def to_json_value(self) -> dict[str, Any]:
        """For ``/stats``."""
        readiness = self.readiness()
        stats = self.stats
        return {
            "ready": readiness.ready,
            "reason": readiness.reason,
            "message": readiness.message,
            "fingerprint": self.fingerprint,
            "draining": self.draining,
            "heartbeatAgeSeconds": self.heartbeat_age_seconds(),
            "engine": None if stats is None else {name: getattr(stats, name) for name in stats.__struct_fields__},
        }
