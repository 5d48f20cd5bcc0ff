"""Answers are asked for side by side only where the engine has shown that they do not influence each other."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pratique_contract.manifest import RuntimeSection
from pratique_server.engine.protocol import ExecutionRequest, FinishReason, StepEvent, TokenLogprobs
from pratique_server.review.capture import REQUESTS_AT_ONCE, collect_answers
from tests.support.releases import make_manifest


class CountingEngine:
    """Answers one token and counts how many requests are live at once."""

    def __init__(self) -> None:
        self.live = self.most = 0

    async def start(self, request: ExecutionRequest) -> AsyncIterator[StepEvent]:
        self.live += 1
        self.most = max(self.most, self.live)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.live -= 1
        logprobs = [TokenLogprobs(chosen=-0.1, top=[(5, -0.1), (6, -2.0)])]
        yield StepEvent(request_id=request.request_id, token_ids=[5], logprobs=logprobs, finish=FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("self_test", "most"),
    [
        ({"result": "passed"}, REQUESTS_AT_ONCE),
        ({"result": "failed", "differs": ["in a batch of 5: ids …"]}, 1),
        ({"result": "notNeeded"}, 1),
    ],
)
async def test_asks_side_by_side_only_after_a_passed_self_test(self_test: dict[str, Any], most: int) -> None:
    engine = CountingEngine()
    release: Any = SimpleNamespace(
        engine=engine,
        manifest=make_manifest(runtime=RuntimeSection(facts={"selfTest": self_test})),
        renderer=SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids, **_: "x" * len(ids))),
    )
    prompts = {f"prompt-{number}": [1, 2, number] for number in range(20)}
    answers = await collect_answers(release, prompts, max_tokens=1)
    assert [answer.name for answer in answers] == list(prompts)
    assert engine.most == most
