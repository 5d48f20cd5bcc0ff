"""TrustFirst in the pod, and the record a pod offers: made once by itself, matched by every later one, never approved by itself."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_contract.canonical import digest_bytes
from pratique_contract.record import ReleaseRecord
from pratique_server.artifacts.files import LoadedFile
from pratique_server.engine.protocol import EngineIdentity
from pratique_server.life import verification
from pratique_server.life.verification import Verification
from pratique_server.text import Tokenizer
from tests.support.releases import make_digest, make_record
from tests.unit.server.life.pods import LivingEngine, Pod, pod
from tests.unit.server.scripted import events_of, eventually


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_imported(tiny_model_dir: Path) -> None:
    Tokenizer.load(tiny_model_dir)


class OtherWeights(LivingEngine):
    """One byte of the weights differs; what it answers is the same."""

    async def identity(self) -> EngineIdentity:
        own = await super().identity()
        files = [LoadedFile(path="model.safetensors", size=1, sha256=make_digest("flipped"))]
        values = {name: getattr(own, name) for name in own.__struct_fields__}
        return EngineIdentity(**{**values, "model_files": files})


async def _record_of(it: Pod) -> ReleaseRecord:
    status, body = await it.get("record")
    assert status == 200, body
    return ReleaseRecord.from_json(body)


_RECORDS: dict[Path, ReleaseRecord] = {}


async def _verdict_on_the_next(it: Pod) -> Verdict:
    """What the gate says of the engine that comes after the one that was lost."""
    await eventually(lambda: it.process.holder.current().result != "Pass")
    await eventually(lambda: it.process.holder.current().result != "Pending")
    return it.process.holder.current()


async def _first_record(model: Path) -> ReleaseRecord:
    """What a first pod records, once for all tests."""
    if model not in _RECORDS:
        async with pod(model) as it:
            await it.until("readyz", 200)
            _RECORDS[model] = await _record_of(it)
    return _RECORDS[model]


async def test_the_first_pod_records_itself_and_says_that_nobody_approved_it(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir) as it:
        assert await it.get("record") == (
            503,
            json.dumps({"message": "Nothing is loaded yet: ask again when the pod has a verdict"}),
        )
        await it.until("readyz", 200)
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"], verdict["approved"]) == ("Pass", "RecordedNotApproved", False)
        assert [check["name"] for check in verdict["checks"]] == [
            "record",
            "engine",
            "answer",
            "own-record",
            "company",
            "blocks",
        ]
        record = await _record_of(it)
        assert record.fingerprint == verdict["fingerprint"] == verdict["expected"]
        assert (await it.get("readyz"))[1].startswith("RecordedNotApproved: ")


async def test_a_pod_that_changes_its_mind_records_nothing(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir, engine=LivingEngine(events_of("ok"), lies_after=1)) as it:
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "OutputMismatch")
        assert "two different answers" in verdict["message"]
        assert (await it.get("record"))[0] == 409


async def test_a_later_pod_must_match_the_recorded_release(tiny_model_dir: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "record.json"
    recorded.write_text((await _first_record(tiny_model_dir)).to_json())
    async with pod(tiny_model_dir, recorded=recorded) as it:
        await it.until("readyz", 200)
        verdict = await it.verdict()
        assert (verdict["reason"], verdict["approved"]) == ("RecordedNotApproved", False)
        assert "recorded by the first pod" in verdict["checks"][0]["message"]
    async with pod(tiny_model_dir, recorded=recorded, engine=OtherWeights(events_of("ok"))) as it:
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"], verdict["part"]) == ("Fail", "ModelMismatch", "model")
        assert "model.files[model.safetensors].sha256" in verdict["message"]
        assert it.engine.requests == []


def _bring(recorded: Path, text: str) -> None:
    """As the kubelet does it: all at once. A pod that looks every few milliseconds would meet a file that is being written."""
    partial = recorded.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(recorded)


async def test_a_pod_that_recorded_itself_is_held_against_the_record_that_was_kept(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Two first pods at once: one record is kept, and the other pod may have loaded something else."""
    kept = (await _first_record(tiny_model_dir)).to_json()
    recorded = tmp_path / "record.json"
    async with pod(tiny_model_dir, recorded=recorded) as it:
        await it.until("readyz", 200)
        _bring(recorded, kept)
        await asyncio.sleep(0.2)
        assert (await it.get("readyz"))[0] == 200
    recorded.unlink()
    async with pod(tiny_model_dir, recorded=recorded, engine=OtherWeights(events_of("ok"))) as it:
        await it.until("readyz", 200)
        _bring(recorded, kept)
        await it.until("readyz", 503)
        verdict = await it.verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", "ModelMismatch")


async def test_a_fault_while_it_waits_for_the_record_that_is_kept_does_not_end_the_wait(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a pod that nobody approved would never be held against the record that somebody keeps."""
    kept, recorded = (await _first_record(tiny_model_dir)).to_json(), tmp_path / "record.json"
    find, looks = verification.find_record, []

    def fail_once(*arguments: Any) -> Any:
        looks.append(1)
        if len(looks) == 2:
            raise OSError("input/output error")
        return find(*arguments)

    monkeypatch.setattr(verification, "find_record", fail_once)
    monkeypatch.setattr(verification, "AGAIN_SECONDS", 0.01)
    async with pod(tiny_model_dir, recorded=recorded, engine=OtherWeights(events_of("ok"))) as it:
        await it.until("readyz", 200)
        await eventually(lambda: len(looks) > 2)
        _bring(recorded, kept)
        await it.until("readyz", 503)


async def test_a_pod_too_busy_to_be_compared_serves_on_until_it_can_be(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saturation never takes a pod out: only an answer that differs does."""
    kept, recorded = (await _first_record(tiny_model_dir)).to_json(), tmp_path / "record.json"
    prove, busy = Verification._prove, True
    told: list[Reason] = []

    async def sometimes_busy(self: Verification, *arguments: Any, serving: bool = False) -> Verdict:
        if serving and busy:
            told.append((Reason.PROBE_TIMEOUT, Reason.ENGINE_UNREACHABLE)[len(told) % 2])
            return Verdict(result=VerdictResult.FAIL, reason=told[-1], message="no time")
        return await prove(self, *arguments, serving=serving)

    monkeypatch.setattr(Verification, "_prove", sometimes_busy)
    async with pod(tiny_model_dir, recorded=recorded, engine=OtherWeights(events_of("ok"))) as it:
        await it.until("readyz", 200)
        _bring(recorded, kept)
        await eventually(lambda: len(told) >= 2)
        assert (await it.get("readyz"))[0] == 200
        busy = False
        await it.until("readyz", 503)
        assert (await it.verdict())["reason"] == "ModelMismatch"


async def test_a_record_that_appears_broken_takes_the_pod_out(tiny_model_dir: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "record.json"
    async with pod(tiny_model_dir, recorded=recorded) as it:
        await it.until("readyz", 200)
        recorded.write_text("{")
        await it.until("readyz", 503)
        assert (await it.verdict())["reason"] == "GoldenMissing"


async def test_a_new_engine_must_match_what_this_pod_recorded_before(tiny_model_dir: Path) -> None:
    """Files may have changed while it ran: the new epoch is no first pod."""
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        before = await _record_of(it)
        it.engine.__class__ = OtherWeights
        it.engine.dead.set()
        await eventually(lambda: it.process.holder.current().reason == "ModelMismatch")
        assert (await it.verdict())["expected"] == before.manifest.digests["model"]
        assert (await it.get("record"))[0] == 409


async def test_a_pod_that_was_given_its_record_looks_no_more_at_what_becomes_of_it(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Whoever may write ConfigMaps could otherwise take every pod out at once; the operator tells an exchanged one."""
    recorded = tmp_path / "record.json"
    recorded.write_text((await _first_record(tiny_model_dir)).to_json())
    async with pod(tiny_model_dir, recorded=recorded) as it:
        await it.until("readyz", 200)
        recorded.unlink()
        await asyncio.sleep(0.1)
        _bring(recorded, make_record().to_json())
        await asyncio.sleep(0.2)
        assert (await it.get("readyz"))[0] == 200


async def test_a_new_engine_must_match_the_record_that_was_there_although_it_has_gone(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """The ConfigMap is an optional volume: deleted, its file goes from a running pod, which was then the first pod once more."""
    recorded = tmp_path / "record.json"
    recorded.write_text((await _first_record(tiny_model_dir)).to_json())
    async with pod(tiny_model_dir, recorded=recorded) as it:
        await it.until("readyz", 200)
        recorded.unlink()
        it.engine.__class__ = OtherWeights
        it.engine.dead.set()
        assert (await _verdict_on_the_next(it)).reason == "ModelMismatch"


async def test_a_new_engine_is_not_approved_by_a_record_that_came_in_the_place_of_the_approved_one(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """A revision's ConfigMap is immutable, and can still be deleted and made again while its pods run."""
    given = tmp_path / "record.json"
    given.write_text((await _first_record(tiny_model_dir)).to_json())
    async with pod(tiny_model_dir, engine=OtherWeights(events_of("ok"))) as it:
        await it.until("readyz", 200)
        other = (await _record_of(it)).to_json()
    async with pod(tiny_model_dir, release={"record_path": str(given)}) as it:
        await it.until("readyz", 200)
        _bring(given, other)
        it.engine.__class__ = OtherWeights
        it.engine.dead.set()
        verdict = await _verdict_on_the_next(it)
        assert (verdict.reason, "exchanged while the pod ran" in verdict.message) == ("GoldenMissing", True)


async def test_a_new_engine_goes_through_the_whole_gate_again(tiny_model_dir: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "record.json"
    recorded.write_text((await _first_record(tiny_model_dir)).to_json())
    async with pod(tiny_model_dir, recorded=recorded) as it:
        await it.until("readyz", 200)
        first = await it.verdict()
        it.engine.lies_after = it.engine.asked_by_gate
        it.engine.dead.set()
        await eventually(lambda: it.process.holder.current().reason == "OutputMismatch")
        second = await it.verdict()
        assert [check["name"] for check in second["checks"]] == [check["name"] for check in first["checks"]]


async def test_an_approved_pod_offers_the_record_it_was_given(tiny_model_dir: Path, tmp_path: Path) -> None:
    given = tmp_path / "record.json"
    given.write_text((await _first_record(tiny_model_dir)).to_json())
    async with pod(tiny_model_dir, release={"record_path": str(given)}) as it:
        await it.until("readyz", 200)
        assert (await it.verdict())["reason"] == "Verified"
        assert (await it.get("record"))[1] == given.read_text()


async def test_a_refused_pod_makes_its_record_when_asked(tiny_model_dir: Path) -> None:
    """What stands between a refused candidate and its approval is a record; the pod that loaded it can make one."""
    async with pod(tiny_model_dir, release={"policy": "Enforce"}) as it:
        assert (await it.verdict())["reason"] == "GoldenMissing"
        assert (await it.get("record"))[0] == 409
        status, body = await it.ask_record()
        assert (status, body["message"]) == (202, "The record is being made: ask again with GET")
        await it.until("record", 200)
        assert (await _record_of(it)).fingerprint == (await it.verdict())["fingerprint"]


async def test_making_a_record_gives_way_to_users_and_still_ends(tiny_model_dir: Path) -> None:
    release = asyncio.Event()
    slow: list[Any] = [*events_of("ab")[:1], release, *events_of("ab")[1:]]
    async with pod(tiny_model_dir, script=slow) as it:
        await it.until("readyz", 200)
        asked = it.engine.asked_by_gate
        user = asyncio.create_task(it.chat())
        await eventually(lambda: it.process._live.users == 1)
        assert (await it.ask_record())[0] == 202
        await asyncio.sleep(0.1)
        assert it.engine.asked_by_gate == asked
        status, body = await it.get(_asked(b""))
        assert (status, json.loads(body)["message"][:25]) == (202, "The record is being made:")
        release.set()
        assert (await user).status_code == 200
        assert (await _until_made(it, b""))[0] == 200


def _asked(sent: bytes) -> str:
    return f"record?of={digest_bytes(sent)}"


async def _until_made(it: Pod, sent: bytes) -> tuple[int, str]:
    async with asyncio.timeout(10):
        while (answer := await it.get(_asked(sent)))[0] == 202:
            await asyncio.sleep(0.01)
    return answer


async def test_nobody_who_can_ask_a_pod_for_a_record_changes_the_one_it_has_proved(tiny_model_dir: Path) -> None:
    """The operator keeps what GET says under TrustFirst; POST is open to the whole cluster, and may carry cases of one's own."""
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        proved = await _record_of(it)
        thinner = proved.golden.model_copy(update={"cases": proved.golden.cases[:-1]})
        for sent in (b"{", proved.model_copy(update={"golden": thinner}).to_json().encode(), b""):
            assert (await it.ask_record(sent))[0] == 202
            assert (await it.ask_record(sent))[0] in (200, 202)
            assert await _record_of(it) == proved
            status, made = await _until_made(it, sent)
            assert await _record_of(it) == proved
            assert (status, "is not JSON" in made) == ((409, True) if sent == b"{" else (200, False))


async def test_one_record_is_made_at_a_time(tiny_model_dir: Path) -> None:
    release = asyncio.Event()
    slow: list[Any] = [*events_of("ab")[:1], release, *events_of("ab")[1:]]
    async with pod(tiny_model_dir, script=slow) as it:
        await it.until("readyz", 200)
        user = asyncio.create_task(it.chat())
        await eventually(lambda: it.process._live.users == 1)
        assert [(await it.ask_record(sent))[0] for sent in (b"", b"", b"{")] == [202, 202, 503]
        release.set()
        await user


async def test_a_record_to_extend_that_is_none_is_refused(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        assert (await it.ask_record(b"x" * 1_100_000))[0] == 413
        assert (await it.ask_record(b"{"))[0] == 202
        status, said = await _until_made(it, b"{")
        assert (status, "The release record is not JSON" in said) == (409, True)


async def test_another_releases_record_is_not_extended(tiny_model_dir: Path) -> None:
    async with pod(tiny_model_dir) as it:
        await it.until("readyz", 200)
        sent = make_record().to_json().encode()
        assert (await it.ask_record(sent))[0] == 202
        status, said = await _until_made(it, sent)
        assert status == 409
        assert "Another release is loaded than the recorded one: model." in json.loads(said)["message"]


@pytest.mark.parametrize(("policy", "status"), [("Unready", 503), ("Report", 200)])
async def test_an_engine_that_begins_to_lie_is_found_while_idle(policy: str, status: int, tiny_model_dir: Path) -> None:
    """A K/V corruption or a broken accelerator that shows only after hours (kserve#6259: healthy after it broke)."""
    lying = LivingEngine(events_of("ok"))
    reverify = {"interval_seconds": 0.05, "failures": 2, "on_failure": policy}
    async with pod(tiny_model_dir, engine=lying, release={"policy": "TrustFirst", "reverify": reverify}) as it:
        await it.until("readyz", 200)
        await eventually(lambda: it.process.holder.current().reverification is not None)
        assert it.process.holder.current().passed
        lying.lies_after = lying.asked_by_gate
        await eventually(lambda: "re-verifications in a row failed" in it.process.holder.current().message)
        verdict = await it.verdict()
        assert (await it.get("readyz"))[0] == status
        assert verdict["reverification"]["reason"] == "OutputMismatch"
        assert verdict["reverification"]["failures"] >= 2
        assert "output token 0 is" in verdict["message"]
        assert 'pratique_reverifications_total{result="fail"}' in (await it.get("metrics"))[1]
