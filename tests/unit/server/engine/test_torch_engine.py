"""The torch engine on the tiny model: the same numbers as transformers, whatever else runs, and nothing left behind.

Every engine here poisons freed K/V with not-a-number and checks its bookkeeping after each step.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from pratique_contract.serving import LimitsSpec
from pratique_server.engine.loader import load_model
from pratique_server.engine.protocol import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineOverloadedError,
    RequestInvalidError,
    RequestTooLargeError,
    SamplingRules,
)
from tests.support import models
from tests.support.reference import generate_with_transformers
from tests.unit.server.engine.makers import GREEDY, Outcome, make_engine, make_request, run, step

PROMPTS = {f"p{index}": [(17 * index + 7 * i * i + 3) % 571 for i in range(3 + 4 * index)] for index in range(6)}


def generate_with_library(folder: Path, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    return generate_with_transformers(load_model(folder).model, prompt, count)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("name", ["Torch", "Naive"])
def test_gives_the_ids_and_logprobs_of_transformers(architecture: str, name: str) -> None:
    folder = models.tiny_model(architecture=architecture)
    engine = make_engine(folder, name=name, max_batched_tokens=7)
    rules = SamplingRules(temperature=0.0, logprobs=3)
    outcomes = run(
        engine, *(make_request(key, prompt_ids=ids, max_new_tokens=12, sampling=rules) for key, ids in PROMPTS.items())
    )
    for key, prompt in PROMPTS.items():
        ids, logprobs = generate_with_library(folder, prompt, 12)
        reported = [item for event in outcomes[key].events for item in event.logprobs or []]
        assert outcomes[key].ids == ids
        assert [item.chosen for item in reported] == pytest.approx(logprobs, abs=1e-4)
        assert all(len(item.top) == 3 and item.top[0][1] == item.chosen for item in reported)


def test_a_sliding_window_is_kept_in_prefill_chunks_and_decode(tmp_path: Path) -> None:
    """A window shorter than the prompt, on an architecture that has one."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=571, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, sliding_window=5, initializer_range=0.2,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path)
    outcome = run(
        make_engine(tmp_path, max_batched_tokens=6), make_request(prompt_ids=PROMPTS["p5"], max_new_tokens=12)
    )["r"]
    assert outcome.ids == generate_with_library(tmp_path, PROMPTS["p5"], 12)[0]


@pytest.mark.req("R70")
@pytest.mark.parametrize("dtype", ["FP32", "BF16"])
def test_greedy_ids_and_logprobs_are_bitwise_the_same_in_any_company_and_chunking(
    tiny_model_dir: Path, dtype: str
) -> None:
    """Naive chunking flips greedy tokens in bf16; here neither chunking, nor batch, nor preemption moves one bit."""
    rules = SamplingRules(temperature=0.0, logprobs=1)
    requests = [make_request(key, prompt_ids=ids, max_new_tokens=12, sampling=rules) for key, ids in PROMPTS.items()]
    alone = {}
    engine = make_engine(tiny_model_dir, dtype=dtype)
    assert engine.identity().runtime_facts["selfTest"]["result"] == "passed"
    for request in requests:
        alone |= run(engine, request)
    variants: list[dict[str, Any]] = [
        {},
        {"max_batched_tokens": 1},
        {"max_batched_tokens": 33, "max_num_seqs": 2},
        {"max_num_seqs": 3, "max_batched_tokens": 9},
        {"blocks": 12, "block_size": 4, "max_batched_tokens": 11},
    ]
    for variant in variants:
        engine = make_engine(tiny_model_dir, dtype=dtype, **variant)
        together = run(engine, *requests)
        for key in PROMPTS:
            assert together[key].ids == alone[key].ids, variant
            assert [event.logprobs for event in together[key].events] == [e.logprobs for e in alone[key].events]
    assert engine.stats().preemptions > 0, "the last variant must have preempted, or it proves nothing"


def test_a_sequence_that_outgrows_a_key_tile_goes_on_unchanged(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1200, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    prompt = [(i * i + 3) % 97 for i in range(506)]
    outcome = run(make_engine(tmp_path), make_request(prompt_ids=prompt, max_new_tokens=16))["r"]
    assert outcome.ids == generate_with_library(tmp_path, prompt, 16)[0]


@pytest.mark.req("R38", "R51")
def test_several_requests_share_each_step(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    run(engine, *(make_request(f"r{index}", max_new_tokens=10) for index in range(8)))
    assert engine.stats().steps == 10


def test_a_seeded_stream_is_unmoved_by_batching_chunking_and_preemption(tiny_model_dir: Path) -> None:
    """HabanaAI vllm-fork#773, vllm PR#38624: seeded output that changes with load, tokens doubled after a preemption."""
    rules = SamplingRules(temperature=0.9, top_p=0.95, seed=42)
    requests = [make_request(key, prompt_ids=ids, max_new_tokens=16, sampling=rules) for key, ids in PROMPTS.items()]
    alone: dict[str, Outcome] = {}
    for request in requests:
        alone |= run(make_engine(tiny_model_dir), request)
    engine = make_engine(tiny_model_dir, blocks=12, block_size=4, max_batched_tokens=11)
    crowded = run(engine, *requests)
    assert engine.stats().preemptions > 0
    assert {key: outcome.ids for key, outcome in crowded.items()} == {key: o.ids for key, o in alone.items()}
    assert max(event.preemptions for outcome in crowded.values() for event in outcome.events) > 0


def test_different_seeds_differ_and_no_seed_differs_each_time(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    # Hot enough that two equal streams mean one seed: at 3.0 this model gave the same eight ids in one run of 25.
    rules = [SamplingRules(temperature=50.0, seed=seed) for seed in (1, 2, None, None)]
    outcomes = run(engine, *(make_request(f"r{i}", sampling=rule) for i, rule in enumerate(rules)))
    assert len({tuple(outcome.ids) for outcome in outcomes.values()}) == 4


@pytest.mark.req("R73")
def test_stops_at_a_stop_id_and_counts_it(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    free = run(engine, make_request(max_new_tokens=8))["r"].ids
    stop = free[3]
    first = free.index(stop)
    stopped = run(engine, make_request(max_new_tokens=8, stop_token_ids=[stop]))["r"]
    assert (stopped.ids, stopped.finish) == (free[: first + 1], "stop")
    held = run(engine, make_request(max_new_tokens=8, stop_token_ids=[stop], min_tokens=first + 2))["r"]
    assert held.ids[: first + 1] != stopped.ids
    assert len(held.ids) >= first + 2


@pytest.mark.req("R73", "R80")
def test_exactly_one_event_carries_the_finish_and_it_is_the_last(tiny_model_dir: Path) -> None:
    """vllm#27572: a last chunk without a finish reason; vllm#2266: two of them."""
    outcomes = run(make_engine(tiny_model_dir), *(make_request(f"r{n}", max_new_tokens=n) for n in (1, 2, 7)))
    for outcome in outcomes.values():
        assert [event.finish for event in outcome.events] == [None] * (len(outcome.events) - 1) + ["length"]


def test_times_are_on_the_first_event_and_in_order(tiny_model_dir: Path) -> None:
    events = run(make_engine(tiny_model_dir), make_request(max_new_tokens=2))["r"].events
    first, second = events
    assert first.enqueued_at is not None
    assert first.first_scheduled_at is not None
    assert first.emitted_at is not None
    assert second.emitted_at is not None
    assert first.enqueued_at <= first.first_scheduled_at <= first.emitted_at <= second.emitted_at
    assert (second.enqueued_at, second.first_scheduled_at) == (None, None)


@pytest.mark.req("R73", "R86")
@pytest.mark.parametrize("after_steps", [0, 1, 3])
def test_cancel_frees_the_blocks_at_once_and_nothing_follows(tiny_model_dir: Path, after_steps: int) -> None:
    """vllm#46283, sglang#36475: blocks held, or tokens made, after the client has gone. Waiting, in prefill, decoding."""
    engine = make_engine(tiny_model_dir, max_batched_tokens=8)
    outcomes = {"gone": Outcome(), "stays": Outcome()}
    engine.add_request(make_request("gone", prompt_ids=PROMPTS["p3"], max_new_tokens=30))
    engine.add_request(make_request("stays", max_new_tokens=10))
    for _ in range(after_steps):
        step(engine, outcomes)
    before = len(outcomes["gone"].events)
    assert engine.cancel("gone")
    engine.check_integrity()
    while engine.has_work():
        step(engine, outcomes)
    assert len(outcomes["gone"].events) == before
    assert outcomes["stays"].ids == run(engine, make_request("alone", max_new_tokens=10))["alone"].ids
    assert engine.stats().blocks_used == 0
    assert not engine.cancel("gone")


@pytest.mark.parametrize("name", ["Torch", "Naive"])
def test_a_deadline_ends_queued_and_running_requests_only(tiny_model_dir: Path, name: str) -> None:
    engine = make_engine(tiny_model_dir, name=name, max_num_seqs=1)
    now = [100.0]
    engine._clock = lambda: now[0]  # type: ignore[attr-defined]
    outcomes = {key: Outcome() for key in ("running", "queued", "patient")}
    engine.add_request(make_request("running", deadline=105.0, max_new_tokens=50))
    engine.add_request(make_request("queued", deadline=104.0))
    engine.add_request(make_request("patient", deadline=1e9, max_new_tokens=3))
    step(engine, outcomes)
    now[0] = 106.0
    while engine.has_work():
        step(engine, outcomes)
    assert isinstance(outcomes["running"].error, DeadlineExceededError)
    assert isinstance(outcomes["queued"].error, DeadlineExceededError)
    assert (len(outcomes["running"].ids), outcomes["queued"].ids) == (1, [])
    assert (len(outcomes["patient"].ids), outcomes["patient"].finish) == (3, "length")


@pytest.mark.req("R24")
@pytest.mark.parametrize("name", ["Torch", "Naive"])
def test_refusals_leave_the_live_requests_alone(tiny_model_dir: Path, name: str) -> None:
    """vllm#10583: a second request with a live id mixed with or killed the first."""
    engine = make_engine(tiny_model_dir, name=name, max_num_seqs=1, limits=LimitsSpec(max_queued=1), blocks=20)
    expected = run(engine, make_request("reference"))["reference"].ids
    outcomes = {"a": Outcome(), "b": Outcome()}
    engine.add_request(make_request("a"))
    step(engine, outcomes)
    with pytest.raises(DuplicateRequestError):
        engine.add_request(make_request("a", prompt_ids=[9]))
    with pytest.raises(RequestInvalidError):
        engine.add_request(make_request("oov", prompt_ids=[571]))
    with pytest.raises(RequestTooLargeError):
        engine.add_request(make_request("huge", max_new_tokens=510))
    engine.add_request(make_request("b"))
    with pytest.raises(EngineOverloadedError):
        engine.add_request(make_request("c"))
    while engine.has_work():
        step(engine, outcomes)
    assert outcomes["a"].ids == outcomes["b"].ids == expected


def test_a_request_larger_than_the_whole_cache_is_refused_at_once(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir, blocks=4, block_size=4)
    with pytest.raises(RequestTooLargeError, match="limit of 16 tokens"):
        engine.add_request(make_request(prompt_ids=[1] * 9, max_new_tokens=8))
    assert run(engine, make_request(prompt_ids=[1] * 8, max_new_tokens=8))["r"].finish == "length"


def test_logits_that_are_not_numbers_end_only_that_request(tiny_model_dir: Path) -> None:
    engine = make_engine(tiny_model_dir)
    expected = run(engine, make_request("good"))["good"].ids
    model = engine._runner._model  # type: ignore[attr-defined]
    model.get_input_embeddings().weight.data[570] = float("nan")
    outcomes = run(engine, make_request("bad", prompt_ids=[570]), make_request("good"))
    assert outcomes["bad"].ids == []
    assert "not finite" in str(outcomes["bad"].error)
    assert outcomes["good"].ids == expected


@pytest.mark.req("R47")
def test_reading_freed_keys_and_values_would_be_seen(tiny_model_dir: Path) -> None:
    """The poison works: storage freed behind the engine's back turns into a failure, not into plausible text."""
    engine = make_engine(tiny_model_dir)
    outcomes = {"r": Outcome()}
    engine.add_request(make_request(sampling=GREEDY))
    step(engine, outcomes)
    engine._storage["r"].poison()  # type: ignore[attr-defined]
    step(engine, outcomes)
    assert outcomes["r"].error is not None
