"""Everything a client can get wrong is answered with the right 4xx, names the field, is small, and never reaches the engine."""

import json
from typing import Any

import pytest

from tests.unit.server.scripted import Api, chat_body, make_api

HI = {"role": "user", "content": "Hi"}


def messages(*parts: Any) -> dict[str, Any]:
    return {"messages": list(parts)}


async def assert_refused(api: Api, response: Any, status: int, code: str, param: str | None) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param), error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert response.headers["x-should-retry"] == "false"
    assert len(response.content) < 2000
    assert api.engine.requests == []
    assert len(api.state.live) == 0


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"messages": ...}, "invalid_request", "messages"),
        ({"messages": None}, "invalid_request", "messages"),
        ({"messages": []}, "invalid_request", "messages"),
        ({"messages": "Hi"}, "invalid_request", "messages"),
        ({"messages": {}}, "invalid_request", "messages"),
        (messages("Hi"), "invalid_request", "messages[0]"),
        (messages(HI, None), "invalid_request", "messages[1]"),
        (messages({"role": "user"}), "invalid_request", "messages[0].content"),
        (messages({"role": "user", "content": None}), "invalid_request", "messages[0].content"),
        (messages({"role": "assistant", "content": None}), "invalid_request", "messages[0].content"),
        (messages({"role": "user", "content": 7}), "invalid_request", "messages[0].content"),
        (messages({"role": "user", "content": []}), "invalid_request", "messages[0].content"),
        (messages({"role": "user", "content": ["Hi"]}), "invalid_request", "messages[0].content[0]"),
        (
            messages({"role": "user", "content": [{"type": "text"}]}),
            "invalid_request",
            "messages[0].content[0].text",
        ),
        (
            messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
            "unsupported_parameter",
            "messages[0].content[0].type",
        ),
        (messages({"content": "Hi"}), "invalid_request", "messages[0].role"),
        (messages({"role": "captain", "content": "Hi"}), "invalid_request", "messages[0].role"),
        (messages({"role": "r" * 1_000_000, "content": "Hi"}), "invalid_request", "messages[0].role"),
        (messages({"role": ["user"], "content": "Hi"}), "invalid_request", "messages[0].role"),
        (messages({"role": "tool", "content": "4"}), "unsupported_parameter", "messages[0].role"),
        (messages({**HI, "name": "n" * 1_000_000}), "invalid_request", "messages[0].name"),
        (messages({**HI, "name": 3}), "invalid_request", "messages[0].name"),
        (messages({**HI, "tool_calls": [{"id": "1"}]}), "unsupported_parameter", "messages[0].tool_calls"),
        (messages({**HI, "unheard": 1}), "unsupported_parameter", "messages[0].unheard"),
        ({"model": ...}, "invalid_request", "model"),
        ({"model": None}, "invalid_request", "model"),
        ({"model": 5}, "invalid_request", "model"),
        ({"model": ""}, "invalid_request", "model"),
        ({"temperature": -1}, "invalid_request", "temperature"),
        ({"temperature": 2.1}, "invalid_request", "temperature"),
        ({"temperature": "hot"}, "invalid_request", "temperature"),
        ({"temperature": True}, "invalid_request", "temperature"),
        ({"top_p": 0}, "invalid_request", "top_p"),
        ({"top_p": 2}, "invalid_request", "top_p"),
        ({"top_k": -2}, "invalid_request", "top_k"),
        ({"top_k": 1.5}, "invalid_request", "top_k"),
        ({"min_p": 1.5}, "invalid_request", "min_p"),
        ({"presence_penalty": 3}, "invalid_request", "presence_penalty"),
        ({"frequency_penalty": -3}, "invalid_request", "frequency_penalty"),
        ({"repetition_penalty": 0}, "invalid_request", "repetition_penalty"),
        ({"n": 0}, "invalid_request", "n"),
        ({"n": 10**9}, "invalid_request", "n"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"max_tokens": 0}, "invalid_request", "max_tokens"),
        ({"max_tokens": -5}, "invalid_request", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_request", "max_tokens"),
        ({"max_tokens": 10**30}, "invalid_request", "max_tokens"),
        ({"max_tokens": 5000}, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_request", "max_completion_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "invalid_request", "min_tokens"),
        (messages({"role": "user", "content": "x" * 600}), "context_length_exceeded", "messages"),
        ({"seed": 2**70}, "invalid_request", "seed"),
        ({"seed": -(2**70)}, "invalid_request", "seed"),
        ({"seed": 1.5}, "invalid_request", "seed"),
        ({"seed": "7"}, "invalid_request", "seed"),
        ({"stop": ""}, "invalid_request", "stop"),
        ({"stop": ["a", ""]}, "invalid_request", "stop[1]"),
        ({"stop": ["x"] * 17}, "invalid_request", "stop"),
        ({"stop": 3}, "invalid_request", "stop"),
        ({"stop": "s" * 1_000_000}, "invalid_request", "stop"),
        ({"stop_token_ids": [10**9]}, "invalid_request", "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "invalid_request", "stop_token_ids"),
        ({"stop_token_ids": [True]}, "invalid_request", "stop_token_ids"),
        ({"stop_token_ids": 3}, "invalid_request", "stop_token_ids"),
        ({"logit_bias": {"999999": 1}}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"seven": 1}}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"1.5": 1}}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"1": 101}}, "invalid_request", "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "invalid_request", "logit_bias"),
        ({"logit_bias": [1]}, "invalid_request", "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(2000)}}, "invalid_request", "logit_bias"),
        ({"logprobs": 5}, "invalid_request", "logprobs"),
        ({"top_logprobs": 5}, "invalid_request", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_request", "top_logprobs"),
        ({"ignore_eos": "yes"}, "invalid_request", "ignore_eos"),
        ({"stream": "yes"}, "invalid_request", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_request", "stream_options"),
        ({"stream": True, "stream_options": 3}, "invalid_request", "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "unsupported_parameter", "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "invalid_request",
            "stream_options.include_usage",
        ),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"response_format": "json"}, "invalid_request", "response_format"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "unsupported_parameter", "tool_choice"),
        ({"deadline_ms": 0}, "invalid_request", "deadline_ms"),
        ({"tempratura": 1}, "unsupported_parameter", "tempratura"),
        ({"functions": None}, "unsupported_parameter", "functions"),
        ({"x" * 1_000_000: 1}, "unsupported_parameter", "x" * 64),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:60],
)
@pytest.mark.req("R3", "R8", "R9")
async def test_a_wrong_field_is_named(change: dict[str, Any], code: str, param: str) -> None:
    """vllm#6707, vllm#10432, vllm PR#4529, vllm#13175, vllm PR#16529, llama-cpp-python#1805, fastapi#14400 (never 422);
    llama.cpp#24097: a response_format that was accepted and did nothing."""
    api = make_api()
    await assert_refused(api, await api.chat(change), 400, code, param)


RAW_BODIES = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"null", "invalid_json"),
    (b"[]", "invalid_json"),
    (b'"text"', "invalid_json"),
    (b"3", "invalid_json"),
    (b"\xff\xfe", "invalid_json"),
    (b'{"model": NaN}', "invalid_json"),
    (b'{"model": "harbour", "temperature": NaN}', "invalid_json"),
    (b'{"model": "harbour", "temperature": 1e400}', "invalid_json"),
    (b'{"model": "harbour", "temperature": Infinity}', "invalid_json"),
    (rb'{"model": "harbour", "messages": [{"role": "user", "content": "\ud800"}]}', "invalid_json"),
    (rb'{"model": "harbour", "messages": [{"role": "user", "content": "a\u0000b"}]}', "invalid_request"),
    (rb'{"model": "harbour", "a\u0000b": 1}', "invalid_request"),
    (b'{"model": "harbour", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "invalid_json"),
    (b"[" * 100_000 + b"]" * 100_000, "invalid_json"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid_json"),
    (b'{"model": "harbour", "a": ' + b"[" * 40 + b"]" * 40 + b"}", "invalid_json"),
]


@pytest.mark.parametrize(("body", "code"), RAW_BODIES, ids=[str(body)[:50] for body, _ in RAW_BODIES])
@pytest.mark.req("R3")
async def test_a_body_that_is_not_a_json_object_is_refused(body: bytes, code: str) -> None:
    """vllm PR#42961 (non-object body → 500), textgen PR#7658 (lone surrogate → 500), sglang#3805."""
    api = make_api()
    async with api.client() as client:
        response = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    await assert_refused(api, response, 400, code, None)


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_must_be_declared_as_json(media_type: str | None) -> None:
    api = make_api()
    headers = {} if media_type is None else {"content-type": media_type}
    async with api.client() as client:
        response = await client.post("/v1/chat/completions", content=json.dumps(chat_body()), headers=headers)
    await assert_refused(api, response, 415, "unsupported_media_type", None)


async def test_json_with_a_character_set_is_json() -> None:
    api = make_api()
    response = await api.chat({}, **{"content-type": "application/json; charset=utf-8"})
    assert response.status_code == 200


@pytest.mark.req("R7")
async def test_a_body_over_the_limit_is_refused_before_it_is_parsed() -> None:
    api = make_api_with_body_limit()
    response = await api.chat({"metadata": {"x": "y" * 2000}})
    await assert_refused(api, response, 413, "request_too_large", None)


def make_api_with_body_limit() -> Api:
    return make_api(spec_limits={"max_body_bytes": 1000})


@pytest.mark.req("R7")
async def test_a_body_over_the_limit_without_a_length_is_refused_while_it_arrives() -> None:
    api = make_api_with_body_limit()

    async def endless() -> Any:
        for _ in range(20):
            yield b" " * 500

    async with api.client() as client:
        response = await client.post(
            "/v1/chat/completions", content=endless(), headers={"content-type": "application/json"}
        )
    await assert_refused(api, response, 413, "request_too_large", None)


async def test_error_bodies_never_repeat_the_input() -> None:
    """vllm#49239: an error body over 100 MB, because it echoed the request."""
    secret = "the-content-of-my-letter"
    for change in (
        {"messages": [{"role": secret, "content": secret}]},
        {"temperature": secret},
        {"stop": [secret] * 20},
        {"response_format": {"type": secret}},
    ):
        response = await make_api().chat(change)
        assert response.status_code == 400
        assert secret not in response.text


@pytest.mark.parametrize(
    "change",
    [
        {"user": "u", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True},
        {"stop": None, "prompt_cache_key": "k", "safety_identifier": "s", "cache_salt": "mine"},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "n": 1},
        {"temperature": None, "max_tokens": None, "seed": None, "logprobs": None, "stream": None},
        messages({"role": "user", "content": ""}),
        messages({"role": "developer", "content": "Be brief"}, HI),
        messages(HI, {"role": "assistant", "content": "x", "refusal": None, "tool_calls": [], "audio": None}, HI),
        messages({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        messages(HI, HI),
        {"seed": -1},
        {"seed": 2**63},
        {"logit_bias": {"5": -100}},
        {"top_k": -1},
        {"temperature": 0},
        {"stop": ["x"] * 16},
    ],
    ids=lambda value: str(value)[:50],
)
async def test_what_common_clients_send_is_accepted(change: dict[str, Any]) -> None:
    """vllm#21089 (empty content), vllm#13978 (empty tool_calls in the history); guidellm sends stop: null."""
    response = await make_api().chat(change)
    assert response.status_code == 200, response.text


@pytest.mark.req("R12")
async def test_a_template_that_refuses_the_roles_is_the_clients_error() -> None:
    """vllm#17119: a template's exception was an internal error."""
    api = make_api(template="{{ raise_exception('Roles must alternate') }}")
    response = await api.chat()
    await assert_refused(api, response, 400, "template_error", "messages")
    assert "Roles must alternate" in response.json()["error"]["message"]


async def test_an_empty_prompt_is_refused() -> None:
    api = make_api(template="{{ '' }}")
    await assert_refused(api, await api.chat(), 400, "invalid_request", "messages")


class Untouchable:
    """Stands where the tokenizer and template are; using it fails the test."""

    def render(self, messages: Any) -> Any:
        raise AssertionError("the template was rendered")


@pytest.mark.req("R6", "R7")
@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"messages": [{"role": "captain", "content": "Hi"}]},
        {"temperature": 9},
        {"logit_bias": {"x": 1}},
        {"stop": [""]},
        {"metadata": {"x": "y" * 5000}},
    ],
    ids=lambda change: str(change)[:30],
)
async def test_what_is_refused_for_its_fields_or_size_never_reaches_the_tokenizer(change: dict[str, Any]) -> None:
    api = make_api(spec_limits={"max_body_bytes": 4000})
    api.state.renderer = Untouchable()  # type: ignore[assignment]
    assert 400 <= (await api.chat(change)).status_code < 500


async def test_another_model_is_not_found() -> None:
    api = make_api()
    await assert_refused(api, await api.chat({"model": "gpt-4"}), 404, "model_not_found", "model")


async def test_unknown_paths_and_methods_have_our_error_body() -> None:
    api = make_api()
    await assert_refused(api, await api.post("/v1/embeddings", {}), 404, "not_found", None)
    async with api.client() as client:
        await assert_refused(api, await client.get("/v1/chat/completions"), 405, "method_not_allowed", None)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/render"])
@pytest.mark.parametrize(
    "body", [{}, {"unheard": 1}, {"messages": 3}, {"prompt": 3}, {"tokens": "x"}, {"tokens": [9999]}]
)
async def test_the_text_routes_refuse_what_is_not_theirs(path: str, body: dict[str, Any]) -> None:
    response = await make_api().post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"]
