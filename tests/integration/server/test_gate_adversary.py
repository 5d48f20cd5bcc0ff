"""An honest adversary, and what the gate cannot know: answers from a lookup table, lies about bytes, and an engine that is right at
first. Real sockets, the server's own wiring, the real engine in this process; what docs/release.md says about them is shown here.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor

from pratique_contract.constants import RECORD_API_PATH
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.engine.local import start_local_engine
from pratique_server.engine.protocol import (
    EngineIdentity,
    EngineStats,
    ExecutionRequest,
    FinishReason,
    StepEvent,
    TokenLogprobs,
)
from pratique_server.engine.torch_engine.kv_storage import SequenceKv
from pratique_server.life.loading import ServedEngine, StartEngine
from pratique_server.offline.loading import record_release
from pratique_server.offline.verification import verify_release
from tests.integration.server.running import (
    make_spec,
    served_in_this_process,
    serving,
    start_in_this_process,
    wait_until,
)
from tests.support import mutations
from tests.support.mutations import copy_of

_RECORDS: dict[Path, ReleaseRecord] = {}


@pytest.fixture
async def record(tiny_model_dir: Path) -> ReleaseRecord:
    if tiny_model_dir not in _RECORDS:
        _RECORDS[tiny_model_dir] = await record_release(make_spec(tiny_model_dir))
    return _RECORDS[tiny_model_dir]


def _spec(model: Path, record: ReleaseRecord, folder: Path, **release: Any) -> ServingSpec:
    path = folder / "record.json"
    path.write_text(record.to_json())
    return make_spec(model, release={"policy": "Enforce", "record_path": str(path), **release})


class LookupEngine:
    """Other weights, and the recorded answers for the recorded prompts. ``claims`` is what it says it has loaded."""

    def __init__(self, engine: Any, record: ReleaseRecord, claims: EngineIdentity | None) -> None:
        self._engine, self._claims = engine, claims
        self._table = {case.prompt_ids: case.outputs[0] for case in record.golden.cases}
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def identity(self) -> EngineIdentity:
        own: EngineIdentity = await self._engine.identity()
        return self._claims or own

    async def stats(self) -> EngineStats:
        """It would also lie about steps that it never made."""
        own: EngineStats = await self._engine.stats()
        return msgspec.structs.replace(own, steps=own.steps + self._steps)

    async def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        output = self._table.get(tuple(request.prompt_ids))
        if output is None:
            async for event in self._engine.start(request):
                yield event
            return
        for index, (token, logprob) in enumerate(zip(output.ids, output.logprobs, strict=True)):
            self._steps += 1
            yield StepEvent(
                request_id=request.request_id,
                token_ids=[token],
                logprobs=[TokenLogprobs(chosen=logprob)],
                finish=FinishReason(output.finish_reason) if index == len(output.ids) - 1 else None,
            )


def _lookup(record: ReleaseRecord, claims: EngineIdentity | None = None) -> StartEngine:
    async def start(spec: ServingSpec) -> ServedEngine:
        engine: Any = LookupEngine(await start_local_engine(spec), record, claims)
        return served_in_this_process(engine)

    return start


@pytest.mark.req("R127", "R128")
async def test_recorded_answers_from_a_lookup_table_do_not_hide_other_weights(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    other = copy_of(tiny_model_dir, tmp_path / "model", mutations.flip_weight_byte)
    with serving(_spec(other, record, tmp_path), start_engine=_lookup(record)) as (server, _):
        verdict = server.wait_verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", Reason.MODEL_MISMATCH)
        assert "model.files[model.safetensors].sha256" in verdict["message"]


async def test_a_pod_that_lies_about_its_bytes_is_believed_by_itself_and_refused_by_whoever_reads_them(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """The limit, said plainly in docs/release.md: hashes taken by the program that lies are the program's word."""
    engine = await start_local_engine(make_spec(tiny_model_dir))
    claims = await engine.identity()
    await engine.close()
    other = copy_of(tiny_model_dir, tmp_path / "model", mutations.flip_weight_byte)
    spec = _spec(other, record, tmp_path)
    with serving(spec, start_engine=_lookup(record, claims)) as (server, _):
        server.wait_ready()
    verdict = await verify_release(make_spec(other), record)
    assert (verdict.passed, verdict.reason, verdict.part) == (False, Reason.MODEL_MISMATCH, "model")
    assert verdict.evidence[0].observed != record.manifest.model.files[-1].sha256


CORRUPT_FROM = 200


def _corrupting(write: Callable[..., Any]) -> Callable[..., Any]:
    def corrupt(self: SequenceKv, layer: int, start: int, key: Tensor, value: Tensor) -> Any:
        keys, values = write(self, layer, start, key, value)
        if layer == 0:
            values[:, :, CORRUPT_FROM : start + key.shape[2]] = 1.0
        return keys, values

    return corrupt


def test_the_record_has_a_prompt_beyond_the_corrupted_position(record: ReleaseRecord) -> None:
    """Otherwise the tests below would say nothing."""
    lengths = sorted(len(case.prompt_ids) for case in record.golden.cases)
    assert lengths[-2] + 16 < CORRUPT_FROM < lengths[-1]


async def test_keys_and_values_that_are_wrong_after_many_tokens_only_are_found_at_the_start(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequenceKv, "write", _corrupting(SequenceKv.write))
    with serving(_spec(tiny_model_dir, record, tmp_path), start_engine=start_in_this_process) as (server, _):
        verdict = server.wait_verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", Reason.OUTPUT_MISMATCH)
        assert verdict["message"].startswith("Case long-")


async def test_keys_and_values_that_become_wrong_later_are_found_while_idle(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kserve#6259: healthy to its probes after the accelerator broke. Only the long prompt shows it, in every sixth round."""
    reverify = {"interval_seconds": 0.05, "failures": 2, "on_failure": "Unready"}
    spec = _spec(tiny_model_dir, record, tmp_path, reverify=reverify)
    with serving(spec, start_engine=start_in_this_process) as (server, process):
        server.wait_ready()
        wait_until(lambda: process.holder.current().reverification is not None, seconds=20)
        assert process.holder.current().passed
        monkeypatch.setattr(SequenceKv, "write", _corrupting(SequenceKv.write))
        wait_until(lambda: not process.holder.current().passed, seconds=40)
        verdict = server.verdict()
        assert verdict["reason"] == Reason.OUTPUT_MISMATCH
        assert verdict["message"].startswith("After it was ready, 2 re-verifications in a row failed: Case long-")
        assert server.probe("readyz")[0] == 503
        assert server.probe("livez")[0] == 200


async def test_a_pod_makes_the_record_that_the_command_line_makes(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Byte for byte, with the engine it serves with, and also when it was refused for want of a record."""
    with serving(make_spec(tiny_model_dir, release={"policy": "Enforce"}), start_engine=start_in_this_process) as (
        server,
        _,
    ):
        assert server.wait_verdict()["reason"] == Reason.GOLDEN_MISSING
        assert server.management.post(RECORD_API_PATH).status_code == 202
        wait_until(lambda: server.management.get(RECORD_API_PATH).status_code != 202, seconds=40)
        answer = server.management.get(RECORD_API_PATH)
        assert (answer.status_code, answer.text) == (200, record.to_json())
