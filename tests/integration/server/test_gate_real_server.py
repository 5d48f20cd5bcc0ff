"""The gate in front of the real server: the recorded release gets ready; each wrong artefact never does, and says why.

Real sockets, real model, the server's own wiring. Where the engine process is not the point, the engine runs in this process.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.constants import FINGERPRINT_HEADER
from pratique_contract.golden import GoldenRecord
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.api.app import make_app
from pratique_server.offline.loading import record_release
from tests.integration.server.running import make_spec, serving, start_in_this_process
from tests.support import mutations
from tests.support.broken_streams import BreakStreams, Events
from tests.support.mutations import copy_of

QUESTION: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 4}
_RECORDS: dict[Path, ReleaseRecord] = {}


@pytest.fixture
async def record(tiny_model_dir: Path) -> ReleaseRecord:
    """What ``pratique release record`` makes of the tiny model, once."""
    if tiny_model_dir not in _RECORDS:
        _RECORDS[tiny_model_dir] = await record_release(make_spec(tiny_model_dir))
    return _RECORDS[tiny_model_dir]


def _spec(model: Path, record: ReleaseRecord | None, folder: Path, **changes: Any) -> ServingSpec:
    release: dict[str, Any] = {"policy": "Enforce"}
    if record is not None:
        path = folder / "record.json"
        path.write_text(record.to_json())
        release |= {"record_path": str(path), "fingerprint": record.fingerprint}
    return make_spec(model, **{"release": release, **changes})


def _require_refused(spec: ServingSpec, reason: Reason, **options: Any) -> dict[str, Any]:
    """Serve, wait for the verdict, and see that nobody is answered."""
    with serving(spec, start_engine=start_in_this_process, **options) as (server, _):
        verdict = server.wait_verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", reason), verdict["message"]
        assert server.probe("livez")[0] == 200
        for probe in ("readyz", "startupz"):
            assert server.probe(probe) == (503, f"{reason}: {verdict['message']}")
        answer = server.post("/v1/chat/completions", QUESTION)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert server.probe("readyz")[0] == 503
        return verdict


@pytest.mark.req("R126", "R127")
async def test_the_recorded_release_gets_ready_and_its_fingerprint_is_in_every_answer(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    with serving(_spec(tiny_model_dir, record, tmp_path), start_engine=start_in_this_process) as (server, _):
        server.wait_ready()
        verdict = server.verdict()
        assert (verdict["result"], verdict["approved"]) == ("Pass", True)
        assert [check["name"] for check in verdict["checks"]][-1] == "blocks"
        async with server.openai() as client:
            raw = await client.chat.completions.with_raw_response.create(**QUESTION)
            assert raw.headers[FINGERPRINT_HEADER] == record.fingerprint
            assert raw.parse().system_fingerprint == record.fingerprint
            stream = await client.chat.completions.create(stream=True, **QUESTION)
            assert {chunk.system_fingerprint async for chunk in stream} == {record.fingerprint}


async def test_a_record_is_the_same_bytes_every_time(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    again = await record_release(make_spec(copy_of(tiny_model_dir, tmp_path / "elsewhere")))
    assert again.to_json() == record.to_json()
    assert {case.outputs[0].finish_reason for case in record.golden.cases} == {"stop", "length"}


@pytest.mark.req("R127", "R128")
@pytest.mark.parametrize("fault", mutations.FAULTS)
async def test_a_wrong_artefact_never_gets_ready(
    fault: str, record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    mutation, reason = mutations.FAULTS[fault]
    folder = copy_of(tiny_model_dir, tmp_path / "model", mutation)
    verdict = _require_refused(_spec(folder, record, tmp_path), reason)
    assert verdict["part"] is not None
    assert verdict["evidence"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quantization": {"dtype": "BF16"}}, Reason.QUANTIZATION_MISMATCH),
        ({"engine": {"max_model_len": 256}}, Reason.FLAGS_MISMATCH),
        ({"engine": {"max_num_seqs": 4}}, Reason.FLAGS_MISMATCH),
        ({"engine": {"image_digest": "sha256:" + "a" * 64}}, Reason.ENGINE_MISMATCH),
        ({"chat_template": "{{ messages[0]['content'] }}"}, Reason.TEMPLATE_MISMATCH),
    ],
)
async def test_another_declaration_than_the_recorded_one_never_gets_ready(
    change: dict[str, Any], reason: Reason, record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    _require_refused(_spec(tiny_model_dir, record, tmp_path, **change), reason)


async def test_an_altered_golden_output_never_gets_ready(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    value = record.to_json_value()
    output = value["golden"]["cases"][-1]["outputs"][0]
    output["ids"][0] = 300 if output["ids"][0] != 300 else 301
    verdict = _require_refused(
        _spec(tiny_model_dir, ReleaseRecord.from_json_value(value), tmp_path), Reason.OUTPUT_MISMATCH
    )
    assert "output token 0 is" in verdict["message"]


async def test_an_altered_fixture_never_gets_ready(record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path) -> None:
    value = record.to_json_value()
    value["golden"]["fixtures"][0]["ids"][0] += 1
    _require_refused(_spec(tiny_model_dir, ReleaseRecord.from_json_value(value), tmp_path), Reason.TOKENIZER_MISMATCH)


async def test_no_golden_record_never_gets_ready(record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path) -> None:
    empty = record.model_copy(update={"golden": GoldenRecord()})
    _require_refused(_spec(tiny_model_dir, None, tmp_path), Reason.GOLDEN_MISSING)
    _require_refused(_spec(tiny_model_dir, empty, tmp_path), Reason.GOLDEN_MISSING)


async def test_the_record_of_another_release_never_gets_ready(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    spec = _spec(tiny_model_dir, record, tmp_path)
    release = spec.release.model_copy(update={"fingerprint": "sha256:" + "a" * 64})
    _require_refused(spec.model_copy(update={"release": release}), Reason.RECORD_MISSING)


def _finish_before_content(events: Events) -> Events:
    """Every event is right and the text is complete; the finish comes one event early."""
    finish = next(index for index, event in enumerate(events) if b'"finish_reason":"' in event)
    events[finish - 1], events[finish] = events[finish], events[finish - 1]
    return events


def _finish_with_content(events: Events) -> Events:
    """vllm#35705: the last text and the finish reason in one event."""
    finish = next(index for index, event in enumerate(events) if b'"finish_reason":"' in event)
    last, end = (json.loads(event.removeprefix(b"data: ")) for event in events[finish - 1 : finish + 1])
    last["choices"][0]["finish_reason"] = end["choices"][0]["finish_reason"]
    merged = b"data: " + json.dumps(last).encode() + b"\n\n"
    return [*events[: finish - 1], merged, *events[finish + 1 :]]


def _no_done(events: Events) -> Events:
    return [event for event in events if b"[DONE]" not in event]


@pytest.fixture(params=[_finish_before_content, _finish_with_content, _no_done])
def broken_streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pratique_server.serve.make_app", lambda state: BreakStreams(make_app(state), request.param))


@pytest.mark.req("R126")
@pytest.mark.usefixtures("broken_streams")
async def test_the_right_text_in_the_wrong_order_never_gets_ready(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    _require_refused(_spec(tiny_model_dir, record, tmp_path), Reason.STREAM_BROKEN)


async def test_the_wrapper_that_changes_nothing_gets_ready(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests above could fail for the wrapper's own reasons."""
    monkeypatch.setattr("pratique_server.serve.make_app", lambda state: BreakStreams(make_app(state), lambda e: e))
    with serving(_spec(tiny_model_dir, record, tmp_path), start_engine=start_in_this_process) as (server, _):
        server.wait_ready()


async def test_trust_first_serves_unapproved(tiny_model_dir: Path) -> None:
    with serving(make_spec(tiny_model_dir), start_engine=start_in_this_process) as (server, _):
        server.wait_ready()
        assert server.verdict()["approved"] is False
        assert "proved to be what the first pod recorded, by" in server.verdict()["message"]
