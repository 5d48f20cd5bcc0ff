"""The verdict: whether this pod is the release it was declared to be, why not, and the evidence a person can read."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field

from pratique_contract.model import ContractModel
from pratique_contract.reasons import Reason


class _Report(ContractModel):
    """What a pod reports of itself. Unlike every other value, fields that the reader does not know are passed over: an operator has
    to understand the pods of the next version while it is being replaced itself."""

    model_config = ConfigDict(extra="ignore")


class VerdictResult(StrEnum):
    """``Pending`` until the gate has run to its end once."""

    PENDING = "Pending"
    PASS = "Pass"
    FAIL = "Fail"


class Evidence(_Report):
    """One observation: what was looked at, what was recorded and what was seen."""

    subject: str
    expected: str
    observed: str


class CheckResult(_Report):
    """One check of the gate: its name, outcome and cost."""

    name: str
    result: VerdictResult
    duration_ms: float
    message: str = ""


class Reverification(_Report):
    """The newest round of golden cases sent while the pod was idle. ``failures`` counts failed rounds in a row; ``at`` is when the
    newest round ended. A round that had to give way to a user's request says nothing and leaves no trace here."""

    result: VerdictResult
    reason: Reason
    message: str
    failures: int = Field(default=0, ge=0)
    at: datetime
    evidence: tuple[Evidence, ...] = ()


class Verdict(_Report):
    """Cached result of the gate, served at ``/verdict``. ``part`` names the manifest part that differs, when one does."""

    result: VerdictResult
    reason: Reason
    message: str
    part: str | None = None
    expected: str | None = None
    observed: str | None = None
    evidence: tuple[Evidence, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    fingerprint: str | None = None
    policy: str | None = None
    approved: bool = False
    checked_at: datetime | None = None
    duration_ms: float | None = None
    reverification: Reverification | None = None

    @property
    def passed(self) -> bool:
        return self.result is VerdictResult.PASS

    def one_line(self) -> str:
        """``Reason: message`` for logs, probe output and ``kubectl describe``."""
        return f"{self.reason}: {on_one_line(self.message)}"


def on_one_line(text: str) -> str:
    """A sentence may quote a library's error of several lines; a probe's output ends with its first."""
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())
