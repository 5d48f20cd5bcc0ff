"""TrustFirst and the review policy on a real API server: what is kept, what starts, what is held back."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pratique_cli.commands.release.approve import approve
from pratique_contract import Reason, ReleaseRecord, ServingSpec, Verdict, VerdictResult, constants
from pratique_contract.review import REQUIRED_TESTS, Review, ReviewedDifference, ReviewTest
from pratique_contract.signature import format_signature
from pratique_operator import kinds, names
from pratique_operator.release.trust import RecordAnswer
from tests.integration.operator.changes import eventually
from tests.integration.operator.conftest import kubeconfig
from tests.integration.operator.world import World
from tests.support.releases import make_manifest, make_record

pytestmark = pytest.mark.integration

TRUST = {"policy": "TrustFirst"}
RECORD = make_record()
OTHER = make_record(
    manifest=make_manifest(quantization=make_manifest().quantization.model_copy(update={"dtype": "BF16"}))
)


def passed(record: ReleaseRecord) -> Verdict:
    return Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="ok", fingerprint=record.fingerprint)


def offers(world: World, record: ReleaseRecord, who: str = "*") -> None:
    """Pods prove themselves to be this release and offer its record."""
    world.operator.verdicts[who] = passed(record)
    world.operator.records[who] = RecordAnswer(200, record.to_json())


def recorded(world: World) -> list[dict[str, Any]]:
    return [child for child in world.list(kinds.CONFIG_MAP) if names.LABEL_DECLARED in child["metadata"]["labels"]]


def pods(world: World) -> list[dict[str, Any]]:
    return [pod for pod in world.list(kinds.POD) if "deletionTimestamp" not in pod["metadata"]]


def test_first_pod_is_recorded_before_the_second_starts_and_approval_restarts_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.operator.verdicts["*"] = passed(RECORD)
    world.operator.records["*"] = RecordAnswer(202, '{"message": "searching golden cases"}')
    world.create(replicas=2, release=TRUST)
    eventually(lambda: "searching golden cases" in world.condition("FingerprintVerified").get("message", ""))
    assert len(pods(world)) == 1
    eventually(lambda: world.condition("Ready")["status"] == "True", what="the first pod serves meanwhile")
    offers(world, RECORD)
    world.wait_ready()
    first = {pod["metadata"]["uid"] for pod in pods(world)}
    assert len(first) == 2
    (config_map,) = recorded(world)
    assert ReleaseRecord.from_json(config_map["data"][constants.RECORD_FILE]) == RECORD
    assert config_map["immutable"]
    condition = world.wait_reason("RecordedNotApproved", "FingerprintVerified")
    assert (condition["status"], config_map["metadata"]["name"] in condition["message"]) == ("Unknown", True)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig()))
    approve("svc", namespace=world.namespace, context=None, fingerprint=RECORD.fingerprint, yes=False)
    assert world.wait_reason("Verified", "FingerprintVerified")["status"] == "True"
    world.wait_ready()
    world.create(replicas=2, release=TRUST)  # a manifest that does not name the fingerprint takes no approval back
    assert world.wait_reason("Verified", "FingerprintVerified")["status"] == "True"
    assert {pod["metadata"]["uid"] for pod in pods(world)} == first
    # Events follow the status they tell of.
    eventually(lambda: "Verified" in [event["reason"] for event in world.events()], what="the approval is told")
    reasons = [event["reason"] for event in world.events()]
    assert (reasons.count("RecordedNotApproved"), reasons.count("Verified")) == (1, 1)
    table = world.table(kinds.INFERENCE_SERVICE.path(world.namespace))
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert table["rows"][0]["cells"][columns.index("Approved")] is True


def test_deleted_record_comes_back_from_a_running_pod_and_never_from_another_release(world: World) -> None:
    """Absent is not false: whoever deletes the ConfigMap does not choose what is trusted next."""
    offers(world, RECORD)
    world.create(release=TRUST)
    world.wait_reason("RecordedNotApproved", "FingerprintVerified")
    eventually(
        lambda: names.ANNOTATION_RECORDED in deployment(world)["metadata"]["annotations"], what="it is remembered"
    )
    (config_map,) = recorded(world)
    offers(world, OTHER)
    delete(world, config_map)
    refused = world.wait_reason("RecordMissing", "FingerprintVerified")
    assert refused["status"] == "False"
    assert recorded(world) == []
    offers(world, RECORD)
    eventually(lambda: recorded(world), what="the same release is kept again")
    world.wait_reason("RecordedNotApproved", "FingerprintVerified")
    # With no pod left that could give it again, the next one is told what it must be.
    world.create(release=TRUST, replicas=0)
    eventually(lambda: pods(world) == [], what="no pod is left")
    delete(world, recorded(world)[0])
    world.create(release=TRUST, replicas=1)
    eventually(lambda: recorded(world), what="it is kept once more")
    world.wait_ready()
    document = world.children()[f"ConfigMap/svc-{world.target()}"]["data"][constants.SERVING_FILE]
    assert ServingSpec.model_validate_json(document).release.fingerprint == RECORD.fingerprint
    assert world.status()["recorded"] == {
        "recordRef": recorded(world)[0]["metadata"]["name"],
        "fingerprint": RECORD.fingerprint,
        "approved": False,
    }


def test_changed_declaration_is_recorded_anew_and_the_old_record_goes_with_its_revision(world: World) -> None:
    offers(world, RECORD)
    rollout = {"revisionHistoryLimit": 0}
    world.create(release=TRUST, rollout=rollout)
    world.wait_reason("RecordedNotApproved", "FingerprintVerified")
    (old,) = recorded(world)
    offers(world, OTHER)
    world.create(release=TRUST, rollout=rollout, quantization={"dtype": "BF16"})
    eventually(
        lambda: (
            [c["metadata"]["name"] for c in recorded(world)] not in ([], [old["metadata"]["name"]])
            and len(recorded(world)) == 1
        ),
        what="only the new record is left",
    )
    world.wait_ready()
    assert world.status()["recorded"]["fingerprint"] == OTHER.fingerprint


def deployment(world: World) -> dict[str, Any]:
    (found,) = world.list(kinds.DEPLOYMENT)
    return found


def delete(world: World, config_map: dict[str, Any]) -> None:
    metadata = config_map["metadata"]
    world.cluster.delete(kinds.CONFIG_MAP, world.namespace, metadata["name"], uid=metadata["uid"])


def config_map(world: World, name: str, **data: str) -> None:
    world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def release(world: World, name: str, record: ReleaseRecord, **more: Any) -> dict[str, Any]:
    config_map(world, name, **{constants.RECORD_FILE: record.to_json()})
    return {"fingerprint": record.fingerprint, "recordRef": {"name": name}, **more}


def test_block_starts_no_pod_of_an_unreviewed_candidate_and_the_review_lets_it_through(world: World) -> None:
    world.create(release=release(world, "old", RECORD))
    world.wait_ready()
    stable = world.target()
    world.create(replicas=2, release=release(world, "new", OTHER, reviewPolicy="Block"))
    held = world.wait_reason("ReviewRequired")
    assert "quantization differs and no review" in held["message"]
    eventually(lambda: len(pods(world)) == 2, what="the serving revision scales on")
    assert {pod["metadata"]["labels"][constants.LABEL_REVISION] for pod in pods(world)} == {stable}
    assert [d["metadata"]["labels"][constants.LABEL_REVISION] for d in world.list(kinds.DEPLOYMENT)] == [stable]
    status = world.status()
    assert status["review"]["reference"] == RECORD.fingerprint
    assert [u["part"] for u in status["review"]["uncovered"]] == ["quantization"]
    assert world.condition("Available")["status"] == "True"
    serving = {pod["metadata"]["uid"] for pod in pods(world)}
    world.cluster._call("DELETE", kinds.SERVICE.path(world.namespace, "svc"))
    eventually(lambda: world.entry() == stable, what="a deleted entry Service comes back although the rollout is held")
    world.apply(
        {**world.manifest(replicas=2, release={"recordRef": {"name": "gone"}, "fingerprint": RECORD.fingerprint})}
    )
    world.wait_reason("RecordMissing")
    world.cluster._call("DELETE", kinds.SERVICE.path(world.namespace, "svc"))
    eventually(lambda: world.entry() == stable, what="and although the spec is blocked")
    assert {pod["metadata"]["uid"] for pod in pods(world)} == serving
    review = Review(
        reference=RECORD.fingerprint,
        candidate=OTHER.fingerprint,
        differences=(ReviewedDifference(part="quantization", intentional="half the memory"),),
        tests=tuple(
            ReviewTest(kind=k, passed=True, message="ok", measurements={"klMean": 0.1}, limits={"klMeanMax": 0.3})
            for k in REQUIRED_TESTS["quantization"]
        ),
    )
    reviewed = make_record(manifest=OTHER.manifest, review=review)
    world.create(replicas=2, release=release(world, "reviewed", reviewed, reviewPolicy="Block"))
    world.wait_ready()
    assert world.entry() not in (stable, None)
    assert [world.condition("ReviewPassed")[field] for field in ("status", "reason")] == ["True", "ReviewPassed"]
    assert [event["reason"] for event in world.events()].count("ReviewRequired") == 1


def test_record_must_be_signed_by_the_named_key_and_a_changed_key_is_looked_at_again(world: World) -> None:
    def write(signer: Ed25519PrivateKey | None, key: Ed25519PrivateKey) -> None:
        text = RECORD.to_json()
        signature = {} if signer is None else {"record.json.sig": format_signature(signer.sign(text.encode()))}
        config_map(world, "signed", **{constants.RECORD_FILE: text}, **signature)
        config_map(
            world, "keys", pub=key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        )

    old, new = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    write(None, old)
    signature = {"configMapKeyRef": {"name": "keys", "key": "pub"}}
    spec = {"fingerprint": RECORD.fingerprint, "recordRef": {"name": "signed"}, "signature": signature}
    world.create(release=spec)
    assert "has no record.json.sig" in world.wait_reason("SignatureInvalid")["message"]
    assert world.list(kinds.DEPLOYMENT) == []
    write(old, old)
    world.wait_ready()
    serving = {pod["metadata"]["uid"] for pod in pods(world)}
    write(old, new)
    assert world.wait_reason("SignatureInvalid", "FingerprintVerified")["status"] == "False"
    assert world.condition("Available")["status"] == "True"
    write(new, new)
    world.wait_ready()
    assert {pod["metadata"]["uid"] for pod in pods(world)} == serving
