"""The body of a chat request as an ``ApiRequest``: every field acts, is on the short list of harmless ones, or is refused by name.

A new field is a new row in ``_readers`` and a new attribute, not a branch.
"""

from dataclasses import dataclass
from typing import Any, Final

from pratique_server.api import fields
from pratique_server.api.fields import Reader, fail
from pratique_server.api.messages import read_messages
from pratique_server.config import ApiLimits
from pratique_server.errors import InvalidRequestError, UnsupportedParameterError

TOP_LOGPROBS_MAX: Final = 20
TOKENS_MAX: Final = 2**31 - 1
DEADLINE_MS_MAX: Final = 24 * 3600 * 1000

# Fields that change nothing about the answer here and that common clients send anyway. ``cache_salt`` is the server's to set.
HARMLESS_FIELDS: Final = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "cache_salt",
    }
)


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """What the caller sent, checked. None means the caller was silent and the release's default applies."""

    messages: list[dict[str, Any]]
    model: str
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    return_token_ids: bool = False
    deadline_ms: int | None = None


def read_chat_request(body: dict[str, Any], *, vocab_size: int, limits: ApiLimits) -> ApiRequest:
    """Raises a ``RequestError`` naming the first wrong field; unknown fields come first, since they may be misspelt ones."""
    readers = _readers(vocab_size, limits)
    unknown = sorted(set(body) - set(readers) - set(_SPECIAL) - HARMLESS_FIELDS)
    if unknown:
        names = ", ".join(name[:64] for name in unknown[:5])
        raise UnsupportedParameterError(f"Not supported: {names}", param=unknown[0][:64])
    given = {name: value for name, value in body.items() if value is not None and name not in HARMLESS_FIELDS}
    values = {name: reader(name, given[name]) for name, reader in readers.items() if name in given}
    if "messages" not in given:
        raise fail("messages", "is missing")
    _refuse_unsupported(given)
    plain: dict[str, Any] = {name: value for name, value in values.items() if name not in _FOLDED}
    plain |= _stream_options(given, stream=values.get("stream", False))
    return ApiRequest(
        messages=read_messages(given["messages"], count_max=limits.messages_max),
        max_tokens=_max_tokens(values),
        logprobs=_logprobs(values),
        stop_token_ids=tuple(values.get("stop_token_ids", ())),
        **plain,
    )


# Read together with another field, not on their own.
_FOLDED: Final = ("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "n", "stop_token_ids")
_SPECIAL: Final = ("messages", "stream_options", "response_format", "tools", "tool_choice")


def _readers(vocab_size: int, limits: ApiLimits) -> dict[str, Reader]:
    return {
        "model": fields.text(length_max=512),
        "stream": fields.boolean,
        "max_tokens": fields.integer(1, TOKENS_MAX),
        "max_completion_tokens": fields.integer(1, TOKENS_MAX),
        "min_tokens": fields.integer(0, TOKENS_MAX),
        "temperature": fields.number(0, 2),
        "top_p": fields.number(0, 1, above_low=True),
        "top_k": fields.top_k,
        "min_p": fields.number(0, 1),
        "presence_penalty": fields.number(-2, 2),
        "frequency_penalty": fields.number(-2, 2),
        "repetition_penalty": fields.number(0, 10, above_low=True),
        "logit_bias": fields.logit_bias(vocab_size=vocab_size, count_max=limits.logit_bias_max),
        "seed": fields.seed,
        "stop": fields.stop_strings(count_max=limits.stop_strings_max, length_max=limits.stop_string_length_max),
        "stop_token_ids": fields.token_ids(vocab_size=vocab_size, count_max=limits.logit_bias_max),
        "ignore_eos": fields.boolean,
        "logprobs": fields.boolean,
        "top_logprobs": fields.integer(0, TOP_LOGPROBS_MAX),
        "n": fields.integer(1, 128),
        "return_token_ids": fields.boolean,
        "deadline_ms": fields.integer(1, DEADLINE_MS_MAX),
    }


def _refuse_unsupported(given: dict[str, Any]) -> None:
    if given.get("n", 1) != 1:
        raise UnsupportedParameterError("n must be 1: several choices are not supported", param="n")
    if given.get("tools", []) != []:
        raise UnsupportedParameterError("tools are not supported", param="tools")
    if given.get("tool_choice", "none") != "none":
        raise UnsupportedParameterError("tool_choice must be none: tools are not supported", param="tool_choice")
    response_format = given.get("response_format", {"type": "text"})
    if not isinstance(response_format, dict):
        raise fail("response_format", "must be an object")
    if response_format != {"type": "text"}:
        raise UnsupportedParameterError("response_format must be of type text", param="response_format")


def _max_tokens(values: dict[str, Any]) -> int | None:
    old, new = values.get("max_tokens"), values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise fail("max_completion_tokens", "and max_tokens differ; send one of them")
    chosen: int | None = new if new is not None else old
    if chosen is not None and values.get("min_tokens", 0) > chosen:
        raise fail("min_tokens", "must not be above max_tokens")
    return chosen


def _logprobs(values: dict[str, Any]) -> int | None:
    if not values.get("logprobs", False):
        if "top_logprobs" in values:
            raise fail("top_logprobs", "needs logprobs: true")
        return None
    return int(values.get("top_logprobs", 0))


def _stream_options(given: dict[str, Any], *, stream: bool) -> dict[str, bool]:
    options = given.get("stream_options")
    if options is None:
        return {}
    if not stream:
        raise fail("stream_options", "needs stream: true")
    if not isinstance(options, dict):
        raise fail("stream_options", "must be an object")
    unknown = sorted(set(options) - {"include_usage", "continuous_usage_stats"})
    if unknown:
        raise UnsupportedParameterError("stream_options holds a field that is not known", param="stream_options")
    read = {
        name: fields.boolean(f"stream_options.{name}", value) for name, value in options.items() if value is not None
    }
    return {
        "include_usage": read.get("include_usage", False),
        "continuous_usage": read.get("continuous_usage_stats", False),
    }


def read_model_name(body: dict[str, Any]) -> str:
    """The model a body asks for; looked at before anything else in it."""
    if body.get("model") is None:
        raise InvalidRequestError("model is missing", param="model")
    return str(fields.text(length_max=512)("model", body["model"]))
