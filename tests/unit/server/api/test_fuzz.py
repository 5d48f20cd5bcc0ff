"""Any JSON object in any field: an answer or a 4xx that names something, never an internal error, never a hung request."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pratique_server.api.chat_request import HARMLESS_FIELDS, read_chat_request
from pratique_server.config import ApiLimits
from pratique_server.errors import RequestError
from tests.unit.server.scripted import chat_body, make_api

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "user", "text", "auto", "none", "x"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "messages",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "top_logprobs",
    "n",
    "return_token_ids",
    "deadline_ms",
    "stream_options",
    "response_format",
    "tools",
    "tool_choice",
    *sorted(HARMLESS_FIELDS),
]
MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "name", "refusal", "tool_calls", "reasoning_content"]), JSON, max_size=4
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.lists(MESSAGE, max_size=2))
@settings(max_examples=400, deadline=None)
def test_any_fields_are_read_or_refused(changes: dict[str, Any], messages: list[Any]) -> None:
    body = {**chat_body(**({"messages": messages} if messages else {})), **changes}
    try:
        read_chat_request(body, vocab_size=258, limits=ApiLimits())
    except RequestError as error:
        refusal: RequestError | None = error
    else:
        refusal = None
    assert refusal is None or (refusal.param and len(refusal.message) < 500)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
@settings(max_examples=40, deadline=None)
def test_any_fields_get_an_answer_or_a_client_error(changes: dict[str, Any]) -> None:
    async def status() -> int:
        # The scripted engine takes everything, so that only what the real one would take may pass: 1 s is plenty.
        return (await asyncio.wait_for(make_api().chat({"deadline_ms": 2000, **changes}), 3)).status_code

    code = asyncio.run(status())
    assert code == 200 or 400 <= code < 500
