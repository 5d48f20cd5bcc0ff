"""The planner: tables of single decisions, then seeded histories whose every step keeps the invariants."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from pratique_operator.rollout.planner import Plan, RevisionState, RolloutState, Strategy, plan_rollout
from pratique_operator.rollout.simulation import World, simulate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)


def serving(*, replicas: int = 2, ready: int = 2, served_at: datetime | None = BEFORE) -> RevisionState:
    return RevisionState(replicas=replicas, pods=replicas, ready=ready, served_at=served_at)


def starting(*, replicas: int = 2, ready: int = 0, waiting: int = 0) -> RevisionState:
    return RevisionState(replicas=replicas, pods=replicas, ready=ready, waiting=waiting)


def idle(served_at: datetime = BEFORE) -> RevisionState:
    return RevisionState(served_at=served_at)


def state(target: str | None = "new", **more: object) -> RolloutState:
    base = RolloutState(target=target, replicas=2)
    return replace(base, **more)  # type: ignore[arg-type]


def plan(observed: RolloutState) -> Plan:
    return plan_rollout(observed, NOW)


def test_first_deploy_creates_the_target_and_points_the_entry_at_it() -> None:
    result = plan(state())
    assert (result.entry, dict(result.replicas), result.remove, result.phase) == ("new", {"new": 2}, (), "Progressing")


def test_unknown_target_leaves_everything_alone_but_the_number_of_serving_pods() -> None:
    """Absent is not false: with the record missing nothing that serves may change, yet it must go on scaling."""
    revisions = {"old": serving(), "other": starting()}
    result = plan(state(None, entry="old", revisions=revisions, traffic=frozenset({"old"})))
    assert (result.entry, dict(result.replicas), result.remove) == ("old", {"old": 2}, ())
    scaled = plan(state(None, replicas=5, entry="old", revisions=revisions, traffic=frozenset({"old"})))
    assert (scaled.entry, dict(scaled.replicas), scaled.remove) == ("old", {"old": 5}, ())
    assert dict(plan(state(None, entry="gone", revisions={"other": starting()})).replicas) == {}
    assert plan(state(None, entry=None, revisions=revisions)).entry == "old"  # somebody deleted the entry Service
    assert plan(state(None, entry=None, revisions={"other": starting()})).entry is None
    unrecorded = state(
        None, replicas=5, entry="old", revisions=revisions, traffic=frozenset({"old"}), pods_max={"old": 2}
    )
    assert dict(plan(unrecorded).replicas) == {"old": 2}


def test_candidate_starts_beside_the_stable_and_takes_no_traffic() -> None:
    result = plan(state(entry="old", revisions={"old": serving()}, traffic=frozenset({"old"})))
    assert (result.entry, dict(result.replicas)) == ("old", {"old": 2, "new": 2})


@pytest.mark.parametrize(("ready", "entry"), [(0, "old"), (1, "old"), (2, "new")])
def test_entry_moves_only_when_every_candidate_pod_is_ready(ready: int, entry: str) -> None:
    revisions = {"old": serving(), "new": starting(ready=ready)}
    result = plan(state(entry="old", revisions=revisions, traffic=frozenset({"old"})))
    assert (result.entry, result.replicas["old"]) == (entry, 2)


def test_stable_is_not_shrunk_in_the_pass_that_moves_the_entry() -> None:
    """kserve#4855: the old ReplicaSet went to 0 before the new one was ready."""
    moved = state(entry="new", revisions={"old": serving(), "new": starting(ready=2)}, traffic=frozenset({"old"}))
    assert plan(moved).replicas["old"] == 2
    seen = replace(moved, traffic=frozenset({"new"}))
    assert plan(seen).replicas["old"] == 0
    assert plan(replace(moved, traffic=None)).replicas["old"] == 2


def test_entry_returns_to_the_old_revision_when_the_new_one_loses_all_pods_before_the_old_are_gone() -> None:
    observed = state(entry="new", revisions={"old": serving(), "new": serving(ready=0)}, traffic=frozenset())
    assert plan(observed).entry == "old"


def test_entry_moves_to_a_partly_ready_target_when_the_stable_has_no_ready_pod() -> None:
    observed = state(entry="old", revisions={"old": serving(ready=0), "new": starting(ready=1)})
    assert plan(observed).entry == "new"


def test_partly_ready_target_is_preferred_to_an_older_revision_with_more_ready_pods() -> None:
    revisions = {"old": serving(ready=0), "new": starting(ready=1), "older": serving(replicas=3, ready=3)}
    assert plan(state(entry="old", revisions=revisions)).entry == "new"


def test_old_revision_stays_until_the_target_is_seen_among_the_endpoints() -> None:
    observed = state(entry="new", revisions={"old": serving(), "new": starting(ready=2)}, traffic=frozenset())
    assert plan(observed).replicas["old"] == 2
    assert plan(replace(observed, traffic=frozenset({"new"}))).replicas["old"] == 0


def test_old_revision_without_a_ready_pod_makes_room_before_the_target_is_complete() -> None:
    revisions = {"old": serving(ready=0), "new": starting(ready=1)}
    assert plan(state(entry="new", revisions=revisions, traffic=frozenset({"new"}))).replicas["old"] == 0
    with_one_ready = {"old": serving(ready=1), "new": starting(ready=1)}
    assert plan(state(entry="new", revisions=with_one_ready, traffic=frozenset({"new"}))).replicas["old"] == 2


def test_revision_that_neither_serves_nor_is_wanted_goes_to_zero_while_another_is_on_its_way() -> None:
    revisions = {"older": serving(), "old": serving(), "new": starting()}
    result = plan(state(entry="old", revisions=revisions, traffic=frozenset({"old"})))
    assert dict(result.replicas) == {"older": 0, "old": 2, "new": 2}


def test_unknown_endpoints_count_as_traffic_so_nothing_is_removed() -> None:
    observed = state(entry="new", revisions={"dead": starting(), "new": serving()}, traffic=None)
    assert (plan(observed).remove, plan(observed).replicas["dead"]) == ((), 2)
    assert plan(replace(observed, traffic=frozenset({"new"}))).remove == ("dead",)


def test_broken_candidate_is_replaced_at_once_by_a_newer_spec() -> None:
    """kthena#743: a broken group blocked the rollout of its own fix."""
    revisions = {"old": serving(), "broken": starting(), "fix": starting()}
    result = plan(state("fix", entry="old", revisions=revisions, traffic=frozenset({"old"})))
    assert (result.remove, result.entry, result.replicas["old"]) == (("broken",), "old", 2)


def test_broken_first_deploy_is_replaced_at_once_by_a_newer_spec() -> None:
    first = state("fix", entry="broken", revisions={"broken": starting()}, traffic=frozenset())
    assert plan(first).entry == "fix"
    then = replace(first, entry="fix", revisions={"broken": starting(), "fix": starting()})
    assert plan(then).remove == ("broken",)


def test_change_back_to_the_stable_spec_removes_the_candidate_and_touches_nothing_else() -> None:
    """dynamo#13620: a revert in mid-rollout deleted the serving generation."""
    revisions = {"old": serving(), "new": starting(ready=1)}
    result = plan(state("old", entry="old", revisions=revisions, traffic=frozenset({"old"})))
    assert (result.entry, dict(result.replicas), result.remove) == ("old", {"old": 2}, ("new",))


def test_scaling_applies_to_stable_and_candidate_during_a_rollout() -> None:
    revisions = {"old": serving(), "new": starting()}
    result = plan(state(entry="old", revisions=revisions, traffic=frozenset({"old"}), replicas=5))
    assert dict(result.replicas) == {"old": 5, "new": 5}


def test_paused_starts_no_revision_and_moves_no_traffic_but_scales() -> None:
    revisions = {"old": serving()}
    result = plan(state(entry="old", revisions=revisions, traffic=frozenset({"old"}), paused=True, replicas=3))
    assert (result.entry, dict(result.replicas), result.phase) == ("old", {"old": 3}, "Paused")
    assert plan(state(paused=True)).replicas == {}


def test_recreate_starts_the_target_only_when_the_old_pods_are_gone() -> None:
    observed = state(entry="old", revisions={"old": serving()}, traffic=frozenset({"old"}), strategy="Recreate")
    assert dict(plan(observed).replicas) == {"old": 0, "new": 0}
    gone = replace(observed, revisions={"old": idle(), "new": RevisionState()}, traffic=frozenset())
    assert plan(gone).replicas["new"] == 2


def test_unready_stable_makes_room_for_a_target_that_waits_for_it() -> None:
    """LLMKube#192: the surge pod could not get a GPU, so nothing ever moved."""
    revisions = {"old": serving(ready=0), "new": starting(waiting=1)}
    assert plan(state(entry="old", revisions=revisions)).replicas["old"] == 0
    with_one_ready = {"old": serving(ready=1), "new": starting(waiting=1)}
    assert plan(state(entry="old", revisions=with_one_ready, traffic=frozenset({"old"}))).replicas["old"] == 2


def test_history_keeps_the_last_revisions_that_served() -> None:
    old = {f"old{n}": idle(NOW - timedelta(hours=n)) for n in range(1, 5)}
    result = plan(state(entry="new", revisions={"new": serving(), **old}, traffic=frozenset({"new"})))
    assert result.remove == ("old3", "old4")


def test_revision_is_marked_as_served_once_it_has_endpoints() -> None:
    fresh = RevisionState(replicas=2, pods=2, ready=2)
    observed = state(entry="new", revisions={"new": fresh}, traffic=frozenset())
    assert plan(observed).served == ()
    assert plan(replace(observed, traffic=frozenset({"new"}))).served == ("new",)


def test_zero_replicas_let_the_entry_follow_the_spec() -> None:
    observed = state(entry="old", revisions={"old": idle()}, traffic=frozenset(), replicas=0)
    assert plan(observed).entry == "new"


def test_every_change_carries_a_reason() -> None:
    result = plan(state(entry="old", revisions={"old": serving(), "dead": starting()}, traffic=frozenset({"old"})))
    assert {(d.revision, d.action) for d in result.decisions} == {("new", "create"), ("dead", "remove")}
    assert all(decision.reason for decision in result.decisions)


def test_unreviewed_candidate_is_not_started_and_the_serving_revision_still_scales() -> None:
    observed = state(
        entry="old", revisions={"old": serving()}, traffic=frozenset({"old"}), replicas=3, review="unreviewed"
    )
    result = plan(observed)
    assert (result.entry, dict(result.replicas), result.phase) == ("old", {"old": 3}, "Paused")
    first = result.decisions[0]
    assert (first.revision, first.action, first.reason) == ("new", "hold", "unreviewed")


def test_candidate_that_must_be_reviewed_after_all_loses_its_pods_unless_they_take_traffic() -> None:
    revisions = {"old": serving(), "new": starting(ready=1)}
    observed = state(entry="old", revisions=revisions, traffic=frozenset({"old"}), review="unreviewed")
    assert dict(plan(observed).replicas) == {"old": 2, "new": 0}
    assert plan(replace(observed, traffic=frozenset({"old", "new"}))).replicas["new"] == 2
    assert plan(replace(observed, traffic=None)).replicas["new"] == 2


@pytest.mark.parametrize("entry", [None, "nothing-like-that"])
@pytest.mark.parametrize("held", [{"review": "unreviewed"}, {"paused": True}])
def test_entry_that_somebody_took_away_comes_back_while_the_rollout_is_held(
    held: dict[str, object], entry: str | None
) -> None:
    """Without it the serving revision looked unwanted and went to 0."""
    revisions = {"old": serving(), "older": idle()}
    result = plan(state(entry=entry, revisions=revisions, traffic=frozenset(), **held))
    assert (result.entry, dict(result.replicas)) == ("old", {"old": 2, "older": 0})


def test_unreviewed_candidate_waits_under_recreate_too() -> None:
    observed = state(entry="old", revisions={"old": serving()}, traffic=frozenset({"old"}), strategy="Recreate")
    assert dict(plan(replace(observed, review="unreviewed")).replicas) == {"old": 2}


def test_one_pod_runs_until_its_release_is_recorded() -> None:
    first = plan(state(pods_max={"new": 1}))
    assert (dict(first.replicas), first.entry) == ({"new": 1}, "new")
    assert "recorded" in first.decisions[-1].reason
    running = state(entry="new", revisions={"new": starting(replicas=1, ready=1)}, traffic=frozenset({"new"}))
    held = plan(replace(running, pods_max={"new": 1}))
    assert (dict(held.replicas), held.phase) == ({"new": 1}, "Progressing")
    assert dict(plan(running).replicas) == {"new": 2}


def test_single_pod_that_is_not_recorded_is_not_a_finished_rollout_and_does_not_take_over() -> None:
    alone = state(entry="new", replicas=1, revisions={"new": serving(replicas=1, ready=1)}, traffic=frozenset({"new"}))
    assert (plan(alone).phase, plan(replace(alone, pods_max={"new": 1})).phase) == ("Complete", "Progressing")
    revisions = {"old": serving(replicas=1, ready=1), "new": starting(replicas=1, ready=1)}
    beside = state(entry="old", replicas=1, revisions=revisions, traffic=frozenset({"old"}), pods_max={"new": 1})
    assert plan(beside).entry == "old"
    assert plan(replace(beside, pods_max={})).entry == "new"
    outage = replace(beside, revisions={**revisions, "old": serving(replicas=1, ready=0)})
    assert plan(outage).entry == "new"


def test_serving_revision_whose_record_is_lost_keeps_its_pods_and_gets_no_more() -> None:
    """Absent is not false: pods that proved themselves are not stopped because a ConfigMap is gone."""
    observed = state(entry="new", revisions={"new": serving()}, traffic=frozenset({"new"}), pods_max={"new": 2})
    assert dict(plan(observed).replicas) == {"new": 2}
    assert dict(plan(replace(observed, replicas=5)).replicas) == {"new": 2}
    assert dict(plan(replace(observed, replicas=1)).replicas) == {"new": 1}


def settled(world: World) -> bool:
    ok = world.state
    return (
        ok.entry == ok.target
        and ok.ready(ok.entry) == ok.replicas
        and all(r.replicas == 0 and r.pods == 0 for name, r in ok.revisions.items() if name != ok.target)
    )


def random_history(seed: int, *, crash_rate: float) -> World:
    """Several spec changes, some to broken revisions, then a good one and quiet."""
    random = Random(seed)
    strategy: Strategy = "Recreate" if seed % 5 == 0 else "Rolling"
    world = World(
        RolloutState(target="r0", replicas=random.randint(1, 4), strategy=strategy, history_limit=random.randint(0, 3)),
        broken=frozenset({"r1", "r4"}),
        trusting=frozenset({"r0", "r3", "r4"}) if seed % 2 else frozenset(),
        unreviewed=frozenset({"r2", "r4", "r5"}) if seed % 3 else frozenset(),
    )
    for _ in range(random.randint(2, 6)):
        # Now and then what is wanted is unknown for a while: a missing record, a spec that cannot be read.
        target = None if random.random() < 0.15 else f"r{random.randint(0, 5)}"
        paused, gone = random.random() < 0.2, random.random() < 0.2  # somebody deletes the entry Service
        world.state = replace(world.state, target=target, replicas=random.randint(1, 4), paused=paused)
        world.state = replace(world.state, entry=random.choice([None, "nobody"]) if gone else world.state.entry)
        simulate(world, random, steps=random.randint(1, 12), crash_rate=crash_rate)
    world.state = replace(world.state, target="r3", paused=False)
    return simulate(world, random, steps=80, crash_rate=crash_rate / 2)


@pytest.mark.parametrize("crash_rate", [0.0, 0.4])
def test_every_history_converges_and_never_breaks_an_invariant(crash_rate: float) -> None:
    """dynamo#13353, argo-rollouts#4390: quick successive updates and unfinished rollouts, with crashes between any two writes."""
    for seed in range(300):
        world = random_history(seed, crash_rate=crash_rate)
        assert world.violations == [], f"seed {seed}"
        assert settled(world), f"seed {seed}: {world.state}"


def test_crash_after_each_single_write_converges_to_the_same_end() -> None:
    start = RolloutState(
        target="new",
        replicas=2,
        entry="old",
        traffic=frozenset({"old"}),
        revisions={"old": serving(), "dead": starting()},
    )
    ends = []
    for crash_at in range(12):
        random, world = Random(7), World(start)
        done = 0
        for _ in range(60):
            for _ in world.writes(world.plan()):
                done += 1
                if done == crash_at:
                    break
            world.tick(random)
        assert world.violations == []
        ends.append((world.state.entry, {n: (r.replicas, r.ready) for n, r in world.state.revisions.items()}))
    assert ends == [("new", {"old": (0, 0), "new": (2, 2)})] * len(ends)


def test_rollout_completes_in_a_cluster_without_spare_room_once_the_stable_is_broken() -> None:
    start = RolloutState(target="new", replicas=2, entry="old", revisions={"old": serving(ready=0)})
    world = simulate(World(start, broken=frozenset({"old"}), room=2), Random(3), steps=60)
    assert settled(world)


def test_settled_world_plans_no_change() -> None:
    observed = state(entry="new", revisions={"new": serving(), "old": idle()}, traffic=frozenset({"new"}))
    result = plan(observed)
    assert (result.phase, result.decisions, result.served) == ("Complete", (), ())
