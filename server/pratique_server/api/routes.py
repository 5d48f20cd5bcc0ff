"""The routes: each reads its body, calls one function and wraps the result. Decisions live elsewhere."""

from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pratique_contract import constants
from pratique_server.api import fields
from pratique_server.api.admission import require_still_admitted
from pratique_server.api.body import read_json_object
from pratique_server.api.chat import ChatResponse
from pratique_server.api.chat_request import DEADLINE_MS_MAX, read_model_name
from pratique_server.api.edge import TRACE_KEY
from pratique_server.api.fields import fail
from pratique_server.api.messages import read_messages
from pratique_server.api.pipeline import check_model, prepare_chat
from pratique_server.api.state import ApiState
from pratique_server.api.trace import RequestTrace
from pratique_server.errors import UnsupportedParameterError

REVISION_HEADER: Final = "x-pratique-model-revision"
TOKENIZE_IDS_MAX: Final = 1_000_000


def make_router(state: ApiState) -> APIRouter:
    router = APIRouter()

    @router.post(constants.CHAT_COMPLETIONS_PATH, response_model=None)
    async def chat_completions(request: Request) -> Response:
        trace: RequestTrace = request.scope[TRACE_KEY]
        deadline_ms = _deadline_header(request)
        body = await _body(request, state)
        revision = request.headers.get(REVISION_HEADER)
        prepared = await prepare_chat(body, state=state, trace=trace, deadline_ms=deadline_ms, revision=revision)
        return ChatResponse(prepared, state=state, trace=trace)

    @router.get(constants.MODELS_PATH, response_model=None)
    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": [_model_value(state)]})

    @router.get(f"{constants.MODELS_PATH}/{{name:path}}", response_model=None)
    async def model(request: Request, name: str) -> Response:
        check_model(name, state)
        return _json(_model_value(state))

    @router.post("/tokenize", response_model=None)
    async def tokenize(request: Request) -> Response:
        return _json(await tokenize_body(await _body(request, state), state))

    @router.post("/detokenize", response_model=None)
    async def detokenize(request: Request) -> Response:
        return _json(await detokenize_body(await _body(request, state), state))

    @router.post("/render", response_model=None)
    async def render(request: Request) -> Response:
        return _json(await render_body(await _body(request, state), state))

    return router


async def tokenize_body(body: dict[str, Any], state: ApiState) -> dict[str, Any]:
    """Ids of ``prompt`` as it is, or of ``messages`` through the template."""
    _check_fields(body, {"model", "prompt", "messages"}, state)
    if ("prompt" in body) == ("messages" in body):
        raise fail("prompt", "or messages must be given, not both")
    if "messages" in body:
        ids = (await render_body({"messages": body["messages"]}, state))["ids"]
    else:
        prompt = fields.text(length_max=state.spec.limits.max_body_bytes, empty=True)("prompt", body["prompt"])
        encode = state.renderer.tokenizer.encode
        ids = await state.in_text_pool(lambda: encode(prompt))
    return {"tokens": ids, "count": len(ids), "max_model_len": state.release.context_limit}


async def detokenize_body(body: dict[str, Any], state: ApiState) -> dict[str, Any]:
    """Text of ``tokens``, special tokens shown."""
    _check_fields(body, {"model", "tokens"}, state)
    reader = fields.token_ids(vocab_size=state.release.vocab_size, count_max=TOKENIZE_IDS_MAX)
    ids = reader("tokens", body.get("tokens"))
    decode = state.renderer.tokenizer.decode
    return {"prompt": await state.in_text_pool(lambda: decode(ids, skip_special_tokens=False))}


async def render_body(body: dict[str, Any], state: ApiState) -> dict[str, Any]:
    """The template boundary: exactly what the model would be given."""
    _check_fields(body, {"model", "messages", "add_generation_prompt"}, state)
    messages = read_messages(body.get("messages"), count_max=state.limits.messages_max)
    prompt = fields.boolean("add_generation_prompt", body.get("add_generation_prompt", True))
    render = state.renderer.render
    rendered = await state.in_text_pool(lambda: render(messages, add_generation_prompt=prompt))
    return {"text": rendered.text, "ids": rendered.ids, "count": len(rendered.ids)}


def _check_fields(body: dict[str, Any], known: set[str], state: ApiState) -> None:
    unknown = sorted(set(body) - known)
    if unknown:
        raise UnsupportedParameterError("Not supported: a field that is not known", param=unknown[0][:64])
    if "model" in body:
        check_model(read_model_name(body), state)


def _deadline_header(request: Request) -> int | None:
    value = request.headers.get(constants.DEADLINE_HEADER)
    if value is None:
        return None
    number = int(value) if value.isascii() and value.isdigit() and len(value) <= 10 else 0
    return int(fields.integer(1, DEADLINE_MS_MAX)(constants.DEADLINE_HEADER, number))


async def _body(request: Request, state: ApiState) -> dict[str, Any]:
    body = await read_json_object(request, bytes_max=state.spec.limits.max_body_bytes, limits=state.limits)
    require_still_admitted(request.scope[TRACE_KEY], state)
    return body


def _model_value(state: ApiState) -> dict[str, Any]:
    return {
        "id": state.spec.served_model_name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "pratique",
        "max_model_len": state.release.context_limit,
        "revision": state.release.model_revision,
        "fingerprint": state.release.fingerprint,
    }


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
