"""TrustFirst: the first pod's record is kept once, later pods are held against it, and what is lost is not taken for never recorded."""

from dataclasses import replace
from typing import Any

import pytest

from pratique_contract import Reason, ReleaseRecord, ServingSpec, Verdict, VerdictResult, constants
from pratique_contract.golden import GoldenRecord
from pratique_contract.record import RECORD_BYTES_MAX
from pratique_contract.review import Review
from pratique_operator import kinds, names
from pratique_operator.desired.children import build_recorded
from pratique_operator.errors import RecordError
from pratique_operator.observe import Snapshot, rollout_state
from pratique_operator.pods.facts import PodFacts
from pratique_operator.release.trust import Offer, RecordAnswer, observe_recorded, pin_lost, stale_config_maps
from pratique_operator.reporting.approval import find_trust_problem
from pratique_operator.reporting.events import compute_events
from pratique_operator.reporting.status import compute_status
from pratique_operator.rollout.planner import plan_rollout
from tests.support.releases import make_manifest, make_record
from tests.unit.operator.worlds import NOW, make_deployment, make_owner, make_pod, make_snapshot, make_target

TRUST: dict[str, Any] = {"release": {"policy": "TrustFirst"}, "replicas": 2}
RECORD = make_record()
OTHER = make_record(
    manifest=make_manifest(quantization=make_manifest().quantization.model_copy(update={"dtype": "BF16"}))
)
WEAK = make_record(golden=GoldenRecord())
TARGET = make_target(**TRUST)
DECLARED = str(TARGET.declared)
NAME = names.recorded("svc", DECLARED)


def passed(fingerprint: str = RECORD.fingerprint) -> Verdict:
    return Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="proved", fingerprint=fingerprint)


def trusted_pod(name: str = "p", fingerprint: str = RECORD.fingerprint, revision: str = TARGET.revision) -> PodFacts:
    return make_pod(revision, name, ready=True, running=True, audited=True, verdict=passed(fingerprint))


def kept(record: ReleaseRecord = RECORD, *, pinned: str | None = None) -> dict[str, Any]:
    """The ConfigMap as the operator makes it."""
    return build_recorded(make_owner(), Offer("r", DECLARED, "p", pinned, record))


def deployment(
    *, remembers: str | None = RECORD.fingerprint, replicas: int = 1, approved: bool = False
) -> dict[str, Any]:
    marks = {names.ANNOTATION_DECLARED: DECLARED, names.ANNOTATION_RECORDED: remembers}
    if approved:
        marks[names.ANNOTATION_APPROVED] = "true"
    found = {name: value for name, value in marks.items() if value is not None}
    return make_deployment(TARGET.revision, replicas=replicas, served=True, marks=found)


def serving(*, spec: dict[str, Any] | None = None, **more: Any) -> Snapshot:
    pods = more.pop("pods", (trusted_pod(),))
    deployments = more.pop("deployments", (deployment(),))
    return make_snapshot(
        spec=spec or TRUST,
        entry=TARGET.revision,
        deployments=deployments,
        pods=pods,
        endpoints={TARGET.revision: 1},
        **more,
    )


def unrecorded(answer: RecordAnswer | None = None, **more: Any) -> Snapshot:
    return serving(deployments=(deployment(remembers=None),), answer=answer, **more)


def status(snapshot: Snapshot) -> dict[str, Any]:
    return compute_status(snapshot, plan_rollout(rollout_state(snapshot), NOW), now=NOW).value


def condition(snapshot: Snapshot, kind: str = "FingerprintVerified") -> tuple[str, str, str]:
    found = next(c for c in status(snapshot)["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def replicas(snapshot: Snapshot) -> int:
    return plan_rollout(rollout_state(snapshot), NOW).replicas[TARGET.revision]


def offered(snapshot: Snapshot) -> Offer:
    (offer,) = snapshot.trust.offers
    return offer


def test_pods_get_the_record_as_an_optional_volume_and_no_record_of_their_own() -> None:
    pod = TARGET.template["spec"]
    volume = next(v for v in pod["volumes"] if v["name"] == names.VOLUME_RECORDED)
    assert volume["configMap"] == {"name": NAME, "optional": True}
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == names.VOLUME_RECORDED]
    assert (mount["mountPath"], mount["readOnly"]) == (constants.RECORDED_DIR, True)
    document = ServingSpec.model_validate_json(TARGET.config_data[constants.SERVING_FILE])
    assert (document.release.policy, document.release.record_path, document.release.fingerprint) == (
        "TrustFirst",
        None,
        None,
    )


def test_what_fetches_compares_with_the_recorded_release_too() -> None:
    model = {"uri": "hf://owner/name", "revision": "a" * 40}
    pod = make_target(**TRUST, model=model).template["spec"]
    (fetcher,) = pod["initContainers"]
    assert constants.RECORDED_DIR in {mount["mountPath"] for mount in fetcher["volumeMounts"]}


def test_a_named_record_decides_whatever_the_policy() -> None:
    assert make_target(release={"policy": "Enforce"}).declared is None
    assert names.VOLUME_RECORDED not in str(make_target(release={"policy": "Enforce"}).template)


def test_first_pod_is_alone_until_it_is_recorded() -> None:
    assert replicas(make_snapshot(spec=TRUST)) == 1
    assert replicas(unrecorded(RecordAnswer(202, '{"message": "searching golden cases"}'))) == 1
    assert replicas(serving(config_maps=(kept(),))) == 2


def test_verified_pods_record_is_kept_immutable_owned_and_labelled_with_what_was_declared() -> None:
    offer = offered(unrecorded(RecordAnswer(200, RECORD.to_json())))
    assert offer.record == RECORD
    config_map = build_recorded(make_owner(), offer)
    assert (config_map["metadata"]["name"], config_map["immutable"]) == (NAME, True)
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert config_map["metadata"]["labels"][names.LABEL_DECLARED] == DECLARED.removeprefix("sha256:")[:32]
    assert constants.LABEL_REVISION not in config_map["metadata"]["labels"]
    assert ReleaseRecord.from_json(config_map["data"][constants.RECORD_FILE]) == RECORD


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (RecordAnswer(None), "it does not answer"),
        (RecordAnswer(202, '{"message": "searching golden cases"}'), "searching golden cases"),
        (RecordAnswer(503, '{"message": "draining"}'), "answered 503: draining"),
    ],
)
def test_a_record_that_is_not_there_yet_is_waited_for(answer: RecordAnswer, sentence: str) -> None:
    snapshot = unrecorded(answer)
    assert (offered(snapshot).record, offered(snapshot).problem) == (None, None)
    state, reason, message = condition(snapshot)
    assert (state, reason) == ("Unknown", "Verifying")
    assert sentence in message
    assert condition(snapshot, "Degraded")[0] == "False"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (RecordAnswer(409, '{"message": "no prompt has a clear answer"}'), "no prompt has a clear answer"),
        (RecordAnswer(404, "404: no such path"), "older server"),
        (RecordAnswer(200, "nonsense"), "is not JSON"),
        (RecordAnswer(200, "x" * (RECORD_BYTES_MAX + 1)), "a ConfigMap leaves room for"),
        (RecordAnswer(200, OTHER.to_json()), "but its verdict is about"),
        (RecordAnswer(200, WEAK.to_json()), "proves too little: it has no golden case"),
    ],
)
def test_a_record_that_cannot_be_kept_is_a_problem_and_serving_goes_on(answer: RecordAnswer, sentence: str) -> None:
    snapshot = unrecorded(answer)
    assert offered(snapshot).record is None
    state, reason, message = condition(snapshot)
    assert (state, reason) == ("False", "RecordMissing")
    assert sentence in message
    assert condition(snapshot, "Degraded")[:2] == ("True", "RecordMissing")
    assert condition(snapshot, "Ready")[0] == "True"
    assert replicas(snapshot) == 1


def test_only_a_pod_that_passed_is_asked() -> None:
    loading = make_pod(TARGET.revision, running=True)
    assert unrecorded(RecordAnswer(200, RECORD.to_json()), pods=(loading,)).trust.offers == ()
    leaving = replace(trusted_pod(), terminating=True)
    assert unrecorded(RecordAnswer(200, RECORD.to_json()), pods=(leaving,)).trust.offers == ()


def test_recorded_and_not_approved_is_unknown_and_names_the_command() -> None:
    snapshot = serving(config_maps=(kept(),))
    state, reason, message = condition(snapshot)
    assert (state, reason) == ("Unknown", "RecordedNotApproved")
    assert NAME in message
    assert "pratique release approve svc -n ns" in message
    found = status(snapshot)
    assert found["recorded"] == {"recordRef": NAME, "fingerprint": RECORD.fingerprint, "approved": False}
    assert (found["serving"]["fingerprint"], found["serving"]["approved"]) == (RECORD.fingerprint, False)
    assert condition(snapshot, "Degraded")[0] == "False"


def test_approving_the_recorded_release_restarts_no_pod() -> None:
    approved = {**TRUST, "release": {"policy": "TrustFirst", "fingerprint": RECORD.fingerprint}}
    snapshot = serving(spec=approved, config_maps=(kept(),))
    assert snapshot.target is not None
    assert snapshot.target.revision == TARGET.revision
    assert condition(snapshot)[:2] == ("True", "Verified")
    assert status(snapshot)["recorded"]["approved"]
    assert status(snapshot)["serving"]["approved"]


def test_fingerprint_that_was_declared_from_the_start_is_handed_to_the_pods_and_stays() -> None:
    release = {"policy": "TrustFirst", "fingerprint": RECORD.fingerprint}
    first = make_target(release=release)
    assert first.fingerprint == RECORD.fingerprint
    recorded = observe_recorded({("ConfigMap", NAME): kept(pinned=RECORD.fingerprint)})
    assert make_target(recorded=recorded, release=release).revision == first.revision
    assert make_target(recorded=recorded, release={"policy": "TrustFirst"}).revision == first.revision


def test_another_fingerprint_than_the_recorded_one_is_refused_before_a_pod_starts() -> None:
    recorded = observe_recorded({("ConfigMap", NAME): kept()})
    release = {"policy": "TrustFirst", "fingerprint": OTHER.fingerprint}
    with pytest.raises(RecordError, match=rf"{OTHER.fingerprint}, but {RECORD.fingerprint} was recorded") as raised:
        make_target(recorded=recorded, release=release)
    # What was recorded stays visible, so that it can still be approved.
    blocked = make_snapshot(spec={"release": release}, blocked=raised.value)
    assert status(blocked)["recorded"] == {"recordRef": NAME, "fingerprint": RECORD.fingerprint, "approved": False}
    assert condition(blocked)[:2] == ("False", "RecordMissing")


def test_config_map_under_another_name_is_not_taken_for_the_one_that_pods_read() -> None:
    elsewhere = kept()
    elsewhere["metadata"]["name"] = "svc-recorded-elsewhere"
    assert observe_recorded({("ConfigMap", "svc-recorded-elsewhere"): elsewhere}) == {}


def test_pod_cannot_bring_a_review_of_itself() -> None:
    reviewed = make_record(review=Review(reference=OTHER.fingerprint, candidate=RECORD.fingerprint))
    assert offered(unrecorded(RecordAnswer(200, reviewed.to_json()))).record == RECORD


def test_approval_outlives_the_loss_of_the_config_map() -> None:
    approved = {**TRUST, "release": {"policy": "TrustFirst", "fingerprint": RECORD.fingerprint}}
    assert status(serving(spec=approved, answer=RecordAnswer(None)))["recorded"]["approved"]


def test_changed_pods_keep_the_record_and_a_changed_declaration_is_recorded_anew() -> None:
    labelled = make_target(**TRUST, template={"metadata": {"labels": {"a": "b"}}})
    assert labelled.revision != TARGET.revision
    assert labelled.declared == TARGET.declared
    other = make_target(**TRUST, quantization={"dtype": "BF16"})
    assert other.record_ref != TARGET.record_ref


def test_lost_config_map_is_remembered_and_the_same_release_is_kept_again() -> None:
    """Absent is not false: a deleted ConfigMap must not make the next wrong pod the trusted one."""
    snapshot = serving(answer=RecordAnswer(200, RECORD.to_json()), deployments=(deployment(replicas=2),))
    assert offered(snapshot).record == RECORD
    assert find_trust_problem(snapshot) is None
    assert replicas(snapshot) == 2
    assert snapshot.target is not None
    assert snapshot.target.revision == TARGET.revision


def test_after_a_loss_with_no_pod_left_the_next_one_is_handed_the_remembered_fingerprint() -> None:
    """Scaled to 0 and its ConfigMap deleted: nobody could give the record again, and the next pod must not become a first one."""
    children = {("Deployment", "d"): deployment()}
    lost = observe_recorded(children)
    assert pin_lost(lost, alive=frozenset({DECLARED})) == lost
    pinned = pin_lost(lost, alive=frozenset())
    target = make_target(recorded=pinned, **TRUST)
    document = ServingSpec.model_validate_json(target.config_data[constants.SERVING_FILE])
    assert document.release.fingerprint == RECORD.fingerprint
    assert target.revision != TARGET.revision
    # Once its pod is there, it stays the target: with the old revision beside it, and after its record was kept again.
    marks = {**target.annotations, names.ANNOTATION_DECLARED: DECLARED, names.ANNOTATION_RECORDED: RECORD.fingerprint}
    children["Deployment", "a"] = make_deployment(target.revision, marks=marks)
    assert make_target(recorded=observe_recorded(children), **TRUST).revision == target.revision
    children["ConfigMap", NAME] = kept(pinned=observe_recorded(children)[DECLARED].pinned)
    assert make_target(recorded=observe_recorded(children), **TRUST).revision == target.revision


def test_after_a_loss_another_release_is_not_recorded() -> None:
    snapshot = serving(
        answer=RecordAnswer(200, OTHER.to_json()),
        deployments=(deployment(replicas=1),),
        pods=(trusted_pod(fingerprint=OTHER.fingerprint),),
    )
    assert offered(snapshot).record is None
    state, reason, message = condition(snapshot)
    assert (state, reason) == ("False", "RecordMissing")
    assert "delete the pod" in message
    assert replicas(snapshot) == 1


def test_after_a_loss_no_pod_is_added_and_the_status_says_so() -> None:
    snapshot = serving(answer=RecordAnswer(None), deployments=(deployment(replicas=1),))
    assert replicas(snapshot) == 1
    assert "is gone; no pod is added" in condition(snapshot)[2]


@pytest.mark.parametrize(("text", "sentence"), [("{}", "cannot be used"), (OTHER.to_json(), "was recorded; delete it")])
def test_config_map_that_was_exchanged_is_not_believed(text: str, sentence: str) -> None:
    exchanged = kept()
    exchanged["data"] = {constants.RECORD_FILE: text}
    snapshot = serving(config_maps=(exchanged,))
    assert condition(snapshot)[:2] == ("False", "RecordMissing")
    assert sentence in condition(snapshot)[2]
    assert replicas(snapshot) == 1


def test_pod_that_trusted_itself_beside_the_record_is_found() -> None:
    """Its node did not know the ConfigMap yet when it started."""
    snapshot = serving(config_maps=(kept(),), pods=(trusted_pod(), trusted_pod("q", OTHER.fingerprint)))
    state, reason, message = condition(snapshot)
    assert (state, reason) == ("False", "RecordMissing")
    assert "pod q serves release" in message


def test_serving_revision_that_is_not_wanted_any_more_is_recorded_and_held_too() -> None:
    newer = {**TRUST, "quantization": {"dtype": "BF16"}}
    snapshot = serving(
        spec=newer, deployments=(deployment(remembers=None),), answer=RecordAnswer(200, RECORD.to_json())
    )
    assert offered(snapshot).declared == DECLARED
    assert replicas(snapshot) == 1


def test_records_go_with_the_last_revision_that_was_declared_so() -> None:
    children = {
        ("Deployment", "d"): deployment(),
        ("ConfigMap", NAME): kept(),
        ("ConfigMap", "x"): {"metadata": {"name": "x"}},
    }
    gone = {"revisions": (), "wanted": None, "named": None}
    assert [c["metadata"]["name"] for c in stale_config_maps(children, **gone)] == [NAME]
    assert stale_config_maps(children, **{**gone, "revisions": (TARGET.revision,)}) == []
    assert stale_config_maps(children, **{**gone, "wanted": DECLARED}) == []
    assert stale_config_maps(children, **{**gone, "named": NAME}) == []


def test_events_tell_a_new_record_a_changed_declaration_and_the_approval_once() -> None:
    def after(fingerprint: str, name: str = "a", *, approved: bool = False) -> dict[str, Any]:
        recorded = {"recordRef": name, "fingerprint": fingerprint, "approved": approved}
        return {"recorded": recorded, "rollout": {"target": "t"}}

    (first,) = compute_events({}, after("f"))
    assert (first.type, first.reason) == ("Normal", "RecordedNotApproved")
    assert compute_events(after("f"), after("f")) == ()
    (anew,) = compute_events(after("f"), after("g", "b"))
    assert "what is declared changed: before it was f" in anew.message
    (approved,) = compute_events(after("f"), after("f", approved=True))
    assert (approved.reason, "is approved" in approved.message) == ("Verified", True)


def test_recorded_config_map_is_a_child_kind_that_is_watched() -> None:
    """Its deletion by hand has to start a pass at once."""
    assert kinds.CONFIG_MAP in kinds.WATCHED
    assert kept()["metadata"]["labels"][constants.LABEL_SERVICE] == "svc"
