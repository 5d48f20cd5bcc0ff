"""Holds the verdict for everybody who reads it: the management port's thread, the API's readiness check, metrics.

One writer (the gate's task), many readers in several threads: a reference to a frozen value is replaced as a whole.
"""

from pratique_contract.reasons import Reason
from pratique_contract.verdict import Verdict, VerdictResult


class VerdictHolder:
    """``Pending`` with reason ``Loading`` until somebody says otherwise."""

    def __init__(self, *, policy: str | None = None) -> None:
        self._policy = policy
        self._current = self._pending(Reason.LOADING, "The model is being loaded")

    def current(self) -> Verdict:
        return self._current

    def set(self, verdict: Verdict) -> None:
        self._current = verdict

    def set_pending(self, reason: Reason, message: str) -> None:
        """Say what is going on before the gate has come to its end."""
        self._current = self._pending(reason, message)

    def _pending(self, reason: Reason, message: str) -> Verdict:
        return Verdict(result=VerdictResult.PENDING, reason=reason, message=message, policy=self._policy)
