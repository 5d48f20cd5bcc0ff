"""The next token of each row: rules, randomness by (seed, position), log-probabilities of the unmodified model."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

from pratique_server.engine.protocol import SamplingRules
from pratique_server.engine.sequence import Sequence
from pratique_server.engine.torch_engine.sampler import sample, uniform
from tests.unit.server.engine.makers import make_request

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0])


def make_row(*, output: list[int] | None = None, prompt: list[int] | None = None, **changes: Any) -> Sequence:
    rules = {key: changes.pop(key) for key in list(changes) if key in SamplingRules.__struct_fields__}
    request = make_request(prompt_ids=prompt or [0], sampling=SamplingRules(**rules), **changes)
    sequence = Sequence(request=request, arrival=0, enqueued_at=0.0)
    sequence.token_ids += output or []
    return sequence


def choose(logits: torch.Tensor, sequence: Sequence) -> int | None:
    return sample(logits[None], [sequence])[0].token_id


def draws(count: int = 400, **rules: Any) -> Counter[int | None]:
    return Counter(choose(LOGITS, make_row(seed=seed, **rules)) for seed in range(count))


def test_temperature_zero_takes_the_most_likely() -> None:
    assert choose(LOGITS, make_row(temperature=0.0)) == 0


@pytest.mark.req("R66")
def test_draws_follow_the_distribution() -> None:
    counts = draws(2000)
    for token_id, probability in enumerate(torch.softmax(LOGITS, -1).tolist()):
        assert abs(counts[token_id] / 2000 - probability) < 0.035


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.1}, {0}),
        ({"top_p": 0.0}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.2}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"temperature": 1e-6}, {0}),
    ],
)
def test_each_rule_cuts_the_tail_it_should(rules: dict[str, Any], allowed: set[int]) -> None:
    assert set(draws(200, **rules)) == allowed


def test_uniform_numbers_depend_on_seed_and_position_and_spread_evenly() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(seed, position) for seed in range(40) for position in range(40)}) == 1600
    values = [uniform(7, position) for position in range(4000)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert abs(sum(values) / 4000 - 0.5) < 0.02


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_works(seed: int) -> None:
    """vllm PR#4529: a seed of 2^64 ended the engine."""
    assert choose(LOGITS, make_row(seed=seed)) in range(5)


def test_rows_do_not_influence_each_other() -> None:
    """vllm#54195: one request's stop ids masked its neighbours' tokens."""
    rows = [
        make_row(temperature=0.0),
        make_row(temperature=0.0, logit_bias={0: -100.0}),
        make_row(temperature=0.0, min_tokens=3, stop_token_ids=[0, 1]),
        make_row(seed=5),
    ]
    together = [item.token_id for item in sample(LOGITS.repeat(4, 1), rows)]
    assert together == [choose(LOGITS, row) for row in rows]
    assert together[:3] == [0, 1, 2]


def test_stop_ids_are_held_back_until_min_tokens() -> None:
    assert choose(LOGITS, make_row(temperature=0.0, min_tokens=2, stop_token_ids=[0], output=[3])) == 1
    assert choose(LOGITS, make_row(temperature=0.0, min_tokens=2, stop_token_ids=[0], output=[3, 3])) == 0


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"repetition_penalty": 4.0}, 1),
        ({"presence_penalty": 1.5}, 1),
        ({"frequency_penalty": 0.8}, 1),
        ({"presence_penalty": 0.5}, 0),
    ],
)
def test_penalties_lower_what_was_already_said(rules: dict[str, Any], expected: int) -> None:
    assert choose(LOGITS, make_row(temperature=0.0, prompt=[4], output=[0, 0], **rules)) == expected


def test_presence_and_frequency_ignore_the_prompt_and_repetition_does_not() -> None:
    assert choose(LOGITS, make_row(temperature=0.0, prompt=[0, 0], presence_penalty=2.0, frequency_penalty=2.0)) == 0
    assert choose(LOGITS, make_row(temperature=0.0, prompt=[0, 0], repetition_penalty=4.0)) == 1


@pytest.mark.req("R76")
def test_logprobs_are_of_the_model_before_any_rule() -> None:
    sequence = make_row(temperature=0.0, logit_bias={0: -100.0}, logprobs=2)
    sampled = sample(LOGITS[None], [sequence])[0]
    expected = torch.log_softmax(LOGITS, -1).tolist()
    assert sampled.token_id == 1
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(expected[1])
    assert [token_id for token_id, _ in sampled.logprobs.top] == [0, 1]
    assert all(math.isfinite(value) for _, value in sampled.logprobs.top)


def test_zero_alternatives_still_give_the_chosen_logprob() -> None:
    sampled = sample(LOGITS[None], [make_row(temperature=0.0, logprobs=0)])[0]
    assert sampled.logprobs is not None
    assert sampled.logprobs.top == []


def test_logits_that_are_not_numbers_choose_nothing_and_leave_the_neighbour_alone() -> None:
    bad = LOGITS.clone()
    bad[2] = float("nan")
    sampled = sample(torch.stack([bad, LOGITS]), [make_row(temperature=0.0), make_row(temperature=0.0)])
    assert [item.token_id for item in sampled] == [None, 0]


def test_the_given_logits_are_not_modified() -> None:
    logits = LOGITS[None].clone()
    sample(logits, [make_row(logit_bias={0: 5.0}, repetition_penalty=2.0)])
    assert torch.equal(logits[0], LOGITS)
