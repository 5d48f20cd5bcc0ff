"""What an engine refuses before anything is reserved."""

from typing import Any

import pytest

from pratique_server.engine.admission import Capacity, check_queue, check_request
from pratique_server.engine.protocol import (
    EngineOverloadedError,
    RequestInvalidError,
    RequestTooLargeError,
    SamplingRules,
)
from tests.unit.server.engine.makers import make_request

CAPACITY = Capacity(vocab_size=100, tokens_max=20, queued_max=2, queued_tokens_max=50)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_ids": []},
        {"prompt_ids": [3, 100]},
        {"prompt_ids": [-1]},
        {"max_new_tokens": 0},
        {"min_tokens": 9},
        {"min_tokens": -1},
        *(
            {"sampling": SamplingRules(**rule)}
            for rule in (
                {"logit_bias": {100: 1.0}},
                {"logit_bias": {3: float("nan")}},
                {"logit_bias": {3: 1e308}},
                {"temperature": -0.1},
                {"temperature": float("nan")},
                {"top_p": 1.5},
                {"min_p": -1.0},
                {"top_k": -1},
                {"repetition_penalty": 0.0},
                {"presence_penalty": float("inf")},
                {"logprobs": 101},
            )
        ),
    ],
)
def test_refuses_what_can_never_run(changes: dict[str, Any]) -> None:
    """vllm#6866, sglang#7670: an id outside the vocabulary reached the embedding and killed the engine for everyone."""
    with pytest.raises(RequestInvalidError):
        check_request(make_request(**changes), CAPACITY)


def test_refuses_a_request_longer_than_the_limit_and_takes_one_that_just_fits() -> None:
    check_request(make_request(prompt_ids=[1] * 12, max_new_tokens=8), CAPACITY)
    with pytest.raises(RequestTooLargeError, match="exceed the limit of 20 tokens"):
        check_request(make_request(prompt_ids=[1] * 13, max_new_tokens=8), CAPACITY)


@pytest.mark.req("R16")
@pytest.mark.parametrize(("waiting", "tokens"), [(2, 4), (1, 47)])
def test_a_full_queue_refuses_clients_but_not_the_gate(waiting: int, tokens: int) -> None:
    with pytest.raises(EngineOverloadedError):
        check_queue(make_request(), CAPACITY, waiting=waiting, waiting_tokens=tokens, free_seats=0)
    check_queue(make_request(reserved=True), CAPACITY, waiting=waiting, waiting_tokens=tokens, free_seats=0)


def test_an_empty_queue_takes_a_request_of_any_length() -> None:
    """A bound on queued tokens smaller than one legal prompt must not make that prompt impossible for ever."""
    capacity = Capacity(vocab_size=100, tokens_max=100, queued_max=2, queued_tokens_max=5)
    check_queue(make_request(prompt_ids=[1] * 9), capacity, waiting=0, waiting_tokens=0, free_seats=0)


def test_a_burst_that_free_seats_will_take_does_not_count_as_queued() -> None:
    """Before the first step everything waits; eight requests on an idle engine with room for four and a queue of four fit."""
    for waiting, seats in ((3, 4), (5, 4), (1, 0)):
        check_queue(make_request(), CAPACITY, waiting=waiting, waiting_tokens=40, free_seats=seats)
    with pytest.raises(EngineOverloadedError):
        check_queue(make_request(), CAPACITY, waiting=6, waiting_tokens=40, free_seats=4)
