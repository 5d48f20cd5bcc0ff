"""A toy cluster for the planner's properties: applies a plan write by write, lets pods start, fail and end, and keeps what a
rollout may never do. Deterministic for a seed; no Kubernetes, no clock but the one it counts."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random

from pratique_operator.rollout.planner import Plan, RevisionState, RolloutState, plan_rollout

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """The observed world. ``broken`` revisions never become ready; ``room`` bounds how many pods fit in the cluster. ``trusting``
    revisions are to be recorded from their first ready pod; ``unreviewed`` ones may not start while another one serves."""

    state: RolloutState
    broken: frozenset[str] = frozenset()
    room: int | None = None
    trusting: frozenset[str] = frozenset()
    unreviewed: frozenset[str] = frozenset()
    recorded: set[str] = field(default_factory=set)
    step: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.step)

    def plan(self) -> Plan:
        """Plan on what is observed now, as a pass of the operator does."""
        pods_max = {name: 1 for name in self.trusting if name not in self.recorded}
        review = "nobody reviewed it" if self._is_held_back(self.state.target) else None
        self.state = replace(self.state, pods_max=pods_max, review=review)
        return plan_rollout(self.state, self.now)

    def _is_held_back(self, target: str | None) -> bool:
        entry = self.state.entry
        serves = entry not in (None, target) and (self.state.has_served(entry) or self.state.ready(entry) > 0)
        return target in self.unreviewed and not self.state.has_served(target) and serves

    def set_revision(self, name: str, revision: RevisionState | None) -> None:
        revisions = dict(self.state.revisions)
        if revision is None:
            revisions.pop(name, None)
        else:
            revisions[name] = revision
        self.state = replace(self.state, revisions=revisions)

    def writes(self, plan: Plan) -> Iterator[None]:
        """Carry out the plan one write at a time, in the operator's order; stopping early is a crash."""
        for name, count in plan.replicas.items():
            old = self.state.revisions.get(name)
            if old is None or old.replicas < count:
                self._check_growth(name, count)
                self.set_revision(name, replace(old or RevisionState(), replicas=count))
                yield
        if plan.entry is not None and plan.entry != self.state.entry:
            self._check_selection(plan.entry)
            self.state = replace(self.state, entry=plan.entry)
            yield
        for name in plan.served:
            self.set_revision(name, replace(self.state.revisions[name], served_at=self.now))
            yield
        for name, count in plan.replicas.items():
            old = self.state.revisions[name]
            if old.replicas > count:
                self._check_shrink(name, count)
                self.set_revision(name, replace(old, replicas=count))
                yield
        for name in plan.remove:
            self._check_removal(name)
            self.set_revision(name, None)
            yield

    def _check_growth(self, name: str, count: int) -> None:
        if name == self.state.target and self._is_held_back(name) and count > 0:
            self.violations.append(f"step {self.step}: started {count} pods of {name}, which nobody reviewed")
        if count > self.state.pods_max.get(name, count):
            self.violations.append(f"step {self.step}: grew {name} to {count} before it was recorded")

    def _check_selection(self, name: str) -> None:
        if self.state.ready(name) == 0 and any(self.state.ready(other) for other in self.state.revisions):
            self.violations.append(f"step {self.step}: selected {name}, which has no ready pod, while another has one")

    def _check_shrink(self, name: str, count: int) -> None:
        if self.state.strategy == "Recreate" or count >= self.state.replicas:
            return
        if name in (self.state.traffic or ()) and self.state.ready(name) > 0:
            self.violations.append(f"step {self.step}: shrank {name} to {count} while it took traffic")
        others = any(self.state.ready(other) > 0 for other in self.state.revisions if other != name)
        if count == 0 and self.state.ready(name) > 0 and not others:
            self.violations.append(f"step {self.step}: took the last ready pods away, those of {name}")

    def _check_removal(self, name: str) -> None:
        if name == self.state.entry or (name in (self.state.traffic or ()) and self.state.ready(name) > 0):
            self.violations.append(f"step {self.step}: removed {name} while it took traffic")

    def tick(self, random: Random) -> None:
        """Time passes: pods appear, become ready, end; endpoints follow the entry's selector."""
        self.step += 1
        used = sum(revision.pods for revision in self.state.revisions.values())
        for name, old in list(self.state.revisions.items()):
            pods, ready, waiting = old.pods, old.ready, 0
            if pods > old.replicas:
                pods -= random.randint(0, pods - old.replicas)
            elif pods < old.replicas:
                free = None if self.room is None else max(0, self.room - used)
                new = old.replicas - pods if free is None else min(old.replicas - pods, free)
                waiting = old.replicas - pods - new
                pods, used = pods + new, used + new
            ready = min(ready, pods, old.replicas)
            if name not in self.broken and ready < min(pods, old.replicas):
                ready += random.randint(0, min(pods, old.replicas) - ready)
            self.set_revision(name, replace(old, pods=pods, ready=ready, waiting=waiting))
        for name in sorted(self.trusting):
            if self.state.ready(name) > 0 and random.random() < 0.5:  # a pod may also die before it is recorded
                self.recorded.add(name)
        entry = self.state.entry
        traffic = frozenset({entry}) if entry is not None and self.state.ready(entry) > 0 else frozenset()
        if random.random() < 0.7:  # endpoints are seen late now and then
            self.state = replace(self.state, traffic=traffic)


def simulate(world: World, random: Random, *, steps: int, crash_rate: float = 0.0) -> World:
    """Run passes; with ``crash_rate`` each write may be the operator's last before it starts anew."""
    for _ in range(steps):
        for _ in world.writes(world.plan()):
            if random.random() < crash_rate:
                break
        world.tick(random)
    return world
