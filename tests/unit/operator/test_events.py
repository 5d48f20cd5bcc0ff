"""Events: once per cause, told when it appears, never again while it lasts."""

from typing import Any

from pratique_operator.reporting.events import build_event, compute_events
from tests.unit.operator.worlds import make_owner


def status(
    *, failing: tuple[str, ...] = (), reason: str = "", degraded: bool = False, progressing: str = "", serving: str = ""
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rollout": {"target": "new"},
        "verdicts": [{"pod": p, "revision": "new", "reason": reason, "message": "m"} for p in failing],
        "conditions": [
            {
                "type": "Degraded",
                "status": "True" if degraded else "False",
                "reason": reason or "Reconciled",
                "message": "d",
            },
            {"type": "Progressing", "status": "True", "reason": progressing or "Loading", "message": "w"},
        ],
    }
    if serving:
        found["serving"] = {"revision": serving, "weight": 100}
    return found


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in compute_events(before, after)]


def test_many_failing_pods_of_one_cause_are_one_event() -> None:
    after = status(failing=("a", "b", "c"), reason="ModelMismatch", degraded=True)
    assert told({}, after) == [("Warning", "ModelMismatch")]


def test_lasting_cause_is_not_told_again() -> None:
    lasting = status(failing=("a",), reason="ModelMismatch", degraded=True)
    more = status(failing=("a", "b"), reason="ModelMismatch", degraded=True)
    assert told(lasting, more) == []


def test_degraded_without_a_pod_is_told() -> None:
    assert told({}, status(reason="RecordMissing", degraded=True)) == [("Warning", "RecordMissing")]


def test_wait_for_capacity_is_told_once() -> None:
    waiting = status(progressing="WaitingForCapacity")
    assert told({}, waiting) == [("Warning", "WaitingForCapacity")]
    assert told(waiting, waiting) == []


def test_promotion_is_told_with_what_it_replaced() -> None:
    (event,) = compute_events(status(serving="old"), status(serving="new"))
    assert (event.type, event.reason) == ("Normal", "Promoted")
    assert event.message == "revision new takes traffic, after revision old"


def test_same_cause_has_the_same_name_and_another_revision_another() -> None:
    """The API server refuses the second one, so not even a restarted operator can cause a storm."""

    def name(after: dict[str, Any]) -> str:
        (event,) = compute_events({}, after)
        return str(build_event(make_owner(), event, now="2026-01-01T00:00:00Z")["metadata"]["name"])

    one = status(failing=("a",), reason="ModelMismatch", degraded=True)
    other_pod = status(failing=("b",), reason="ModelMismatch", degraded=True)
    other_revision = status(failing=("a",), reason="ModelMismatch", degraded=True)
    other_revision["verdicts"][0]["revision"] = other_revision["rollout"]["target"] = "newer"
    assert name(one) == name(other_pod) != name(other_revision)
