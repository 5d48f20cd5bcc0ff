"""Turn what the checks gave into one verdict, and tell it: log, termination message. The verdict itself is pure."""

import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from pratique_contract.canonical import short_digest
from pratique_contract.constants import TERMINATION_LOG_PATH
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ReleaseSpec
from pratique_contract.verdict import CheckResult, Verdict, VerdictResult
from pratique_server.gate.errors import CheckFailedError

# What the kubelet keeps of a termination message.
TERMINATION_BYTES_MAX: Final = 4096

logger = logging.getLogger(__name__)


def build_verdict(
    *,
    release: ReleaseSpec,
    record: ReleaseRecord | None,
    manifest: ReleaseManifest,
    check_names: Sequence[str],
    done: Sequence[CheckResult],
    failure: CheckFailedError | None,
    approved: bool,
    checked_at: datetime,
    duration_ms: float,
) -> Verdict:
    """``done`` are the passed checks, in the order of ``check_names``; the first name after them is the one that failed."""
    base = Verdict(
        result=VerdictResult.PASS,
        reason=Reason.VERIFIED,
        message="",
        expected=record.fingerprint if record is not None else release.fingerprint,
        observed=manifest.fingerprint,
        fingerprint=manifest.fingerprint,
        policy=release.policy,
        checked_at=checked_at,
        duration_ms=duration_ms,
    )
    if failure is None:
        short = short_digest(manifest.fingerprint)
        message = f"Release {short} proved{_against(record, approved=approved)} by {len(done)} checks in {duration_ms / 1000:.1f} s"
        reason = Reason.VERIFIED if approved else Reason.RECORDED_NOT_APPROVED
        return base.model_copy(
            update={"reason": reason, "message": message, "approved": approved, "checks": tuple(done)}
        )
    return base.model_copy(
        update={
            "result": VerdictResult.FAIL,
            "reason": failure.reason,
            "message": failure.message,
            "part": failure.part,
            "expected": failure.expected or base.expected,
            "observed": failure.observed or base.observed,
            "evidence": failure.evidence,
            "checks": (*done, *_unfinished(check_names[len(done) :], failure, duration_ms, done)),
        }
    )


def _against(record: ReleaseRecord | None, *, approved: bool) -> str:
    """Whose word the release was held against. Whether somebody has approved that since is not known here: no pod is told."""
    if approved:
        return ""
    return ", with no record to match," if record is None else " to be what the first pod recorded,"


def _unfinished(
    names: Sequence[str], failure: CheckFailedError, duration_ms: float, done: Sequence[CheckResult]
) -> list[CheckResult]:
    """The check that failed, and those that were never begun."""
    spent = round(max(duration_ms - sum(check.duration_ms for check in done), 0.0), 1)
    return [
        CheckResult(
            name=name,
            result=VerdictResult.PENDING if position else VerdictResult.FAIL,
            duration_ms=0.0 if position else spent,
            message="not run" if position else failure.message,
        )
        for position, name in enumerate(names)
    ]


def tell_verdict(verdict: Verdict) -> None:
    """Log the whole verdict once (info when it passed, error when not) and leave its sentence for the kubelet."""
    level = logging.INFO if verdict.passed else logging.ERROR
    fields = {"fingerprint": verdict.fingerprint, "verdict": verdict.to_json_value()}
    logger.log(level, "Reached verdict %s", verdict.one_line(), extra={"fields": fields})
    write_termination_message(verdict)


def write_termination_message(verdict: Verdict, path: Path = Path(TERMINATION_LOG_PATH)) -> bool:
    """Leave the sentence where ``kubectl describe pod`` shows it. Best effort, and only where a kubelet made the file;
    a passed verdict clears it, since it would not be why the container ended. Returns whether it was written."""
    line = "" if verdict.passed else f"{verdict.one_line()}\n"
    try:
        with path.open("r+b") as file:
            file.truncate()
            file.write(line.encode()[:TERMINATION_BYTES_MAX])
    except OSError:
        return False
    return True
