"""What a check of the gate raises.

GateError
├── CheckFailedError  the pod is not the release it has to be; carries the reason, the sentence and the evidence
└── BusyError         the pod cannot take the request now: to be tried again, never a failure
"""

from pratique_contract.reasons import Reason
from pratique_contract.verdict import Evidence


class GateError(Exception):
    """Base of the gate's own errors."""


class CheckFailedError(GateError):
    """``message`` names what is wrong and the first difference; ``part`` is the manifest part, when one is wrong."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        part: str | None = None,
        expected: str | None = None,
        observed: str | None = None,
        evidence: tuple[Evidence, ...] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.part = part
        self.expected = expected
        self.observed = observed
        self.evidence = evidence

    def of(self, subject: str) -> "CheckFailedError":
        """The same failure, its sentence beginning with what was being asked."""
        return CheckFailedError(
            self.reason,
            f"{subject}: {self.message[0].lower()}{self.message[1:]}",
            part=self.part,
            expected=self.expected,
            observed=self.observed,
            evidence=self.evidence,
        )


class BusyError(GateError):
    """``saturated`` tells overload (nobody's fault, to be waited out) from a port that does not listen or refuses the gate."""

    def __init__(self, message: str, *, saturated: bool) -> None:
        super().__init__(message)
        self.saturated = saturated
