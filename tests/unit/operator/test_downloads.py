"""Progress of fetching in the status: kept while a pod is silent, moving the deadline, and never worth a write every few seconds."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_operator.observe import Snapshot, rollout_state
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.downloads import SILENT, Pace, is_only_progress
from pratique_operator.pods.facts import PodFacts
from pratique_operator.reporting.status import StatusResult, compute_status
from pratique_operator.rollout.planner import plan_rollout
from tests.unit.operator.worlds import NOW, make_deployment, make_pod, make_snapshot, make_target, ready_pod

HUB = {"model": {"uri": "hf://owner/name", "revision": "a" * 40}}
REV = make_target(**HUB).revision
OLD = "0ld0ld0ld0"


def fetching(message: str | None, name: str = "new") -> PodFacts:
    verdict = None
    if message is not None:
        verdict = Verdict(result=VerdictResult.PENDING, reason=Reason.DOWNLOADING, message=message)
    return make_pod(REV, name, fetching=True, verdict=verdict)


def updating(*pods: PodFacts, status: dict[str, Any] | None = None) -> Snapshot:
    deployments = (make_deployment(OLD, served=True), make_deployment(REV, replicas=len(pods)))
    everything = (ready_pod(OLD, "old"), *pods)
    return make_snapshot(
        spec=HUB, status=status, entry=OLD, deployments=deployments, pods=everything, endpoints={OLD: 1}
    )


def result_of(snapshot: Snapshot, now: datetime = NOW) -> StatusResult:
    return compute_status(snapshot, plan_rollout(rollout_state(snapshot), now), now=now)


def told(status: dict[str, Any], kind: str = "Ready") -> tuple[str, str, str]:
    condition = next(c for c in status["conditions"] if c["type"] == kind)
    return condition["status"], condition["reason"], condition["message"]


def test_download_is_the_reason_in_the_fetchers_own_words() -> None:
    status = result_of(updating(fetching("1.0 of 2.0 GB (50 %), 80 MB/s"))).value
    assert told(status) == ("False", "Downloading", "pod new: 1.0 of 2.0 GB (50 %), 80 MB/s")
    assert told(status, "Progressing")[:2] == ("True", "Downloading")
    assert told(status, "Degraded")[0] == "False"
    assert told(status, "Available")[0] == "True"
    (entry,) = status["downloads"]
    assert entry == {
        "pod": "new",
        "revision": REV,
        "message": "1.0 of 2.0 GB (50 %), 80 MB/s",
        "progressedAt": "2026-01-02T03:04:05Z",
    }


def test_pod_that_is_silent_for_a_moment_keeps_its_last_words() -> None:
    before = result_of(updating(fetching("half"))).value
    later = result_of(updating(fetching(None), status=before), NOW + timedelta(seconds=30)).value
    assert later == before


def test_pod_that_has_not_spoken_yet_is_downloading_all_the_same() -> None:
    status = result_of(updating(fetching(None))).value
    assert told(status) == ("False", "Downloading", f"pod new: {SILENT}")


def test_several_pods_are_counted_and_the_one_that_speaks_is_quoted() -> None:
    status = result_of(updating(fetching(None, "a"), fetching("half", "b"))).value
    assert told(status)[2] == "pod b: half; 2 pods fetch"
    assert [entry["pod"] for entry in status["downloads"]] == ["a", "b"]


def test_pod_that_got_further_than_fetching_is_what_is_told() -> None:
    assert told(result_of(updating(fetching("half"), make_pod(REV, "b", running=True))).value)[1] == "Loading"


def test_long_download_that_moves_is_never_late_and_one_that_stands_still_is() -> None:
    """What is late is a rollout that does not move, not a large model behind a slow line."""
    status = result_of(updating(fetching("1 %"))).value
    now = NOW
    for percent in range(2, 10):
        now += timedelta(minutes=35)
        status = result_of(updating(fetching(f"{percent} %"), status=status), now).value
        assert (told(status)[1], status["rollout"]["phase"]) == ("Downloading", "Progressing")
    status = result_of(updating(fetching("9 %"), status=status), now + timedelta(minutes=39)).value
    assert told(status)[1] == "Downloading"
    late = result_of(updating(fetching("9 %"), status=status), now + timedelta(minutes=40)).value
    assert told(late)[1] == "ProgressDeadlineExceeded"
    assert "9 %" in told(late)[2]


def test_time_to_load_and_verify_begins_when_the_files_are_there() -> None:
    fetched = make_pod(REV, "new", running=True, fetched_at=NOW + timedelta(hours=5))
    snapshot = updating(fetched, status=result_of(updating(fetching("1 %"))).value)
    assert result_of(snapshot, NOW + timedelta(hours=5, minutes=39)).value["rollout"]["phase"] == "Progressing"
    assert result_of(snapshot, NOW + timedelta(hours=5, minutes=40)).value["rollout"]["phase"] == "Failed"


def test_failed_download_is_the_reason_in_every_place_a_person_looks() -> None:
    broken = make_pod(REV, "new", finding=Finding(Reason.DOWNLOAD_UNAUTHORIZED, "401 from hub.example"))
    status = result_of(updating(broken)).value
    assert told(status) == ("False", "DownloadUnauthorized", "pod new: 401 from hub.example")
    assert told(status, "Degraded")[:2] == ("True", "DownloadUnauthorized")
    (verdict,) = status["verdicts"]
    assert (verdict["pod"], verdict["result"], verdict["reason"]) == ("new", "Unknown", "DownloadUnauthorized")


def test_only_words_of_progress_are_only_progress() -> None:
    before = result_of(updating(fetching("1 %"))).value
    moved = result_of(updating(fetching("2 %"), status=before), NOW + timedelta(seconds=3)).value
    assert moved != before
    assert is_only_progress(before, moved)
    failed = result_of(updating(replace(fetching("2 %"), finding=Finding(Reason.DISK_FULL, "x")), status=before)).value
    assert not is_only_progress(before, failed)
    assert not is_only_progress(before, result_of(updating(status=before)).value)
    assert not is_only_progress({}, before)


def test_progress_is_written_every_ten_seconds_and_anything_else_at_once() -> None:
    before = result_of(updating(fetching("1 %"))).value
    moved = result_of(updating(fetching("2 %"), status=before)).value
    broken = make_pod(REV, "new", finding=Finding(Reason.DISK_FULL, "x"))
    failed = result_of(updating(broken, status=before)).value
    pace: Pace[str] = Pace(10)
    assert not pace.may_wait("svc", before, moved, NOW)
    pace.remember("svc", before, NOW)
    assert pace.may_wait("svc", before, moved, NOW + timedelta(seconds=9))
    assert not pace.may_wait("other", before, moved, NOW + timedelta(seconds=9))
    assert not pace.may_wait("svc", before, failed, NOW + timedelta(seconds=1))
    assert not pace.may_wait("svc", before, moved, NOW + timedelta(seconds=10))
    pace.remember("svc", failed, NOW + timedelta(seconds=1))
    assert not pace.may_wait("svc", before, moved, NOW + timedelta(seconds=2))
