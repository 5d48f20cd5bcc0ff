"""Golden cases beside others: a server that is right alone and wrong in company is refused, and the neighbour is gone afterwards."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from pratique_contract.constants import FINGERPRINT_HEADER
from pratique_contract.manifest import RuntimeSection
from pratique_contract.reasons import Reason
from pratique_contract.verdict import Verdict
from pratique_server.gate.company import NEIGHBOUR_TOKENS_MAX
from tests.support.gates import Script, make_gate, serving, sse
from tests.support.releases import make_manifest, make_record

RECORD = make_record()
SCRIPT = Script(RECORD.fingerprint)
WRONG = [SCRIPT.role(), SCRIPT.content("a", (10, -0.1)), SCRIPT.content("c", (12, -0.2)), *SCRIPT.good()[3:]]


@dataclass
class CrowdedServer:
    """The neighbour's answer begins and never ends; golden requests are answered right when ``wrong_beside`` others are not there."""

    wrong_beside: int | None = None
    neighbour_status: int = 200
    live: int = 0
    dropped: int = 0
    neighbours: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = json.loads((await receive())["body"])
        self.live += 1
        try:
            if body["temperature"]:
                await self._keep_busy(body, receive, send)
            else:
                await self._answer(send)
        finally:
            self.live -= 1

    async def _keep_busy(self, body: dict[str, Any], receive: Any, send: Any) -> None:
        self.neighbours.append(body)
        await self._start(send, self.neighbour_status)
        await send(
            {"type": "http.response.body", "body": sse(SCRIPT.role())[0], "more_body": self.neighbour_status == 200}
        )
        while self.neighbour_status == 200 and (await receive())["type"] != "http.disconnect":
            pass
        self.dropped += 1

    async def _answer(self, send: Any) -> None:
        await asyncio.sleep(0.02)  # so that all that came at once are there
        is_wrong = self.wrong_beside is not None and self.live > self.wrong_beside
        await self._start(send, 200)
        await send({"type": "http.response.body", "body": b"".join(sse(*(WRONG if is_wrong else SCRIPT.good())))})

    async def _start(self, send: Any, status: int) -> None:
        headers = [(b"content-type", b"text/event-stream"), (FINGERPRINT_HEADER.encode(), RECORD.fingerprint.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})


async def _verdict(server: CrowdedServer, **options: Any) -> Verdict:
    with serving(server) as served:
        verdict = await make_gate(served.url, record=RECORD, **options).run()
        for _ in range(100):
            if not server.live:
                break
            await asyncio.sleep(0.01)
        return verdict


async def test_a_server_that_answers_alike_in_company_passes_and_the_neighbours_are_dropped() -> None:
    server = CrowdedServer()
    verdict = await _verdict(server)
    assert verdict.passed, verdict.message
    assert (len(server.neighbours), server.dropped, server.live) == (2, 2, 0)


async def test_an_answer_that_changes_beside_one_other_request_is_refused() -> None:
    """vllm#54195: one request's stop ids masked its neighbours."""
    verdict = await _verdict(CrowdedServer(wrong_beside=1))
    assert (verdict.result, verdict.reason) == ("Fail", Reason.OUTPUT_MISMATCH)
    assert verdict.message.startswith("Beside other requests: case greeting: output token 1")


async def test_an_answer_that_changes_only_beside_many_is_refused() -> None:
    verdict = await _verdict(CrowdedServer(wrong_beside=len(RECORD.golden.cases) + 1))
    assert verdict.reason is Reason.OUTPUT_MISMATCH


async def test_the_neighbours_have_the_opposite_rules_and_need_no_more_room_than_a_golden_case() -> None:
    server = CrowdedServer()
    await _verdict(server)
    neighbour, late = server.neighbours
    assert late == neighbour
    said = {token for case in RECORD.golden.cases for token in case.outputs[0].ids}
    assert set(neighbour["stop_token_ids"]) == said
    assert neighbour["logit_bias"] == {str(token): -100 for token in said}
    assert neighbour["temperature"] > 0
    assert (
        0
        < neighbour["max_tokens"]
        <= min(NEIGHBOUR_TOKENS_MAX, max(len(c.prompt_ids) + c.max_tokens for c in RECORD.golden.cases))
    )


async def test_a_neighbour_that_is_refused_fails_the_pod() -> None:
    verdict = await _verdict(CrowdedServer(neighbour_status=500))
    assert verdict.reason is Reason.STREAM_BROKEN
    assert "case neighbour" in verdict.message


async def test_an_engine_that_takes_one_request_at_a_time_has_no_company() -> None:
    facts = {"selfTest": {"result": "notNeeded"}}
    manifest = make_manifest(runtime=RuntimeSection(device_class="cpu", facts=facts))
    server = CrowdedServer(wrong_beside=1)
    verdict = await _verdict(server, manifest=manifest)
    assert verdict.passed, verdict.message
    assert not server.neighbours
