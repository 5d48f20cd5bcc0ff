"""From a chat body to something an engine can run, in the order of the design: model exists → parameter ranges → render → tokenize
→ context budget. Cheap and decisive checks first; nothing is reserved here.
"""

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any

from pratique_server.api.chat_request import ApiRequest, read_chat_request, read_model_name
from pratique_server.api.state import ApiState, Release
from pratique_server.api.trace import RequestTrace
from pratique_server.engine.protocol import ExecutionRequest, SamplingRules
from pratique_server.errors import (
    ContextLengthError,
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    PratiqueError,
    RevisionMismatchError,
    ServerTimeoutError,
)
from pratique_server.text.renderer import Rendered

TEMPERATURE_MIN = 1e-5
PROBE_CACHE_SALT = "pratique-probe"


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """When a request must be over (monotonic seconds), and whose limit that is."""

    at: float
    is_clients: bool

    def error(self) -> PratiqueError:
        if self.is_clients:
            return DeadlineError("The request's own deadline passed")
        return ServerTimeoutError("The request took longer than this server allows")


@dataclass(frozen=True, kw_only=True)
class PreparedChat:
    """Both records of one request, the prompt between them as it was rendered, and when it must be over."""

    api: ApiRequest
    prompt: Rendered
    execution: ExecutionRequest
    deadline: Deadline


async def prepare_chat(
    body: dict[str, Any], *, state: ApiState, trace: RequestTrace, deadline_ms: int | None, revision: str | None
) -> PreparedChat:
    """Raises a ``RequestError`` for everything that cannot be served as it was sent."""
    check_model(read_model_name(body), state)
    if revision is not None and revision != state.release.model_revision:
        raise RevisionMismatchError("This pod serves another model revision")
    api = read_chat_request(body, vocab_size=state.release.vocab_size, limits=state.limits)
    trace.stream = api.stream
    deadline = compute_deadline(api, deadline_ms, state=state, arrived_at=trace.arrived_at)
    rendered = await render_in_time(api, deadline, state=state)
    trace.prompt_tokens = len(rendered.ids)
    max_new_tokens = budget_tokens(api, prompt_tokens=len(rendered.ids), state=state)
    sampling = build_sampling(api, state.release)
    execution = ExecutionRequest(
        request_id=f"chatcmpl-{secrets.token_hex(12)}",
        prompt_ids=rendered.ids,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stop_ids(api, state.release),
        sampling=sampling,
        min_tokens=min(api.min_tokens, max_new_tokens),
        tenant=trace.tenant or "default",
        cache_salt=PROBE_CACHE_SALT if trace.reserved else "",
        deadline=deadline.at,
        reserved=trace.reserved,
    )
    trace.max_new_tokens, trace.seed = max_new_tokens, sampling.seed
    trace.sampling = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    trace.deadline_ms = round((deadline.at - trace.arrived_at) * 1000)
    return PreparedChat(api=api, prompt=rendered, execution=execution, deadline=deadline)


async def render_in_time(api: ApiRequest, deadline: Deadline, *, state: ApiState) -> Rendered:
    """Messages to ids. Long prompts of others may be before this one in the text pool: the wait counts, and ends, as any other. The
    renderer is the one of now: a later one may not be verified when its turn comes."""
    render = state.renderer.render
    try:
        async with asyncio.timeout(deadline.at - state.clock()):
            return await state.in_text_pool(lambda: render(api.messages))
    except TimeoutError as error:
        raise deadline.error() from error


def check_model(name: str, state: ApiState) -> None:
    if name != state.spec.served_model_name:
        raise ModelNotFoundError(f"This server serves {state.spec.served_model_name} only", param="model")


def budget_tokens(api: ApiRequest, *, prompt_tokens: int, state: ApiState) -> int:
    """Output tokens allowed: what was asked for, or what is left. Raises when prompt and answer do not fit."""
    limits, context = state.spec.limits, state.release.context_limit
    if prompt_tokens == 0:
        raise InvalidRequestError("The rendered prompt is empty", param="messages")
    if limits.max_prompt_tokens is not None and prompt_tokens > limits.max_prompt_tokens:
        raise ContextLengthError(
            f"The prompt has {prompt_tokens} tokens; this server takes {limits.max_prompt_tokens}", param="messages"
        )
    left = context - prompt_tokens
    if left < 1:
        raise ContextLengthError(
            f"The prompt has {prompt_tokens} tokens; the context of {context} tokens leaves no room for an answer",
            param="messages",
        )
    if api.max_tokens is None:
        return max(min(left, limits.max_output_tokens or left), 1)
    if limits.max_output_tokens is not None and api.max_tokens > limits.max_output_tokens:
        raise InvalidRequestError(
            f"max_tokens must be at most {limits.max_output_tokens} on this server", param="max_tokens"
        )
    if api.max_tokens > left:
        raise ContextLengthError(
            f"The prompt has {prompt_tokens} tokens and max_tokens asks for {api.max_tokens} more; "
            f"the context holds {context}",
            param="max_tokens",
        )
    return api.max_tokens


def compute_deadline(api: ApiRequest, header_ms: int | None, *, state: ApiState, arrived_at: float) -> Deadline:
    """The earliest of the server's limit and the client's (header or body); counted from arrival."""
    server_at = arrived_at + state.spec.limits.request_timeout_seconds
    asked = [value for value in (header_ms, api.deadline_ms) if value is not None]
    if not asked or (client_at := arrived_at + min(asked) / 1000) >= server_at:
        return Deadline(at=server_at, is_clients=False)
    if client_at <= state.clock():
        raise DeadlineError("The request's own deadline passed")
    return Deadline(at=client_at, is_clients=True)


def stop_ids(api: ApiRequest, release: Release) -> list[int]:
    """Every id that ends the answer; ``ignore_eos`` takes away the release's own, not the caller's."""
    own = () if api.ignore_eos else release.stop_ids
    return sorted({*own, *api.stop_token_ids})


def build_sampling(api: ApiRequest, release: Release) -> SamplingRules:
    """The caller's word, else the release's generation defaults, else the neutral value."""

    def chosen(name: str, neutral: float) -> float:
        asked = getattr(api, name)
        value = asked if asked is not None else release.defaults.get(name, neutral)
        return float(value) if isinstance(value, int | float) else neutral

    temperature = chosen("temperature", 1.0)
    return SamplingRules(
        # Dividing logits by less overflows; the limit of that division is greedy.
        temperature=temperature if temperature >= TEMPERATURE_MIN else 0.0,
        top_k=max(int(chosen("top_k", 0)), 0),
        top_p=chosen("top_p", 1.0),
        min_p=chosen("min_p", 0.0),
        repetition_penalty=chosen("repetition_penalty", 1.0),
        presence_penalty=api.presence_penalty,
        frequency_penalty=api.frequency_penalty,
        logit_bias=api.logit_bias or {},
        seed=api.seed,
        logprobs=api.logprobs,
    )
