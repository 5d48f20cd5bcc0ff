"""What one pod's own object says: ready, waiting, broken, and why. Pure; the verdict it would tell itself comes from ``verdicts.py``."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_operator import names

Manifest = dict[str, Any]

MESSAGE_CHARS_MAX: Final = 400
RESTARTS_MIN: Final = 2
_PULL_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_START_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
)


@dataclass(frozen=True)
class Finding:
    """A reason code and a sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class PodFacts:
    """One pod. ``finding`` is what the kubelet or scheduler reports against it, None when nothing; ``verdict`` None: not known.
    ``creating``: on a node, container not started yet; ``hint`` is then what the kubelet last complained about."""

    name: str
    revision: str
    uid: str = ""
    address: str | None = None
    created_at: datetime | None = None
    ready: bool = False
    creating: bool = False
    running: bool = False
    terminating: bool = False
    finding: Finding | None = None
    verdict: Verdict | None = None
    hint: str | None = None

    @property
    def may_answer(self) -> bool:
        """Whether asking it for its verdict makes sense."""
        return self.running and not self.ready and not self.terminating and self.address is not None

    @property
    def verified(self) -> bool:
        """Readiness is only reached with a passing verdict, so a ready pod is verified without being asked."""
        return self.ready or (self.verdict is not None and self.verdict.passed)

    @property
    def failure(self) -> Finding | None:
        """Why the pod is broken: its own verdict first, because it says more than the kubelet can."""
        if self.ready or self.terminating:
            return None
        if self.verdict is not None and self.verdict.result is VerdictResult.FAIL:
            return Finding(self.verdict.reason, self.verdict.message)
        if self.finding is not None and self.finding.reason is not Reason.WAITING_FOR_CAPACITY:
            return self.finding
        return None

    @property
    def waits_for_capacity(self) -> bool:
        return self.finding is not None and self.finding.reason is Reason.WAITING_FOR_CAPACITY


def observe_pod(pod: Manifest) -> PodFacts:
    """Read a pod's object."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    container: Manifest = next((c for c in status.get("containerStatuses", ()) if c["name"] == names.CONTAINER), {})
    ready = conditions.get("Ready", {}).get("status") == "True"
    return PodFacts(
        name=metadata["name"],
        revision=metadata.get("labels", {}).get(constants.LABEL_REVISION, ""),
        uid=metadata.get("uid", ""),
        address=status.get("podIP"),
        created_at=_time(metadata.get("creationTimestamp")),
        ready=ready and "deletionTimestamp" not in metadata,
        creating=_is_creating(status, conditions, container),
        running="running" in container.get("state", {}),
        terminating="deletionTimestamp" in metadata,
        finding=None if ready else _finding(status, conditions, container),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _is_creating(status: Manifest, conditions: dict[str, Manifest], container: Manifest) -> bool:
    scheduled = conditions.get("PodScheduled", {}).get("status") == "True"
    waiting = container.get("state", {}).get("waiting", {}).get("reason")
    return status.get("phase") == "Pending" and scheduled and waiting in (None, "ContainerCreating", "PodInitializing")


def _finding(status: Manifest, conditions: dict[str, Manifest], container: Manifest) -> Finding | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        message = scheduled.get("message") or "the pod is not scheduled yet"
        missing_claim = "persistentvolumeclaim" in message and "not found" in message
        # No node will ever have room for a claim that does not exist.
        return Finding(Reason.INVALID_SPEC if missing_claim else Reason.WAITING_FOR_CAPACITY, clip(message))
    if status.get("phase") == "Failed":
        text = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        return Finding(Reason.CRASH_LOOPING, clip(text or "the pod failed"))
    state, last = container.get("state", {}), container.get("lastState", {})
    waiting = state.get("waiting", {})
    if waiting.get("reason") in _PULL_REASONS:
        image = container.get("image", "the image")
        return Finding(Reason.IMAGE_PULL_FAILED, clip(f"{image}: {waiting.get('message') or waiting['reason']}"))
    if waiting.get("reason") in _START_REASONS:
        return Finding(
            Reason.CRASH_LOOPING, clip(f"the container cannot start: {waiting.get('message') or waiting['reason']}")
        )
    ended = state.get("terminated") or last.get("terminated")
    if ended is None:
        return None
    if ended.get("reason") == "OOMKilled":
        return Finding(Reason.OUT_OF_MEMORY, "the container was killed because it used more memory than its limit")
    # A container that runs again for a moment between two crashes is still crashing; one restart may have any cause.
    again = container.get("restartCount", 0) >= RESTARTS_MIN
    if again or waiting.get("reason") == "CrashLoopBackOff" or "terminated" in state:
        why = ended.get("message") or ended.get("reason") or "no reason given"
        return Finding(Reason.CRASH_LOOPING, clip(f"the server exited with code {ended.get('exitCode')}: {why}"))
    return None


def clip(text: str) -> str:
    """One line that fits into a condition."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= MESSAGE_CHARS_MAX else f"{flat[: MESSAGE_CHARS_MAX - 1]}…"
