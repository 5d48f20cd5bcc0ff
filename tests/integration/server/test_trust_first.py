"""TrustFirst without a cluster: a real pod, asked as the operator asks it, and the ConfigMap it makes, read by the next pods."""

from pathlib import Path

import pytest

from pratique_contract import constants
from pratique_operator.desired.children import build_recorded
from pratique_operator.pods.facts import PodFacts
from pratique_operator.pods.verdicts import VerdictReader
from pratique_operator.pods.verdicts import read_direct as read_verdict_direct
from pratique_operator.release.records import read_direct
from pratique_operator.release.trust import Offer, choose_witness, judge_answer
from tests.integration.server.running import Running, make_spec, serving, start_in_this_process
from tests.support import mutations
from tests.unit.operator.worlds import make_owner

DECLARED = "sha256:" + "d" * 64


def ask(running: Running, monkeypatch: pytest.MonkeyPatch) -> tuple[PodFacts, Offer]:
    """The pod with its verdict, and what the operator makes of its record."""
    port = running.management.base_url.port
    monkeypatch.setattr(constants, "MANAGEMENT_PORT", port)
    facts = PodFacts(name="first", revision="r", address="127.0.0.1", ready=True, running=True, audited=True)
    reader = VerdictReader(read_verdict_direct(timeout_seconds=5.0), workers=1)
    pod = choose_witness(reader("ns", [facts]))
    reader.close()
    assert pod is not None
    answer = read_direct(timeout_seconds=5.0)("ns", pod)
    return pod, judge_answer(answer, revision="r", declared=DECLARED, pod=pod, pinned=None, memory=None)


def test_what_the_operator_keeps_of_the_first_pod_is_what_the_next_pods_must_match(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "recorded" / constants.RECORD_FILE
    with serving(make_spec(tiny_model_dir), start_engine=start_in_this_process, recorded_path=recorded) as (first, _):
        first.wait_ready()
        pod, offer = ask(first, monkeypatch)
    assert offer.record is not None
    assert pod.verdict is not None
    assert offer.record.fingerprint == pod.verdict.fingerprint
    recorded.parent.mkdir()
    recorded.write_text(build_recorded(make_owner(), offer)["data"][constants.RECORD_FILE])
    with serving(make_spec(tiny_model_dir), start_engine=start_in_this_process, recorded_path=recorded) as (second, _):
        second.wait_ready()
        # Whoever deletes the ConfigMap: any pod gives the same record again.
        assert ask(second, monkeypatch)[1].record == offer.record
    changed = mutations.copy_of(tiny_model_dir, tmp_path / "changed", mutations.flip_weight_byte)
    with serving(make_spec(changed), start_engine=start_in_this_process, recorded_path=recorded) as (third, _):
        verdict = third.wait_verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "ModelMismatch")
        assert third.probe("readyz")[0] == 503
        assert third.management.get(constants.RECORD_API_PATH).status_code == 409
