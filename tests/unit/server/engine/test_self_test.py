"""The start-up self-test: it passes on a sound engine and names the company that changed a number, whatever changed it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pratique_server.engine.loader import load_model
from pratique_server.engine.torch_engine import attention, kv_storage, model_runner
from pratique_server.engine.torch_engine.model_runner import ModelRunner, RunItem
from pratique_server.engine.torch_engine.self_test import COMPANIES, OUTPUT_TOKENS, SelfTest, run_self_test
from tests.unit.server.engine.makers import make_engine


@pytest.fixture
def runner(tiny_model_dir: Path) -> ModelRunner:
    runner = ModelRunner(load_model(tiny_model_dir).model)
    runner.use_packed_attention()
    return runner


def run(runner: Any) -> SelfTest:
    return run_self_test(runner, vocab_size=500)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("dtype", ["FP32", "BF16"])
def test_a_sound_engine_gives_the_same_bits_in_any_company(tiny_model_dir: Path, dtype: str, threads: int) -> None:
    """With two threads float32 products of 9 to 11 rows round otherwise than those of 8 or 12."""
    facts = make_engine(tiny_model_dir, dtype=dtype).identity().runtime_facts["selfTest"]
    seconds = facts.pop("seconds")
    assert 0 < seconds < 5
    assert facts == {
        "result": "passed", "runs": len(COMPANIES), "outputTokens": OUTPUT_TOKENS, "differs": [],
        "goldenRequests": "in any company",
    }  # fmt: skip


def test_rounding_that_depends_on_company_is_reported_and_nothing_is_refused(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without whole key tiles and row padding, float32 prefill and decode differ in the last bits."""
    monkeypatch.setattr(kv_storage, "padded_length", lambda tokens: tokens)
    monkeypatch.setattr(attention, "padded_length", lambda tokens: tokens)
    monkeypatch.setattr(attention, "QUERY_ROWS", 1)
    monkeypatch.setattr(model_runner, "padded_rows", lambda count, _: count)
    facts = make_engine(tiny_model_dir).identity().runtime_facts["selfTest"]
    assert (facts["result"], facts["goldenRequests"]) == ("failed", "alone")
    assert any("logits of token" in sentence for sentence in facts["differs"])


class Disturbed:
    """A runner whose probe hears its company: ``disturb`` changes the first row's logits, given the other items."""

    def __init__(self, runner: ModelRunner, disturb: Any) -> None:
        self._runner, self._disturb = runner, disturb

    @torch.inference_mode()
    def execute(self, items: list[RunItem]) -> Tensor:
        logits = self._runner.execute(items)
        self._disturb(logits[0], items)
        return logits


def test_a_neighbour_in_the_batch_that_leaks_is_named(runner: ModelRunner) -> None:
    def disturb(row: Tensor, items: list[RunItem]) -> None:
        if len(items) == 5:
            row += 1e-6

    assert [sentence.split(":")[0] for sentence in run(Disturbed(runner, disturb)).differs] == [
        "in a batch of 5", "in chunks beside prefills and decodes",
    ]  # fmt: skip


def test_a_neighbours_prefill_that_leaks_is_named(runner: ModelRunner) -> None:
    def disturb(row: Tensor, items: list[RunItem]) -> None:
        if any(len(item.token_ids) == 14 for item in items[1:]):
            row[0] += 100

    differs = run(Disturbed(runner, disturb)).differs
    assert [sentence.split(":")[0] for sentence in differs] == [
        "beside a prefill", "in chunks beside prefills and decodes",
    ]  # fmt: skip
    assert all("ids [0, 0" in sentence for sentence in differs)


def test_a_chunk_boundary_that_leaks_into_a_later_token_is_named(runner: ModelRunner) -> None:
    """The first token is right, the second is not: one position's logits alone would not have shown it."""

    def disturb(row: Tensor, items: list[RunItem]) -> None:
        probe = items[0]
        if probe.start == 13 and len(probe.token_ids) == 1:
            chunked.append(True)
        if chunked and probe.start == 14:
            row += torch.rand_like(row) * 1e-3
            chunked.clear()

    chunked: list[bool] = []
    differs = run(Disturbed(runner, disturb)).differs
    assert [sentence.split(":")[0] for sentence in differs] == [
        "token by token at the end", "beside a prefill",
    ]  # fmt: skip
    assert all("token 2" in sentence or "ids" in sentence for sentence in differs)
