"""The review policy: which release a candidate is held against, what holds it back, and what never does."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pratique_contract import ReleaseRecord
from pratique_contract.review import REQUIRED_TESTS, Review, ReviewedDifference, ReviewTest
from pratique_operator import names
from pratique_operator.observe import Snapshot, rollout_state
from pratique_operator.release.review import Candidate, ReviewState, compute_review, served_at
from pratique_operator.reporting.status import compute_status
from pratique_operator.rollout.planner import plan_rollout
from tests.support.releases import make_manifest, make_record
from tests.unit.operator.worlds import NOW, make_deployment, make_snapshot, make_target, ready_pod

OLD = make_record()
NEW_MANIFEST = make_manifest(quantization=make_manifest().quantization.model_copy(update={"dtype": "BF16"}))
NEW = make_record(manifest=NEW_MANIFEST)
START = datetime(2026, 1, 1, tzinfo=UTC)


def reviewed(*, passed: bool = True, reference: ReleaseRecord = OLD) -> ReleaseRecord:
    tests = tuple(
        ReviewTest(kind=k, passed=passed, message="max KL 0.3", measurements={"klMean": 0.1}, limits={"klMeanMax": 0.3})
        for k in REQUIRED_TESTS["quantization"]
    )
    review = Review(
        reference=reference.fingerprint,
        candidate=NEW.fingerprint,
        differences=(ReviewedDifference(part="quantization", intentional="half the memory"),),
        tests=tests,
    )
    return make_record(manifest=NEW_MANIFEST, review=review)


def revision(name: str, *, served: int | None = None) -> dict[str, Any]:
    marks = {} if served is None else {names.ANNOTATION_SERVED_AT: (START + timedelta(hours=served)).isoformat()}
    return make_deployment(name, marks=marks)


def review(
    candidate: ReleaseRecord | None,
    *,
    target: str = "new",
    entry: str | None = "old",
    ready: bool = True,
    blocks: bool = True,
    served: dict[str, int] | None = None,
    records: dict[str, ReleaseRecord | None] | None = None,
) -> ReviewState:
    deployments = {name: revision(name, served=at) for name, at in ({"old": 1} if served is None else served).items()}
    known = {"old": OLD, **(records or {})}
    return compute_review(
        Candidate(target, candidate, "rel"),
        deployments,
        entry=entry,
        entry_ready=ready,
        record_of=lambda name: known.get(name),
        blocks=blocks,
    )


def test_first_deployment_has_nothing_to_be_reviewed_against() -> None:
    for found in (
        review(NEW, entry=None, ready=False, served={}),
        review(NEW, entry="new", ready=False, served={}),
        review(None, entry="new", ready=True, served={}),
        review(NEW, entry="broken", ready=False, served={}),
    ):
        assert (found.status, found.reason, found.holds) == ("Unknown", "NothingToCompare", False)
        assert (found.reference, "nothing was reviewed" in found.message) == (None, True)


def test_uncovered_candidate_is_held_under_block_and_told_under_warn() -> None:
    held = review(NEW)
    assert (held.status, held.reason, held.holds) == ("False", "ReviewRequired", True)
    assert "quantization differs and no review" in held.message
    assert [d.part for d in held.differences] == ["quantization"]
    assert (held.reference, held.record_ref) == (OLD.fingerprint, "rel")
    warned = review(NEW, blocks=False)
    assert (warned.status, warned.holds) == ("False", False)


def test_covered_candidate_passes_and_failed_tests_do_not_cover() -> None:
    found = review(reviewed())
    assert (found.status, found.reason, found.holds) == ("True", "ReviewPassed", False)
    failed = review(reviewed(passed=False))
    assert (failed.status, failed.holds) == ("False", True)
    assert "max KL 0.3" in failed.message


def test_review_against_another_release_does_not_count() -> None:
    other = make_record(
        manifest=make_manifest(quantization=OLD.manifest.quantization.model_copy(update={"dtype": "FP16"}))
    )
    assert review(reviewed(reference=other)).holds


def test_same_release_with_other_pods_needs_no_review() -> None:
    found = review(OLD)
    assert (found.status, found.reason, found.differences) == ("True", "SameRelease", ())


def test_same_release_that_has_to_prove_less_is_told_so() -> None:
    """No fingerprint covers the golden cases, so "only the pods differ" would hide that somebody thinned them out."""
    golden = OLD.golden.model_copy(update={"cases": OLD.golden.cases[1:]})
    state = review(make_record(golden=golden))
    assert state.status == "True"
    assert f"its record makes them prove something else (golden.cases[{OLD.golden.cases[0].name}];" in state.message
    assert "only the pods differ" in review(OLD).message


@pytest.mark.parametrize(
    ("candidate", "records"), [(None, None), (NEW, {"old": None})], ids=["no candidate record", "no reference record"]
)
def test_missing_record_is_unknown_and_not_started_under_block(
    candidate: ReleaseRecord | None, records: dict[str, ReleaseRecord | None] | None
) -> None:
    """Absent is not false, and not true."""
    found = review(candidate, records=records)
    assert (found.status, found.holds) == ("Unknown", True)
    assert ("recordRef" in found.message) is (candidate is None)  # a person is told what to do about it
    assert not review(candidate, records=records, blocks=False).holds


def test_serving_revision_counts_before_its_mark_is_written() -> None:
    assert review(NEW, served={}, ready=True).holds


def test_going_back_to_a_revision_or_a_release_that_served_is_never_held() -> None:
    back = review(NEW, target="new", entry="old", served={"new": 1, "old": 2}, records={"new": NEW})
    assert (back.holds, back.status, back.reason) == (False, "Unknown", "NothingToCompare")
    again = review(NEW, target="other-pods", entry="old", served={"new": 1, "old": 2}, records={"new": NEW})
    assert (again.status, again.holds) == ("False", False)
    assert "served before (revision new)" in again.message


def test_after_its_promotion_a_release_is_still_held_against_what_it_replaced() -> None:
    """Under Warn an unreviewed release must not look reviewed because it serves."""
    found = review(NEW, target="new", entry="new", served={"old": 1, "new": 2}, records={"new": NEW}, blocks=False)
    assert (found.status, found.reference) == ("False", OLD.fingerprint)
    just_moved = review(NEW, target="new", entry="new", served={"old": 1}, blocks=False)
    assert just_moved.reference == OLD.fingerprint


def test_what_the_entry_selects_already_is_not_held_when_the_policy_becomes_block() -> None:
    found = review(NEW, target="new", entry="new", served={"old": 1}, blocks=True)
    assert (found.status, found.holds) == ("False", False)


def world(policy: str, *, replicas: int = 1) -> Snapshot:
    """An unrecorded TrustFirst candidate beside an Enforce revision that serves: nothing to compare."""
    spec = {"release": {"policy": "TrustFirst", "reviewPolicy": policy}, "replicas": replicas}
    return make_snapshot(
        spec=spec,
        entry="old",
        deployments=(make_deployment("old", served=True),),
        pods=(ready_pod("old"),),
        endpoints={"old": 1},
    )


def test_status_says_what_is_held_and_the_serving_revision_scales_on() -> None:
    snapshot = world("Block", replicas=3)
    plan = plan_rollout(rollout_state(snapshot), NOW)
    assert dict(plan.replicas) == {"old": 3}
    status = compute_status(snapshot, plan, now=NOW).value
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert conditions["Ready"] == ("False", "ReviewRequired")
    assert conditions["Degraded"] == ("True", "ReviewRequired")
    assert conditions["Progressing"] == ("False", "ReviewRequired")
    assert conditions["Available"] == ("True", "Reconciled")
    assert conditions["ReviewPassed"] == ("Unknown", "ReviewRequired")
    assert status["rollout"]["message"].startswith("hold ")


def test_warn_starts_the_candidate() -> None:
    plan = plan_rollout(rollout_state(world("Warn")), NOW)
    assert dict(plan.replicas) == {"old": 1, make_target(release={"policy": "TrustFirst"}).revision: 1}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-01T00:00:00Z", START),
        ("2026-01-01T00:00:00", START),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_time_that_somebody_wrote_over_is_no_time(text: str, moment: datetime | None) -> None:
    """Anyone who may annotate a Deployment would end every pass of its service."""
    assert served_at(make_deployment("r", marks={names.ANNOTATION_SERVED_AT: text})) == moment
