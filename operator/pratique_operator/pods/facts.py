"""What one pod's own object says: ready, fetching, waiting, broken, and why. Pure; the verdict it would tell itself comes from
``verdicts.py``, what the kubelet says about a pod that cannot start from ``stuck.py``."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pratique_contract import Reason, Verdict, VerdictResult, constants
from pratique_contract.canonical import short_digest
from pratique_operator import names
from pratique_operator.pods.containers import Finding, clip, find_fetcher_trouble, find_server_trouble

Manifest = dict[str, Any]

_NOT_YET: Final = (None, "ContainerCreating", "PodInitializing")
# What the kubelet says when it evicts a pod that took more disk than it may, or from a disk that is full.
_DISK_WORDS: Final = ("EmptyDir", "ephemeral")
UNBOUND_CLAIM: Final = "unbound immediate PersistentVolumeClaims"


@dataclass(frozen=True)
class PodFacts:
    """One pod. ``finding`` is what the kubelet or scheduler reports against it, None when nothing; ``verdict`` None: not known.

    ``fetching``: its first container runs; ``fetched_at``: when that succeeded. ``creating``: on a node since ``creating_since``, the
    next container not started yet; ``hint`` is then what the kubelet last complained about. ``ended``: it will never run again.
    ``claims_unbound``: no node yet, maybe because one of its ``claims`` has no volume. ``audited``: its verdict must be fresh although
    it is ready, because under TrustFirst it is to be recorded. ``failures_max``: so many re-verifications in
    a row must have failed until that counts. ``release``: the fingerprint its revision was made for, None where nobody knows."""

    name: str
    revision: str
    uid: str = ""
    address: str | None = None
    created_at: datetime | None = None
    ready: bool = False
    creating: bool = False
    creating_since: datetime | None = None
    fetching: bool = False
    fetched_at: datetime | None = None
    running: bool = False
    terminating: bool = False
    ended: bool = False
    claims: tuple[str, ...] = ()
    claims_unbound: bool = False
    finding: Finding | None = None
    verdict: Verdict | None = None
    hint: str | None = None
    audited: bool = False
    failures_max: int = 3
    release: str | None = None

    @property
    def may_answer(self) -> bool:
        """Whether asking it for its verdict makes sense: while it fetches, the verdict says how far it is."""
        return (self.running or self.fetching) and not self.terminating and self.address is not None

    @property
    def is_urgent(self) -> bool:
        """Whether a rollout waits for its answer; a ready pod's can only tell of a later change."""
        return self.may_answer and (self.audited or not self.ready)

    @property
    def verified(self) -> bool:
        """Readiness is only reached with a passing verdict, so a ready pod is verified until it says otherwise."""
        if self.verdict is None or self.verdict.result is VerdictResult.PENDING:
            return self.ready
        return self.verdict.passed and self._drift is None and self._other_release is None

    @property
    def _drift(self) -> Finding | None:
        """What re-verification found since the pod passed, once that counts."""
        seen = None if self.verdict is None else self.verdict.reverification
        if seen is None or seen.result is not VerdictResult.FAIL or seen.failures < self.failures_max:
            return None
        return Finding(seen.reason, f"{seen.failures} re-verifications in a row failed: {seen.message}")

    @property
    def _other_release(self) -> Finding | None:
        """It passed, as something else than its revision is: the ConfigMap it read was exchanged, and maybe put back since."""
        seen = self.verdict
        if seen is None or not seen.passed or self.release is None or seen.fingerprint in (None, self.release):
            return None
        sentence = (
            f"it passed as release {short_digest(str(seen.fingerprint))}, its revision is release {short_digest(self.release)}: what it "
            "read when it started was not its revision's ConfigMap; delete the pod"
        )
        return Finding(Reason.RECORD_MISSING, sentence)

    @property
    def download(self) -> str | None:
        """How far its fetching is, in its own words; None when it does not fetch or does not say."""
        if not self.fetching or self.verdict is None or self.verdict.reason is not Reason.DOWNLOADING:
            return None
        return self.verdict.message

    @property
    def failure(self) -> Finding | None:
        """Why the pod is broken: its own verdict first, because it says more than the kubelet can."""
        if self.verified or self.terminating:
            return None
        if self.verdict is not None and self.verdict.result is VerdictResult.FAIL:
            return Finding(self.verdict.reason, self.verdict.message)
        if (odd := self._other_release or self._drift) is not None:
            return odd
        if self.finding is not None and self.finding.reason is not Reason.WAITING_FOR_CAPACITY:
            return self.finding
        return None

    @property
    def waits_for_capacity(self) -> bool:
        return self.finding is not None and self.finding.reason is Reason.WAITING_FOR_CAPACITY


def observe_pod(pod: Manifest, *, now: datetime) -> PodFacts:
    """Read a pod's object."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    server = _container(status.get("containerStatuses"), names.CONTAINER)
    fetcher = _container(status.get("initContainerStatuses"), names.FETCHER)
    ready = conditions.get("Ready", {}).get("status") == "True"
    ended = status.get("phase") in ("Failed", "Succeeded")
    fetched_at = _fetched_at(fetcher)
    claims = _claims(pod)
    return PodFacts(
        name=metadata["name"],
        revision=metadata.get("labels", {}).get(constants.LABEL_REVISION, ""),
        uid=metadata.get("uid", ""),
        address=status.get("podIP"),
        created_at=_time(metadata.get("creationTimestamp")),
        ready=ready and "deletionTimestamp" not in metadata,
        creating=_is_creating(status, conditions, server, fetcher),
        creating_since=fetched_at or _time(conditions.get("PodScheduled", {}).get("lastTransitionTime")),
        fetching="running" in fetcher.get("state", {}) and not ended,
        fetched_at=fetched_at,
        running="running" in server.get("state", {}) and not ended,
        terminating="deletionTimestamp" in metadata,
        ended=ended,
        claims=claims,
        claims_unbound=bool(claims) and _has_no_node_for_its_claims(status, conditions),
        finding=None if ready else _finding(status, conditions, server, fetcher, now=now),
    )


def _container(statuses: list[Manifest] | None, name: str) -> Manifest:
    return next((container for container in statuses or () if container["name"] == name), {})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _fetched_at(fetcher: Manifest) -> datetime | None:
    ended = fetcher.get("state", {}).get("terminated", {})
    return _time(ended.get("finishedAt")) if ended.get("exitCode") == 0 else None


def _is_creating(status: Manifest, conditions: dict[str, Manifest], server: Manifest, fetcher: Manifest) -> bool:
    scheduled = conditions.get("PodScheduled", {}).get("status") == "True"
    first = server if _fetched_at(fetcher) is not None or not fetcher else fetcher
    waiting = first.get("state", {}).get("waiting", {}).get("reason")
    started = any(state in first.get("state", {}) for state in ("running", "terminated"))
    return status.get("phase") == "Pending" and scheduled and not started and waiting in _NOT_YET


def _claims(pod: Manifest) -> tuple[str, ...]:
    volumes = pod.get("spec", {}).get("volumes") or ()
    found = (volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes)
    return tuple(dict.fromkeys(name for name in found if name))


def _has_no_node_for_its_claims(status: Manifest, conditions: dict[str, Manifest]) -> bool:
    """The scheduler says so, or is silent: it waits for a volume that is being made without writing a condition."""
    scheduled = conditions.get("PodScheduled")
    if scheduled is None:
        return status.get("phase") == "Pending"
    return scheduled.get("status") == "False" and UNBOUND_CLAIM in (scheduled.get("message") or "")


def _end_reason(reason: str | None, text: str) -> Reason:
    if reason == "Evicted" and any(words in text for words in _DISK_WORDS):
        return Reason.DISK_FULL
    return Reason.OUT_OF_MEMORY if reason == "Evicted" and "memory" in text else Reason.CRASH_LOOPING


def _finding(
    status: Manifest, conditions: dict[str, Manifest], server: Manifest, fetcher: Manifest, *, now: datetime
) -> Finding | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        message = scheduled.get("message") or "the pod is not scheduled yet"
        missing_claim = "persistentvolumeclaim" in message and "not found" in message
        # No node will ever have room for a claim that does not exist.
        return Finding(Reason.INVALID_SPEC if missing_claim else Reason.WAITING_FOR_CAPACITY, clip(message))
    if status.get("phase") == "Failed":
        text = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        return Finding(_end_reason(status.get("reason"), text), clip(text or "the pod failed"))
    return find_fetcher_trouble(fetcher, now=now) or find_server_trouble(server)
