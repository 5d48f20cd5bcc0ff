"""Why a pod does not get as far as a running container: the newest Event decides, and only after a while."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from pratique_contract import Reason
from pratique_operator import kinds
from pratique_operator.cluster import Cluster
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.facts import PodFacts
from pratique_operator.pods.stuck import PODS_MAX, explain_stuck
from tests.unit.operator.worlds import NOW

Event = dict[str, Any]
POD = PodFacts(name="p", revision="r", uid="u")


def event(reason: str, message: str, *, seconds_ago: int = 1, kind: str = "Warning") -> Event:
    at = (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")
    return {"reason": reason, "message": message, "type": kind, "lastTimestamp": at}


class Events:
    """Only what is asked here: lists Events by field selector and counts the questions."""

    def __init__(self, answer: Callable[[str], list[Event]]) -> None:
        self.answer, self.asked = answer, []

    asked: list[str]

    def list(self, kind: object, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Event]:
        assert (kind, namespace, selector) == (kinds.EVENT, "ns", "")
        self.asked.append(fields)
        return self.answer(fields)


def explain(pods: list[PodFacts], *events: Event) -> list[PodFacts]:
    return explain_stuck(cast("Cluster", Events(lambda _: list(events))), "ns", pods, now=NOW)


def creating(seconds: int) -> PodFacts:
    return replace(POD, creating=True, creating_since=NOW - timedelta(seconds=seconds))


MOUNT = event("FailedMount", 'MountVolume.SetUp failed for volume "credentials" : secret "hub" not found')


def test_mount_that_fails_is_a_hint_at_first_and_a_failure_after_a_while() -> None:
    """kaito#344: a wrong folder or Secret looked like a pod that is still being created, for ever."""
    (young,) = explain([creating(12)], MOUNT)
    assert (young.finding, young.hint) == (None, f"FailedMount: {MOUNT['message']}")
    (old,) = explain([creating(20)], MOUNT)
    assert old.finding == Finding(Reason.MOUNT_FAILED, f"FailedMount: {MOUNT['message']}")


def test_nobody_is_asked_about_a_pod_that_has_just_been_placed() -> None:
    events = Events(lambda _: [MOUNT])
    pods = [creating(9), POD, replace(creating(60), terminating=True)]
    assert explain_stuck(cast("Cluster", events), "ns", pods, now=NOW) == pods
    assert events.asked == []


def test_warning_that_is_over_is_forgotten() -> None:
    """A large image is pulled for minutes after the first second's warning about a ConfigMap."""
    old = event("FailedMount", "failed to sync configmap cache", seconds_ago=300)
    (pod,) = explain([creating(301)], old, event("Pulling", "Pulling image", seconds_ago=299, kind="Normal"))
    assert (pod.finding, pod.hint) == (None, None)


def test_warning_of_another_kind_stays_a_hint() -> None:
    (pod,) = explain([creating(600)], event("FailedCreatePodSandBox", "no network"))
    assert (pod.finding, pod.hint) == (None, "FailedCreatePodSandBox: no network")


def unplaced(seconds: int, *claims: str) -> PodFacts:
    return replace(POD, claims=claims, claims_unbound=True, created_at=NOW - timedelta(seconds=seconds))


def test_claim_without_a_volume_says_what_the_volume_controller_says() -> None:
    told = event("ProvisioningFailed", 'storageclass "fast" not found')
    waiting = event("ExternalProvisioning", "waiting for a volume", seconds_ago=0, kind="Normal")
    events = Events(lambda fields: [told, waiting] if fields.endswith("=models") else [])
    (pod,) = explain_stuck(cast("Cluster", events), "ns", [unplaced(60, "models", "fine")], now=NOW)
    sentence = 'claim models has no volume: ProvisioningFailed: storageclass "fast" not found'
    assert pod.finding == Finding(Reason.MOUNT_FAILED, sentence)


def test_claim_without_events_repeats_the_scheduler_and_young_pods_just_wait() -> None:
    scheduler = Finding(Reason.WAITING_FOR_CAPACITY, "pod has unbound immediate PersistentVolumeClaims")
    young, old = replace(unplaced(59, "models"), finding=scheduler), replace(unplaced(61, "models"), finding=scheduler)
    assert explain([young]) == [young]
    (pod,) = explain([old])
    assert pod.finding == Finding(Reason.MOUNT_FAILED, f"no volume for claim models: {scheduler.message}")


@pytest.mark.parametrize("count", [PODS_MAX + 3])
def test_a_pass_asks_about_few_pods_however_many_are_stuck(count: int) -> None:
    events = Events(lambda _: [MOUNT])
    explain_stuck(cast("Cluster", events), "ns", [replace(creating(99), name=f"p{n}") for n in range(count)], now=NOW)
    assert len(events.asked) == PODS_MAX
