"""The rollout planner: ``plan(state, now) -> Plan``. Pure: observed counts in, intent with reasons out; no reads, no clock of its own.

Three names matter: *target* is the revision the spec asks for, *entry* the one the entry Service selects, *others* the rest.
Invariants, for strategy Rolling:
  1. the entry never selects a revision without a ready pod while another revision has one;
  2. the entry moves to the target once ``ready(target) >= needed``, needed = the replicas asked for;
  3. a revision that takes traffic (selected, or with endpoints behind the entry) is never shrunk below the replicas asked for;
  4. an old revision with ready pods goes to 0 only when the target was *observed* among the entry's endpoints, in a later pass than
     the move, and is complete;
  5. a target that its review holds back (``review``) starts no pod;
  6. a revision in ``pods_max`` (TrustFirst, and its release is not recorded yet) gets no pod beyond that number, and does not take
     over from one that serves.
Each decision depends on the observed world alone, so a crash between any two writes is continued by the next pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Strategy = Literal["Rolling", "Recreate"]
Phase = Literal["Pending", "Progressing", "Paused", "Complete"]


@dataclass(frozen=True)
class RevisionState:
    """One revision as observed. ``pods`` counts every pod that exists, terminating ones too; ``waiting`` those that wait for room
    on a node; ``served_at`` is when it first took traffic, None for one that never did."""

    replicas: int = 0
    pods: int = 0
    ready: int = 0
    waiting: int = 0
    served_at: datetime | None = None


@dataclass(frozen=True)
class RolloutState:
    """Everything the plan depends on. ``target`` None: what is wanted is unknown (invalid spec, record missing).
    ``traffic`` holds the revisions with endpoints behind the entry Service; None: not known. ``review`` says why the target may not
    start; None: it may. ``pods_max``: revisions whose release is not recorded yet, and how many pods each may have until then."""

    target: str | None
    replicas: int
    strategy: Strategy = "Rolling"
    paused: bool = False
    history_limit: int = 2
    entry: str | None = None
    traffic: frozenset[str] | None = frozenset()
    revisions: Mapping[str, RevisionState] = field(default_factory=dict)
    review: str | None = None
    pods_max: Mapping[str, int] = field(default_factory=dict)

    def ready(self, revision: str | None) -> int:
        found = None if revision is None else self.revisions.get(revision)
        return 0 if found is None else found.ready

    def has_served(self, revision: str | None) -> bool:
        found = None if revision is None else self.revisions.get(revision)
        return found is not None and found.served_at is not None

    def takes_traffic(self, revision: str) -> bool:
        """Selected by the entry or still among its endpoints. Unknown endpoints count as traffic."""
        return revision == self.entry or self.traffic is None or revision in self.traffic


@dataclass(frozen=True)
class Decision:
    """One thing the plan does and why; the same sentence feeds the log and the test."""

    revision: str
    action: Literal["create", "scale", "select", "remove", "hold"]
    reason: str


@dataclass(frozen=True)
class Plan:
    """The intent. ``replicas`` holds every revision that must exist with this many replicas; ``served`` those to be marked as
    having taken traffic. What is neither there nor in ``remove`` is left alone."""

    entry: str | None
    phase: Phase
    replicas: Mapping[str, int] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()


def plan_rollout(state: RolloutState, now: datetime) -> Plan:
    """Plan one pass. ``now`` only breaks the tie between revisions marked as served in this very pass."""
    target = state.target
    if target is None:
        return _plan_blocked(state)
    decisions: list[Decision] = []
    held = _why_held(state, target)
    holding = held is not None
    if held is not None:
        decisions.append(Decision(target, "hold", held))
        entry = _standing_entry(state)
    else:
        entry, why = choose_entry(state, target)
        if entry != state.entry:
            decisions.append(Decision(entry, "select", why))
    remove = _plan_removals(state, target, entry, now, decisions)
    kept = [name for name in state.revisions if name not in remove]
    replicas = _plan_replicas(state, target, entry, kept, decisions, holding=holding)
    return Plan(
        entry=entry,
        phase=_phase(state, target, entry, holding=holding),
        replicas=replicas,
        remove=remove,
        served=_newly_serving(state),
        decisions=tuple(decisions),
    )


def _plan_blocked(state: RolloutState) -> Plan:
    """What is to run is unknown, how many is not: the revision the entry selects follows ``replicas``, the rest stays as it is."""
    entry = _standing_entry(state)
    why = "what is wanted is unknown; everything stays as it is"
    decisions = [Decision(entry or "", "hold", why)]
    observed = None if entry is None else state.revisions.get(entry)
    if entry is None or observed is None:
        return Plan(entry, "Pending", decisions=tuple(decisions))
    count, why = _bounded(entry, state, "the spec asks for it")
    if observed.replicas != count:
        decisions.append(Decision(entry, "scale", f"{observed.replicas} to {count}: {why}"))
    return Plan(entry, "Pending", replicas={entry: count}, decisions=tuple(decisions))


def _why_held(state: RolloutState, target: str) -> str | None:
    """Why the target neither starts nor takes over; None: nothing holds it."""
    if state.entry == target:
        return None
    return state.review or ("the rollout is paused" if state.paused else None)


def _standing_entry(state: RolloutState) -> str | None:
    """The revision that serves while nothing new may. Somebody may have deleted the entry Service or pointed it at nothing: then what
    served last gets it back, or it would look unwanted and lose its pods."""
    if state.entry in state.revisions:
        return state.entry
    served = {name: found.served_at for name, found in state.revisions.items() if found.served_at is not None}
    return max(served, key=lambda name: (state.ready(name) > 0, served[name], name), default=state.entry)


def choose_entry(state: RolloutState, target: str) -> tuple[str, str]:
    """The revision the entry Service must select, and why. First rule that holds wins."""
    current = state.entry
    if state.replicas > 0 and state.ready(target) >= state.replicas and target not in state.pods_max:
        return target, "all its pods are verified and ready"
    if current is not None and state.ready(current) > 0:
        return current, "it has ready pods and the target is not complete"
    if state.ready(target) > 0:
        return target, "it has ready pods and the serving revision has none"
    others = [name for name in state.revisions if state.ready(name) > 0]
    if others:
        return max(others, key=lambda name: (state.ready(name), name)), "it is the only one with ready pods"
    if current is None or not state.has_served(current):
        return target, "nothing has served yet"
    if state.replicas == 0:
        return target, "the service is scaled to 0, so there is no traffic to protect"
    return current, "no revision has a ready pod"


def _plan_replicas(
    state: RolloutState,
    target: str,
    entry: str | None,
    kept: list[str],
    decisions: list[Decision],
    *,
    holding: bool,
) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for name in dict.fromkeys([*kept, target]):
        count, why = _replicas_of(name, state, target, entry, holding=holding)
        if count is None:
            continue
        wanted[name] = count
        observed = state.revisions.get(name)
        if observed is None:
            decisions.append(Decision(name, "create", why))
        elif observed.replicas != count:
            decisions.append(Decision(name, "scale", f"{observed.replicas} to {count}: {why}"))
    return wanted


def _replicas_of(
    name: str, state: RolloutState, target: str, entry: str | None, *, holding: bool
) -> tuple[int | None, str]:
    """Replicas of one revision; None leaves it alone."""
    observed = state.revisions.get(name)
    if name == target:
        if holding:
            return _held_replicas(name, state)
        if state.strategy == "Recreate" and _others_have_pods(state, target):
            return 0, "Recreate waits until the old pods are gone"
        return _bounded(name, state, "the spec asks for it")
    assert observed is not None
    if not holding and state.strategy == "Recreate":
        return 0, "Recreate stops the old pods first"
    if name == entry:
        if not holding and observed.ready == 0 and _waits(state, target):
            return 0, "none of its pods is ready and the target waits for their room"
        return _bounded(name, state, "it serves")
    if state.takes_traffic(name):
        return observed.replicas, "it may still take traffic"
    if entry != target:
        return 0, "it neither serves nor is wanted"
    complete = state.ready(target) >= state.replicas
    if observed.ready == 0 or (complete and _is_in_traffic(state, target)):
        return 0, "the target serves in its place"
    return observed.replicas, "the target does not serve completely yet"


def _held_replicas(target: str, state: RolloutState) -> tuple[int | None, str]:
    """A paused rollout keeps the pods it has; one that was not reviewed may not have any, unless they take traffic."""
    observed = state.revisions.get(target)
    if observed is None:
        return None, "it is held back"
    if state.review is not None and not state.takes_traffic(target):
        return 0, state.review
    return observed.replicas, "it is held back"


def _bounded(name: str, state: RolloutState, why: str) -> tuple[int, str]:
    """The replicas asked for, or as many as may run before the revision's release is recorded."""
    most = state.pods_max.get(name, state.replicas)
    if most < state.replicas:
        return most, "its release is to be recorded before more pods start"
    return state.replicas, why


def _others_have_pods(state: RolloutState, target: str) -> bool:
    return any(
        revision.pods > 0 or revision.replicas > 0 for name, revision in state.revisions.items() if name != target
    )


def _waits(state: RolloutState, target: str) -> bool:
    return target in state.revisions and state.revisions[target].waiting > 0


def _is_in_traffic(state: RolloutState, revision: str) -> bool:
    """Known to have endpoints, or has none because none are asked for."""
    return (state.traffic is not None and revision in state.traffic) or state.replicas == 0


def _plan_removals(
    state: RolloutState, target: str, entry: str | None, now: datetime, decisions: list[Decision]
) -> tuple[str, ...]:
    free = [name for name in state.revisions if name not in (target, entry) and not state.takes_traffic(name)]
    never = [name for name in free if not state.has_served(name)]
    idle = [
        name
        for name in free
        if state.has_served(name) and state.revisions[name].pods == 0 and state.revisions[name].replicas == 0
    ]
    idle.sort(key=lambda name: (state.revisions[name].served_at or now, name), reverse=True)
    old = idle[state.history_limit :]
    decisions.extend(Decision(name, "remove", "it never served and is not wanted any more") for name in sorted(never))
    decisions.extend(Decision(name, "remove", f"older than the last {state.history_limit} that served") for name in old)
    return (*sorted(never), *old)


def _newly_serving(state: RolloutState) -> tuple[str, ...]:
    entry = state.entry
    if entry is None or state.has_served(entry) or state.ready(entry) == 0 or not _is_in_traffic(state, entry):
        return ()
    return (entry,)


def _phase(state: RolloutState, target: str, entry: str | None, *, holding: bool) -> Phase:
    if holding:
        return "Paused"
    settled = state.entry == entry == target and state.ready(target) >= state.replicas and target not in state.pods_max
    return "Complete" if settled and not _others_have_pods(state, target) else "Progressing"
