"""``pratique status``: the screen, from a resource as the operator writes it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pratique_cli.commands.status import describe, is_ready

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def _resource(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "smollm2", "namespace": "demo", "generation": 3},
        "spec": {"release": {"fingerprint": "sha256:" + "a" * 64}},
        "status": status,
    }


def _ready(status: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T11:55:00Z",
    }


FULL = _resource(
    observedGeneration=3,
    url="http://smollm2.demo.svc",
    conditions=[_ready("True", "Reconciled", "2 of 2 pods are verified")],
    serving={
        "revision": "abc1234567",
        "fingerprint": "sha256:" + "a" * 64,
        "approved": True,
        "weight": 100,
        "replicas": 2,
        "readyReplicas": 2,
        "verifiedReplicas": 2,
    },
    candidate=None,
    rollout={"phase": "Complete", "message": ""},
)


def test_what_serves_is_shown_before_what_is_wanted() -> None:
    lines = describe(FULL, now=NOW).splitlines()
    assert lines[1] == "Ready:     True  Reconciled: 2 of 2 pods are verified"
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("serving", "candidate"))}
    assert rows["serving"] == ["abc1234567", "a" * 12, "yes", "100%", "2", "2", "2"]
    assert set(rows["candidate"]) == {"-"}
    assert lines.index(next(line for line in lines if line.startswith("serving"))) < lines.index(
        next(line for line in lines if line.startswith("candidate"))
    )
    assert "5m" in next(line for line in lines if line.startswith("Ready "))


def test_a_candidate_without_a_verified_pod_is_not_shown_as_the_release_it_ought_to_be() -> None:
    serving = dict(FULL["status"]["serving"])
    candidate = {**serving, "revision": "def1234567", "fingerprint": "sha256:" + "b" * 64, "verifiedReplicas": 0}
    text = describe(_resource(**{**FULL["status"], "candidate": candidate}), now=NOW)
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("serving", "candidate"))}
    assert f"{'b' * 12} (not proved)" in rows["candidate"]
    assert "not proved" not in rows["serving"]


def test_a_refused_pod_is_shown_with_its_reason() -> None:
    verdict = {
        "pod": "smollm2-abc-x",
        "revision": "abc",
        "result": "Fail",
        "reason": "TokenizerMismatch",
        "message": "tokenizer.files[tokenizer.json].sha256: one was recorded, other is loaded",
    }
    screen = describe(_resource(verdicts=[verdict]), now=NOW)
    assert "TokenizerMismatch   tokenizer.files[tokenizer.json].sha256" in screen


def test_a_cause_is_told_once() -> None:
    cause = "pod smollm2-abc-x: engine.build: one was recorded, other is loaded"
    kinds = {
        "Ready": cause,
        "Degraded": cause,
        "FingerprintVerified": f"no pod has passed: {cause}",
        "Available": "1 pod",
    }
    conditions = [{"type": kind, "status": "False", "reason": "X", "message": text} for kind, text in kinds.items()]
    lines = describe(_resource(conditions=conditions), now=NOW).splitlines()
    told = {line.split()[0]: line for line in lines[lines.index(next(x for x in lines if x.startswith("CONDITION"))) :]}
    assert told["Ready"].endswith(cause)
    assert told["Degraded"].endswith("   as Ready")
    assert told["FingerprintVerified"].endswith("   no pod has passed: as Ready")
    assert told["Available"].endswith("   1 pod")


def test_a_record_without_a_fingerprint_approves_nothing() -> None:
    resource = {"metadata": {"name": "new", "namespace": "demo"}, "spec": {"release": {"recordRef": {"name": "r"}}}}
    assert "Approved:  nothing" in describe(resource, now=NOW)
    assert "Approved:  nothing" in describe({**resource, "spec": {}}, now=NOW)


def test_downloads_are_shown_with_the_time_of_their_last_move() -> None:
    moved = (NOW - timedelta(seconds=90)).isoformat()
    entry = {"pod": "new-1", "revision": "rev", "message": "1.0 of 2.0 GB (50 %), 80 MB/s", "progressedAt": moved}
    resource = {"metadata": {"name": "new", "namespace": "demo"}, "status": {"downloads": [entry]}}
    lines = describe(resource, now=NOW).splitlines()
    assert lines[-2].split("  ")[0] == "POD DOWNLOADING"
    assert lines[-1].split() == ["new-1", "rev", "90s", *str(entry["message"]).split()]


def test_a_service_without_status_says_so() -> None:
    resource = {"metadata": {"name": "new", "namespace": "demo", "generation": 1}}
    assert "Unknown  not observed yet: the operator has not written a status" in describe(resource, now=NOW)
    assert not is_ready(resource)


def test_ready_for_an_older_spec_is_not_ready() -> None:
    """kserve#4626."""
    older = {**FULL, "metadata": {**FULL["metadata"], "generation": 4}}
    assert is_ready(FULL)
    assert not is_ready(older)
    assert "the newest spec is not seen yet" in describe(older, now=NOW)


def test_recorded_release_that_nobody_approved_is_shown_with_the_command() -> None:
    resource = _resource(
        recorded={"recordRef": "smollm2-recorded-1", "fingerprint": "sha256:" + "b" * 64, "approved": False}
    )
    resource["spec"] = {"release": {"policy": "TrustFirst"}}
    line = next(line for line in describe(resource, now=NOW).splitlines() if line.startswith("Approved:"))
    assert "b" * 64 in line
    assert "pratique release approve smollm2 -n demo" in line


def test_what_no_review_covers_is_listed() -> None:
    review: dict[str, Any] = {"reference": "sha256:" + "c" * 64, "differences": [{"part": "engine", "message": "m"}]}
    covered = describe(_resource(review=review), now=NOW)
    assert f"every difference from release {'c' * 12} is covered" in covered
    uncovered = [{"part": "engine", "message": "engine differs and nobody gave a reason"}]
    shown = describe(_resource(review={**review, "uncovered": uncovered}), now=NOW)
    assert f"NOT REVIEWED AGAINST {'c' * 12}" in shown
    assert "engine differs and nobody gave a reason" in shown
