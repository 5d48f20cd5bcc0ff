"""The one pass over one service: observe → plan → apply → status → events. Level-triggered: it depends on nothing but what it
observes, so it may run at any time, twice, or stop anywhere."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pratique_contract import Reason
from pratique_operator import kinds, metrics
from pratique_operator.apply import apply_plan
from pratique_operator.cluster import Cluster
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import ChildConflictError, NotFoundError, RejectedError
from pratique_operator.kinds import Key
from pratique_operator.observe import ReadVerdicts, Snapshot, observe_service, rollout_state
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.downloads import Pace
from pratique_operator.release.records import ReadRecord
from pratique_operator.release.referred import ReferredObjects
from pratique_operator.reporting.events import compute_events, post_events
from pratique_operator.reporting.status import StatusResult, compute_status, format_time, merge_patch
from pratique_operator.rollout.planner import Plan, plan_rollout

LOG = logging.getLogger(__name__)

# The API server's words; the service itself will be gone in a moment.
NAMESPACE_GOES: Final = "because it is being terminated"

Clock = Callable[[], datetime]


@dataclass(frozen=True)
class Outcome:
    """What a pass did: the number of writes, and in how many seconds to look again although nothing changed; None: the service is gone."""

    writes: int
    requeue_seconds: float | None


def utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """Runs passes. Called from worker threads; for one service never twice at a time (the queue sees to that)."""

    def __init__(
        self,
        cluster: Cluster,
        config: OperatorConfig,
        *,
        read_verdicts: ReadVerdicts,
        read_record: ReadRecord,
        now: Clock = utc_now,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._read_verdicts = read_verdicts
        self._read_record = read_record
        self._now = now
        self._referred = ReferredObjects()
        self._pace: Pace[Key] = Pace(config.progress_seconds)

    def reconcile(self, key: Key) -> Outcome:
        """One pass; raises ``ApiError`` or ``UnavailableError`` when the world could not be read or written."""
        started = time.monotonic()
        try:
            outcome = self._pass(key)
        except Exception:
            metrics.RECONCILES.labels(result="error").inc()
            raise
        finally:
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - started)
        metrics.RECONCILES.labels(result="changed" if outcome.writes else "unchanged").inc()
        return outcome

    def _pass(self, key: Key) -> Outcome:
        now = self._now()
        snapshot = observe_service(
            self._cluster,
            key,
            self._config,
            read_verdicts=self._read_verdicts,
            read_record=self._read_record,
            now=now,
        )
        if snapshot is None:
            self._pace.forget(key)
            self._referred.forget(key)
            return Outcome(0, None)
        self._referred.remember(key, snapshot.referred)
        plan = plan_rollout(rollout_state(snapshot), now)
        for decision in plan.decisions:
            LOG.debug("Planned %s: %s: %s: %s", decision.action, key, decision.revision, decision.reason)
        writes, refused = self._apply(snapshot, plan, now)
        result = compute_status(snapshot, plan, now=now, refused=refused)
        writes += self._write_status(snapshot, result, now)
        return Outcome(writes, self._requeue_seconds(snapshot, plan, result, now, refused=refused))

    def find_changed(self) -> set[Key]:
        """Services that refer to an object which is another one than their last pass read."""
        return self._referred.find_changed(self._cluster)

    def _apply(self, snapshot: Snapshot, plan: Plan, now: datetime) -> tuple[int, Finding | None]:
        """A child that cannot be written is told in the status; an unreachable API server ends the pass."""
        try:
            return apply_plan(self._cluster, snapshot, plan, network=self._config.network, now=format_time(now)), None
        except (ChildConflictError, RejectedError) as error:
            if NAMESPACE_GOES in str(error):
                return 0, None
            LOG.warning("Children were not written: %s: %s", snapshot.key, error)
            return 0, Finding(Reason.INVALID_SPEC, str(error))

    def _write_status(self, snapshot: Snapshot, result: StatusResult, now: datetime) -> int:
        before = snapshot.owner.get("status") or {}
        if before == result.value or self._pace.may_wait(snapshot.key, before, result.value, now):
            return 0
        # The precondition keeps a status computed for an older spec from being written over a newer object.
        version = snapshot.owner["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "status": merge_patch(before, result.value)}
        try:
            self._cluster.patch(
                kinds.INFERENCE_SERVICE, snapshot.key.namespace, snapshot.key.name, body, subresource="status"
            )
        except NotFoundError:
            return 0  # deleted while it was looked at
        self._pace.remember(snapshot.key, result.value, now)
        post_events(self._cluster, snapshot.owner, compute_events(before, result.value), now=format_time(now))
        return 1

    def _requeue_seconds(
        self, snapshot: Snapshot, plan: Plan, result: StatusResult, now: datetime, *, refused: Finding | None
    ) -> float:
        waits = [self._config.resync_seconds]
        if snapshot.blocked is not None or refused is not None:
            # What is missing may be created at any time, and unlabelled objects are not watched.
            waits.append(self._config.retry_seconds)
        if any(pod.creating or pod.claims_unbound for pod in snapshot.pods):
            # Nor are the complaints about a pod that does not start.
            waits.append(self._config.retry_seconds)
        proving = any(pod.may_answer and not pod.ready and pod.download is None for pod in snapshot.pods)
        to_record = rollout_state(snapshot).pods_max and any(pod.ready for pod in snapshot.pods)
        if proving or to_record:
            # A verdict or a pod's own record changes nothing in the API server; only asking finds out.
            waits.append(self._config.verdict_poll_seconds)
        if any(pod.download is not None for pod in snapshot.pods):
            waits.append(self._config.progress_seconds)
        if snapshot.entry is not None and snapshot.endpoints is None:
            waits.append(self._config.retry_seconds)
        if result.deadline is not None:
            waits.append(max(1.0, (result.deadline - now).total_seconds()))
        return min(waits)
