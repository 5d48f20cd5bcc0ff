"""The gate's checks beside the stream: record, manifest, rendering, blocks, engine, and the verdict they make."""

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.golden import GoldenRecord
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import PART_REASONS, Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ReleaseSpec
from pratique_contract.verdict import Verdict, VerdictResult
from pratique_server.engine.protocol import EngineDeadError
from pratique_server.gate.client import ProbeClient
from pratique_server.gate.conclude import tell_verdict, write_termination_message
from pratique_server.gate.errors import BusyError, CheckFailedError
from pratique_server.gate.gate import own_address
from pratique_server.gate.holder import VerdictHolder
from pratique_server.gate.record_file import FoundRecord, find_record
from pratique_server.logs import JsonFormatter
from tests.support.gates import (
    CountingEngine,
    Script,
    ScriptedRenderer,
    ScriptedServer,
    ServedPort,
    make_gate,
    make_spec,
    no_sleep,
    serving,
    sse,
)
from tests.support.releases import make_case, make_golden, make_manifest, make_output, make_record

RECORD = make_record()
TRUST_FIRST = ReleaseSpec(policy="TrustFirst")
_PORT: list[ServedPort] = []


@pytest.fixture(scope="module", autouse=True)
def port() -> Iterator[None]:
    with serving(_answer(RECORD)) as served:
        _PORT.append(served)
        yield
        _PORT.clear()


def _answer(record: ReleaseRecord) -> ScriptedServer:
    fingerprint = record.fingerprint
    return ScriptedServer(pieces=sse(*Script(fingerprint).good()), fingerprint=fingerprint)


async def _verdict(record: ReleaseRecord | None = RECORD, **options: Any) -> Verdict:
    (served,) = _PORT
    served.app = _answer(RECORD)
    return await make_gate(served.url, record=record, **options).run()


CHANGED_PARTS: dict[str, dict[str, Any]] = {
    "model": {"revision": "2" * 40},
    "adapters": {"adapters": ()},
    "tokenizer": {"vocab_size": 639},
    "chatTemplate": {"length": 1},
    "specialTokens": {"eos_ids": (0,)},
    "quantization": {"dtype": "BF16"},
    "engine": {"version": "0.2.0"},
    "servingFlags": {"flags": {"maxModelLen": 256}},
}


def _with_changed_part(part: str) -> ReleaseManifest:
    base = RECORD.manifest
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in part)
    section = getattr(base, name)
    return base.model_copy(update={name: section.model_copy(update=CHANGED_PARTS[part])})


@pytest.mark.req("R127", "R128")
@pytest.mark.parametrize("part", CHANGED_PARTS)
async def test_each_wrong_part_has_its_own_reason(part: str) -> None:
    verdict = await _verdict(manifest=_with_changed_part(part))
    assert (verdict.result, verdict.reason, verdict.part) == (VerdictResult.FAIL, PART_REASONS[part], part)
    assert verdict.message.startswith(f"{part}.")
    assert verdict.evidence[0].subject.startswith(f"{part}.")
    assert (verdict.expected, verdict.observed) == (
        RECORD.manifest.digests[part],
        _with_changed_part(part).digests[part],
    )


async def test_the_earliest_wrong_part_decides_and_the_others_are_named() -> None:
    manifest = _with_changed_part("tokenizer").model_copy(update={"engine": _with_changed_part("engine").engine})
    verdict = await _verdict(manifest=manifest)
    assert verdict.reason is Reason.TOKENIZER_MISMATCH
    assert verdict.message.endswith("; engine also differs")
    assert {item.subject.split(".")[0] for item in verdict.evidence} == {"tokenizer", "engine"}


async def test_nothing_is_generated_when_a_part_is_wrong() -> None:
    (served,) = _PORT
    server = served.app = _answer(RECORD)
    await make_gate(served.url, record=RECORD, manifest=_with_changed_part("model")).run()
    assert server.requests == []


async def test_no_record_is_golden_missing() -> None:
    verdict = await _verdict(None)
    assert verdict.reason is Reason.GOLDEN_MISSING
    assert next(check.result for check in verdict.checks) is VerdictResult.FAIL


async def test_an_unreadable_record_is_golden_missing_under_either_policy() -> None:
    for policy in ("Enforce", "TrustFirst"):
        release = ReleaseSpec.model_validate({"policy": policy})
        verdict = await _verdict(None, problem="The release record is not JSON: …", release=release)
        assert (verdict.reason, verdict.message) == (Reason.GOLDEN_MISSING, "The release record is not JSON: …")


async def test_a_record_without_cases_is_golden_missing() -> None:
    verdict = await _verdict(make_record(golden=GoldenRecord(fixtures=RECORD.golden.fixtures)))
    assert verdict.reason is Reason.GOLDEN_MISSING


async def test_a_record_of_another_release_than_the_approved_one_is_record_missing() -> None:
    verdict = await _verdict(release=ReleaseSpec(fingerprint="sha256:" + "a" * 64))
    assert verdict.reason is Reason.RECORD_MISSING
    assert "pod has to be release aaaaaaaaaaaa" in verdict.message


async def test_the_approved_fingerprint_with_its_record_passes() -> None:
    assert (await _verdict(release=ReleaseSpec(fingerprint=RECORD.fingerprint))).passed


@pytest.mark.req("R32", "R33")
async def test_another_rendered_text_names_the_first_differing_character() -> None:
    verdict = await _verdict(renderer=ScriptedRenderer(text="Ahoi"))
    assert (verdict.reason, verdict.part) == (Reason.TEMPLATE_MISMATCH, "chatTemplate")
    assert verdict.message == (
        "fixture plain: rendered character 3 is 'i' (U+0069), 'y' (U+0079) was recorded: “Aho▸i” instead of “Aho▸y”"
    )


@pytest.mark.req("R32", "R33")
async def test_other_ids_of_the_same_text_name_the_first_differing_token() -> None:
    verdict = await _verdict(renderer=ScriptedRenderer(ids=[5, 12]))
    assert (verdict.reason, verdict.part) == (Reason.TOKENIZER_MISMATCH, "tokenizer")
    assert "token 1 of the same text is 12 'c', 6 'oy' was recorded, after 'Ah'" in verdict.message


async def test_a_template_that_refuses_a_fixture_is_a_template_mismatch() -> None:
    class Refusing(ScriptedRenderer):
        def render(self, messages: Any, tools: Any = None) -> Any:
            raise ValueError("system role not supported")

    verdict = await _verdict(renderer=Refusing())
    assert verdict.reason is Reason.TEMPLATE_MISMATCH
    assert "system role not supported" in verdict.message


TAMPERED: dict[str, dict[str, Any]] = {
    "an id": {"ids": (10, 12, 2)},
    "an id missing": {"ids": (10, 2), "logprobs": (-0.1, -0.3), "margins": (1.0, 1.0)},
    "the text": {"text": "abc"},
    "the finish reason": {"finish_reason": "length"},
    "a log-probability": {"logprobs": (-0.1, -0.21, -0.3)},
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_a_tampered_golden_output_is_an_output_mismatch(what: str) -> None:
    fields = TAMPERED[what]
    count = len(fields.get("ids", (10, 11, 2)))
    output = make_output(**fields, usage={"prompt_tokens": 2, "completion_tokens": count})
    record = make_record(golden=make_golden(make_case(outputs=(output,))))
    verdict = await _verdict(record)
    assert verdict.reason is Reason.OUTPUT_MISMATCH
    assert verdict.message.startswith("Case greeting: ")


async def test_blocks_that_do_not_come_back_are_leaked() -> None:
    """vllm#46283."""
    verdict = await _verdict(engine=CountingEngine(used_after=1), sleep=no_sleep)
    assert verdict.reason is Reason.BLOCKS_LEAKED
    assert "1 K/V blocks are still in use" in verdict.message


async def test_block_counts_that_contradict_each_other_are_leaked() -> None:
    verdict = await _verdict(engine=CountingEngine(total_after=9))
    assert verdict.reason is Reason.BLOCKS_LEAKED


async def test_an_engine_that_does_not_answer_is_unreachable() -> None:
    verdict = await _verdict(engine=CountingEngine(error=EngineDeadError("The engine process ended with signal 9")))
    assert verdict.reason is Reason.ENGINE_UNREACHABLE
    assert "signal 9" in verdict.message


async def test_an_error_of_the_gates_own_fails_the_pod_instead_of_passing_it() -> None:
    for error in (RuntimeError("surprise"), TimeoutError("surprise"), KeyError("surprise")):
        verdict = await _verdict(engine=CountingEngine(error=error))
        # Not the server's stream, and not the time budget, which is not used up: whoever looks for either would look in vain.
        assert (verdict.result, verdict.reason) == (VerdictResult.FAIL, Reason.GATE_FAILED)
        assert verdict.message.startswith("The gate itself broke in check engine: ")
        assert "surprise" in verdict.message


async def test_a_request_that_the_gate_cannot_send_is_not_the_servers_fault() -> None:
    (served,) = _PORT
    server = served.app = _answer(RECORD)
    client = ProbeClient(base_url=served.url, probe_token="token", model="tiny")
    try:
        with pytest.raises(CheckFailedError) as caught:
            await client.stream(messages=[], max_tokens=1, fingerprint=RECORD.fingerprint, request_id="two\nlines")
    finally:
        await client.close()
    assert caught.value.reason is Reason.GATE_FAILED
    assert server.requests == []


async def test_a_port_that_takes_no_connection_in_time_is_busy_and_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is the gate's own, and a host that is busy for five seconds says nothing about the release."""
    monkeypatch.setattr("pratique_server.gate.client.CONNECT_SECONDS_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as open_connections:
        address = listener.getsockname()
        for _ in range(2):  # the queue is full, and further ones are left without an answer
            waiting = open_connections.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        client = ProbeClient(base_url=f"http://127.0.0.1:{address[1]}", probe_token="token", model="tiny")
        try:
            with pytest.raises(BusyError) as caught:
                await client.stream(messages=[], max_tokens=1, fingerprint=RECORD.fingerprint, request_id="one")
        finally:
            await client.close()
    assert not caught.value.saturated


async def test_trust_first_passes_unapproved_when_the_pod_agrees_with_itself() -> None:
    verdict = await _verdict(None, release=TRUST_FIRST, approved=False)
    assert (verdict.passed, verdict.approved, verdict.reason) == (True, False, Reason.RECORDED_NOT_APPROVED)
    assert "no record to match" in verdict.message


async def test_trust_first_still_compares_a_declared_fingerprint() -> None:
    release = TRUST_FIRST.model_copy(update={"fingerprint": "sha256:" + "a" * 64})
    assert (await _verdict(None, release=release)).reason is Reason.RECORD_MISSING


async def test_trust_first_with_a_record_compares_like_enforce() -> None:
    verdict = await _verdict(manifest=_with_changed_part("engine"), release=TRUST_FIRST)
    assert verdict.reason is Reason.ENGINE_MISMATCH


LIES: dict[str, dict[str, Any]] = {
    "a part": {"manifest": _with_changed_part("engine")},
    "a rendering": {"renderer": ScriptedRenderer(text="Ahoi")},
    "ids of a rendering": {"renderer": ScriptedRenderer(ids=[5, 12])},
    "an output": {
        "record": make_record(golden=make_golden(make_case(outputs=(make_output(**TAMPERED["an id"]),)))),
    },
    "a log-probability": {
        "record": make_record(golden=make_golden(make_case(outputs=(make_output(**TAMPERED["a log-probability"]),)))),
    },
    "a finish reason": {
        "record": make_record(golden=make_golden(make_case(outputs=(make_output(**TAMPERED["the finish reason"]),)))),
    },
    "the fingerprint of its record": {"release": TRUST_FIRST.model_copy(update={"fingerprint": "sha256:" + "a" * 64})},
    "the fingerprint it was handed": {
        "record": None,
        "release": TRUST_FIRST.model_copy(update={"fingerprint": "sha256:" + "a" * 64}),
    },
}


@pytest.mark.parametrize("what", LIES)
async def test_nothing_is_called_approved_where_a_first_pod_was_recorded(what: str) -> None:
    """What a pod is held against under TrustFirst is recorded; whether a person approved it is not the pod's to say."""
    scene = {"record": RECORD, "release": TRUST_FIRST, **LIES[what]}
    verdict = await _verdict(scene.pop("record"), approved=False, **scene)
    assert verdict.result is VerdictResult.FAIL
    assert "approve" not in verdict.message


async def test_the_verdict_survives_json() -> None:
    verdict = await _verdict(manifest=_with_changed_part("model"))
    assert Verdict.from_json_value(json.loads(json.dumps(verdict.to_json_value()))) == verdict


async def test_a_verdict_of_a_newer_pod_is_read_without_what_is_not_known() -> None:
    """An operator must understand the pods of the next version; a field too many is no reason to know nothing about a pod."""
    verdict = await _verdict()
    value = {**verdict.to_json_value(), "addedLater": {"x": 1}}
    value["checks"][0]["alsoLater"] = True
    assert Verdict.from_json_value(value) == verdict


async def test_a_probes_line_is_one_line_whatever_a_library_said() -> None:
    class Refusing(ScriptedRenderer):
        def render(self, messages: Any, tools: Any = None) -> Any:
            raise ValueError("first line\n\n  second line")

    line = (await _verdict(renderer=Refusing())).one_line()
    assert line.endswith("first line / second line")


async def test_the_verdict_is_one_json_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    verdict = await _verdict(manifest=_with_changed_part("model"))
    with caplog.at_level(logging.INFO):
        tell_verdict(verdict)
    (entry,) = caplog.records
    line = JsonFormatter().format(entry)
    assert "\n" not in line
    value = json.loads(line)
    assert (value["level"], value["message"]) == ("error", f"Reached verdict {verdict.one_line()}")
    assert Verdict.from_json_value(value["verdict"]) == verdict


async def test_the_termination_message_is_written_only_where_a_kubelet_made_the_file(tmp_path: Path) -> None:
    failed = await _verdict(manifest=_with_changed_part("model"))
    passed = await _verdict()
    absent, present = tmp_path / "absent", tmp_path / "present"
    present.write_text("something longer than what is written now, to see it truncated" * 20)
    assert not write_termination_message(failed, absent)
    assert not absent.exists()
    assert write_termination_message(failed, present)
    assert present.read_text() == f"{failed.one_line()}\n"
    assert write_termination_message(passed, present)
    assert present.read_text() == ""


def test_a_record_file_is_read_or_its_fault_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    release = ReleaseSpec(record_path=str(path))
    assert find_record(ReleaseSpec()) == FoundRecord()
    assert find_record(release).problem == f"The release record {path} cannot be read: No such file or directory"
    path.write_text("{")
    assert str(find_record(release).problem).startswith("The release record is not JSON")
    path.write_text(RECORD.to_json())
    assert find_record(release) == FoundRecord(record=RECORD)


def test_a_recorded_release_counts_under_trust_first_only_and_is_never_approved(tmp_path: Path) -> None:
    declared, recorded = tmp_path / "record.json", tmp_path / "recorded" / "record.json"
    assert find_record(TRUST_FIRST, recorded) == FoundRecord(approved=False)
    recorded.parent.mkdir()
    recorded.write_text(RECORD.to_json())
    assert find_record(TRUST_FIRST, recorded) == FoundRecord(record=RECORD, approved=False)
    assert find_record(ReleaseSpec(), recorded) == FoundRecord()
    declared.write_text(RECORD.to_json())
    release = TRUST_FIRST.model_copy(update={"record_path": str(declared)})
    assert find_record(release, recorded) == FoundRecord(record=RECORD, approved=True)


def test_the_holder_says_loading_until_told_otherwise() -> None:
    holder = VerdictHolder(policy="Enforce")
    assert (holder.current().result, holder.current().reason) == (VerdictResult.PENDING, Reason.LOADING)
    holder.set_pending(Reason.VERIFYING, "Running the checks")
    assert holder.current().one_line() == "Verifying: Running the checks"
    assert not holder.current().passed


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("fd00::7", "http://[fd00::7]:8000"),
    ],
)
def test_the_pod_reaches_its_own_port(host: str, address: str) -> None:
    assert own_address(make_spec(host=host)) == address


def test_no_manifest_field_is_lost_between_parts() -> None:
    assert set(CHANGED_PARTS) == set(make_manifest().digests)
