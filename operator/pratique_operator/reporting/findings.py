"""From a snapshot to the one reason a person needs: what is wrong with the current spec's revision, or what it waits for. Pure.

The most telling cause comes first: a spec that cannot be served, then a pod's own verdict, then what the kubelet and the scheduler
report, then the deadline.
"""

from datetime import datetime, timedelta
from typing import Final

from pratique_contract import PART_REASONS, Reason
from pratique_contract.reasons import DOWNLOAD_REASONS, GATE_REASONS
from pratique_operator.api.status_types import PodDownload
from pratique_operator.errors import InvalidSpecError, RecordError, SignatureInvalidError
from pratique_operator.observe import Snapshot
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.downloads import SILENT
from pratique_operator.pods.facts import PodFacts
from pratique_operator.reporting.approval import find_hold, find_recording, find_trust_problem
from pratique_operator.rollout.planner import Plan, RolloutState

_ORDER: Final = (
    *PART_REASONS.values(),
    *sorted(GATE_REASONS - set(PART_REASONS.values())),
    *sorted(DOWNLOAD_REASONS),
    Reason.OUT_OF_MEMORY,
    Reason.MOUNT_FAILED,
    Reason.IMAGE_PULL_FAILED,
    Reason.CRASH_LOOPING,
)


def find_problem(snapshot: Snapshot) -> Finding | None:
    """What is wrong with the target so that a person should look; None when nothing is, as far as is known."""
    if snapshot.blocked is not None:
        return Finding(_blocked_reason(snapshot.blocked), str(snapshot.blocked))
    if snapshot.target is None:
        return None
    if snapshot.foreign:
        # Before all that may be wrong with the service's own pods: this is what clients are being served.
        return Finding(Reason.UNVERIFIED_ENDPOINT, "; ".join(snapshot.foreign))
    held = find_hold(snapshot)
    if held is not None:
        return held
    failing = [(pod, pod.failure) for pod in _find_telling(snapshot, snapshot.target.revision)]
    found = [(pod, failure) for pod, failure in failing if failure is not None]
    if found:
        pod, failure = min(found, key=lambda pair: (_rank(pair[1].reason), pair[0].name))
        more = f" ({len(found)} pods fail)" if len(found) > 1 else ""
        still = "; it goes on serving" if pod.ready else ""
        return Finding(failure.reason, f"pod {pod.name}: {failure.message}{still}{more}")
    return _refused_pods(snapshot, snapshot.target.revision) or find_trust_problem(snapshot)


def _find_telling(snapshot: Snapshot, target: str) -> list[PodFacts]:
    """The target's broken pods; without any, those that serve meanwhile and have begun to answer otherwise."""
    broken = find_failing(snapshot)
    own = [pod for pod in broken if pod.revision == target]
    return own or [pod for pod in broken if pod.ready and pod.revision == snapshot.entry]


def _blocked_reason(error: InvalidSpecError | RecordError) -> Reason:
    if isinstance(error, InvalidSpecError):
        return Reason.INVALID_SPEC
    return Reason.SIGNATURE_INVALID if isinstance(error, SignatureInvalidError) else Reason.RECORD_MISSING


def find_failing(snapshot: Snapshot) -> tuple[PodFacts, ...]:
    """The pods that are broken, without those that are history."""
    return tuple(pod for pod in snapshot.pods if pod.failure is not None and not _is_history(snapshot, pod))


def _is_history(snapshot: Snapshot, pod: PodFacts) -> bool:
    """A pod that ended (evicted, a node that went away) and is replaced: Kubernetes keeps such pods for a long time. What a pod was
    evicted for will hit the next one too, so that is told until the revision is complete."""
    if not pod.ended or _is_complete(snapshot, pod.revision):
        return pod.ended
    evicted = pod.finding is not None and pod.finding.reason in (Reason.DISK_FULL, Reason.OUT_OF_MEMORY)
    replaced = any(not other.ended and not other.terminating for other in snapshot.pods_of(pod.revision))
    return replaced and not evicted


def _is_complete(snapshot: Snapshot, revision: str) -> bool:
    replicas = snapshot.deployments().get(revision, {}).get("spec", {}).get("replicas", 0)
    return bool(sum(pod.ready for pod in snapshot.pods_of(revision)) >= replicas)


def _rank(reason: Reason) -> int:
    return _ORDER.index(reason) if reason in _ORDER else len(_ORDER)


def _refused_pods(snapshot: Snapshot, revision: str) -> Finding | None:
    """Pods that the API server did not let the Deployment create: quota, pod security, an unknown account or class."""
    deployment = snapshot.deployments().get(revision, {})
    for condition in deployment.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = str(condition.get("message", "pods cannot be created"))
            if "exceeded quota" in message:
                return None
            return Finding(Reason.INVALID_SPEC, f"the API server refuses the pods: {message}")
    return None


def find_wait(snapshot: Snapshot, plan: Plan, downloads: tuple[PodDownload, ...] = ()) -> Finding:
    """What the target waits for, as far as is known."""
    assert snapshot.target is not None
    if plan.phase == "Paused":
        return Finding(Reason.PAUSED, "spec.rollout.paused is set; the new revision waits")
    pods = snapshot.pods_of(snapshot.target.revision)
    waiting = [pod for pod in pods if pod.waits_for_capacity and pod.finding is not None]
    if waiting:
        assert waiting[0].finding is not None
        return Finding(Reason.WAITING_FOR_CAPACITY, f"pod {waiting[0].name}: {waiting[0].finding.message}")
    recording = find_recording(snapshot)
    if recording is not None:
        return recording
    quota = _quota(snapshot, snapshot.target.revision)
    if quota is not None:
        return Finding(Reason.WAITING_FOR_CAPACITY, quota)
    unready = [pod for pod in pods if not pod.ready and not pod.terminating and not pod.ended]
    if unready:
        return _downloading(unready, downloads) or _loading(unready, snapshot)
    serves = snapshot.entry == snapshot.target.revision and any(pod.ready for pod in pods)
    state = "serves, and its rollout or scaling is being finished" if serves else "is being started"
    return Finding(Reason.LOADING, f"revision {snapshot.target.revision} {state}")


def _quota(snapshot: Snapshot, revision: str) -> str | None:
    conditions = snapshot.deployments().get(revision, {}).get("status", {}).get("conditions", ())
    found = (c for c in conditions if c["type"] == "ReplicaFailure" and c["status"] == "True")
    return next((str(c["message"]) for c in found if "exceeded quota" in c.get("message", "")), None)


def _downloading(unready: list[PodFacts], downloads: tuple[PodDownload, ...]) -> Finding | None:
    """While no pod is further than fetching, that is what everybody waits for."""
    fetching = [pod for pod in unready if pod.fetching]
    if not fetching or any(pod.running for pod in unready):
        return None
    words = {entry.pod: entry.message for entry in downloads}
    told = next((pod for pod in fetching if words.get(pod.name, SILENT) != SILENT), fetching[0])
    more = f"; {len(fetching)} pods fetch" if len(fetching) > 1 else ""
    return Finding(Reason.DOWNLOADING, f"pod {told.name}: {words.get(told.name, SILENT)}{more}")


def _loading(unready: list[PodFacts], snapshot: Snapshot) -> Finding:
    further = [pod for pod in unready if not pod.fetching]
    told = next((pod for pod in further if pod.verdict is not None or pod.hint is not None), further[0])
    if told.verdict is not None and not told.verdict.passed:
        return Finding(told.verdict.reason, f"pod {told.name}: {told.verdict.message}")
    if told.hint is not None:
        return Finding(Reason.LOADING, f"pod {told.name} does not start: {told.hint}")
    assert snapshot.spec is not None
    if told.verified:
        return Finding(Reason.VERIFYING, f"pod {told.name} proved its release; the kubelet has not found it ready yet")
    state = "runs and has not told its verdict yet" if told.running else "is being started"
    return Finding(
        Reason.LOADING, f"pod {told.name} {state}; {len(unready)} of {snapshot.spec.replicas} pods are not ready"
    )


def deadline_of(
    snapshot: Snapshot,
    state: RolloutState,
    plan: Plan,
    started_at: datetime | None,
    downloads: tuple[PodDownload, ...] = (),
) -> datetime | None:
    """When the rollout counts as failed; None when none is running. A revision that has served is not on trial again.

    A download that moves is progress, however long it takes: the time counts from its last move, and anew from its end."""
    running = plan.phase == "Progressing" and not (state.has_served(state.target) and state.entry == state.target)
    if snapshot.spec is None or started_at is None or not running:
        return None
    moves = [datetime.fromisoformat(entry.progressed_at) for entry in downloads if entry.revision == state.target]
    ends = [pod.fetched_at for pod in snapshot.pods_of(state.target) if pod.fetched_at is not None]
    return max([started_at, *moves, *ends]) + timedelta(seconds=snapshot.spec.progress_deadline_seconds)
