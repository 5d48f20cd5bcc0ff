"""Refuse what an engine could never run or has no room to queue, before anything is reserved. Pure.

The API validates first and answers with the right HTTP error; this is the engine's own line of defence: no
request, however malformed, may reach the model and end the process that serves everyone else.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pratique_server.engine.protocol import (
    EngineOverloadedError,
    ExecutionRequest,
    RequestInvalidError,
    RequestTooLargeError,
    SamplingRules,
)

LOGPROBS_MAX: Final = 100
# Far beyond what changes any choice, far below what overflows when it is added to a logit.
LOGIT_CHANGE_MAX: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a loaded engine can take. ``tokens_max`` bounds prompt plus output of one request; ``queued_max``
    counts waiting requests and ``queued_tokens_max`` their prompt tokens (None: no bound of its own)."""

    vocab_size: int
    tokens_max: int
    queued_max: int
    queued_tokens_max: int | None = None


def check_request(request: ExecutionRequest, capacity: Capacity) -> None:
    """Raise ``RequestInvalidError`` or ``RequestTooLargeError`` with a sentence when the request can never run."""
    if not request.prompt_ids:
        raise RequestInvalidError("The prompt has no tokens.")
    _check_ids("The prompt", request.prompt_ids, capacity.vocab_size)
    _check_ids("logit_bias", request.sampling.logit_bias, capacity.vocab_size)
    if request.max_new_tokens < 1:
        raise RequestInvalidError(f"max_new_tokens is {request.max_new_tokens}; it must be at least 1.")
    if not 0 <= request.min_tokens <= request.max_new_tokens:
        raise RequestInvalidError(f"min_tokens is {request.min_tokens}; it must be between 0 and max_new_tokens.")
    _check_sampling(request.sampling)
    total = len(request.prompt_ids) + request.max_new_tokens
    if total > capacity.tokens_max:
        raise RequestTooLargeError(
            f"The prompt has {len(request.prompt_ids)} tokens and asks for {request.max_new_tokens} more; "
            f"together they exceed the limit of {capacity.tokens_max} tokens."
        )


def check_queue(
    request: ExecutionRequest, capacity: Capacity, *, waiting: int, waiting_tokens: int, free_seats: int
) -> None:
    """Raise ``EngineOverloadedError`` when the queue is full. The gate's reserved requests are never turned away.

    ``free_seats`` is how many more requests may run: those will leave the queue at the next step, so a burst that an
    idle engine can take at once is not refused.
    """
    if request.reserved or waiting < free_seats:
        return
    waiting -= free_seats
    if waiting >= capacity.queued_max:
        raise EngineOverloadedError(f"The queue is full: {waiting} requests are waiting.")
    limit = capacity.queued_tokens_max
    if limit is not None and waiting and waiting_tokens + len(request.prompt_ids) > limit:
        raise EngineOverloadedError(f"The queue is full: {waiting_tokens} prompt tokens are waiting.")


def _check_ids(where: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestInvalidError(f"{where} names token id {token_id}; the vocabulary has {vocab_size} ids.")


def _check_sampling(rules: SamplingRules) -> None:
    numbers = {
        "temperature": (rules.temperature, 0.0, math.inf),
        "top_p": (rules.top_p, 0.0, 1.0),
        "min_p": (rules.min_p, 0.0, 1.0),
        "top_k": (float(rules.top_k), 0.0, math.inf),
        "presence_penalty": (rules.presence_penalty, -LOGIT_CHANGE_MAX, LOGIT_CHANGE_MAX),
        "frequency_penalty": (rules.frequency_penalty, -LOGIT_CHANGE_MAX, LOGIT_CHANGE_MAX),
        "repetition_penalty": (rules.repetition_penalty, 1 / LOGIT_CHANGE_MAX, LOGIT_CHANGE_MAX),
        "logprobs": (float(rules.logprobs or 0), 0.0, float(LOGPROBS_MAX)),
    }
    for name, (value, low, high) in numbers.items():
        if not math.isfinite(value) or not low <= value <= high:
            raise RequestInvalidError(f"{name} is {value}; it must be a number from {low} to {high}.")
    # Written so that not-a-number fails.
    if not all(abs(bias) <= LOGIT_CHANGE_MAX for bias in rules.logit_bias.values()):
        raise RequestInvalidError(f"logit_bias holds a value that is not between ±{LOGIT_CHANGE_MAX:g}.")
