"""SmolLM2-135M-Instruct in the real engine, in this process: the same greedy text as transformers, alone and in company."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from pratique_server.engine.local import LocalEngine, start_local_engine
from pratique_server.engine.protocol import SamplingRules
from tests.integration.server.engine_client import collect
from tests.support.reference import generate_with_transformers
from tests.unit.server.engine.makers import make_request, make_spec

pytestmark = [pytest.mark.real_model, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

COUNT = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2_dir: Path) -> AsyncIterator[LocalEngine]:
    engine = await start_local_engine(make_spec(smollm2_dir, dtype="FP32"))
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def library_model(smollm2_dir: Path) -> Any:
    """The library's own model, loaded by the library."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32, local_files_only=True)
    return model.eval().requires_grad_(requires_grad=False)


def encode(folder: Path, *prompts: str) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]


@pytest.mark.req("R54", "R55")
async def test_greedy_text_and_logprobs_are_those_of_transformers(
    smollm2_dir: Path, engine: LocalEngine, library_model: Any
) -> None:
    prompts = encode(
        smollm2_dir,
        "<|im_start|>user\nWhat is two plus two?<|im_end|>\n<|im_start|>assistant\n",
        "The licence to enter port is called",
        "<|im_start|>user\nName three harbours in Europe, one a line.<|im_end|>\n<|im_start|>assistant\n",
    )
    rules = SamplingRules(temperature=0.0, logprobs=0)

    async def logprobs(name: str, ids: list[int]) -> list[tuple[int, float]]:
        request = make_request(name, prompt_ids=ids, max_new_tokens=COUNT, sampling=rules)
        return [
            (token_id, item.chosen)
            async for event in engine.start(request)
            for token_id, item in zip(event.token_ids, event.logprobs or [], strict=True)
        ]

    together = await asyncio.gather(*(logprobs(f"r{n}", ids) for n, ids in enumerate(prompts)))
    assert together == [await logprobs(f"alone{n}", ids) for n, ids in enumerate(prompts)]

    for ids, mine in zip(prompts, together, strict=True):
        expected, reference = await asyncio.to_thread(generate_with_transformers, library_model, ids, COUNT)
        assert [token_id for token_id, _ in mine] == expected
        assert [value for _, value in mine] == pytest.approx(reference, abs=1e-3)


async def test_a_prompt_longer_than_the_step_budget_gives_the_same_as_in_one_piece(
    smollm2_dir: Path, engine: LocalEngine, library_model: Any
) -> None:
    (ids,) = encode(smollm2_dir, "A pilot boards the ship at the mouth of the harbour. " * 43)
    assert len(ids) > 512
    chunked = await collect(engine, make_request(prompt_ids=ids, max_new_tokens=1))
    output = await asyncio.to_thread(library_model, torch.tensor([ids]), use_cache=False, logits_to_keep=1)
    assert chunked == [int(output.logits[0, -1].argmax())]
