"""The load client against a scripted server on a real socket: what it notes, and that it never waits for an answer to send."""

import asyncio
import json
from typing import Any

import pytest

from pratique_cli.load import Target, Tenant, make_trace, run_trace
from tests.support.gates import serving

CHUNKS = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [{"delta": {"content": "b"}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]


class Server:
    """Answers after ``delay`` with the given events; keeps what it was sent."""

    def __init__(self, *events: Any, status: int = 200, delay: float = 0.0) -> None:
        self.events, self.status, self.delay = events or (*CHUNKS, "[DONE]"), status, delay
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        self.bodies.append(json.loads((await receive())["body"]))
        await asyncio.sleep(self.delay)
        await send(
            {"type": "http.response.start", "status": self.status, "headers": [(b"x-pratique-fingerprint", b"f")]}
        )
        for event in self.events:
            text = event if isinstance(event, str) else json.dumps(event)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def drive(server: Server, *, rate: float = 20.0, seconds: float = 0.1, key: str | None = None) -> list[Any]:
    tenant = Tenant(name="light", rate=rate, arrival="Constant", api_key=key)
    trace = make_trace((tenant,), seconds=seconds, seed=0)
    with serving(server) as served:
        return asyncio.run(run_trace(trace, Target(url=served.url, model="tiny")))


def test_a_whole_answer_is_noted() -> None:
    server = Server()
    first, second = drive(server, key="secret")
    assert (first.error, first.output_tokens, first.prompt_tokens, first.finish_reason) == (None, 2, 3, "stop")
    assert len(first.tokens_at) == 2, "the empty role chunk is no token"
    assert first.planned.at <= first.sent_at <= first.tokens_at[0] <= first.tokens_at[1] <= first.ended_at
    assert first.fingerprint == "f"
    assert {body["model"] for body in server.bodies} == {"tiny"}
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}
    assert len({headers["x-request-id"] for headers in server.headers}) == 2
    assert second.error is None


@pytest.mark.req("R123")
def test_requests_leave_on_time_though_no_answer_has_come() -> None:
    seen = drive(Server(delay=0.6), rate=20.0, seconds=0.4)
    assert len(seen) == 8
    assert all(item.error is None for item in seen)
    assert max(item.sent_at for item in seen) < 0.6, "the last left before the first answer began"


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (Server('{"error": {"code": "queue_full"}}', status=429), "HTTP 429"),
        (Server(*CHUNKS), "the stream broke off before [DONE]"),
        (Server(CHUNKS[1], "[DONE]"), "the stream has no finish reason"),
        (Server(CHUNKS[1], {"error": {"code": "internal"}}, "[DONE]"), "broke off: internal"),
        (Server("no json", "[DONE]"), "JSONDecodeError"),
    ],
)
def test_whatever_goes_wrong_is_an_observation(server: Server, error: str) -> None:
    (seen,) = drive(server, rate=10.0)
    assert seen.error is not None
    assert error in seen.error


def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    trace = make_trace((Tenant(name="light", rate=20.0, arrival="Constant"),), seconds=0.1, seed=0)
    seen = asyncio.run(run_trace(trace, Target(url="http://127.0.0.1:9", model="tiny")))
    assert [item.error is not None and "ConnectError" in item.error for item in seen] == [True, True]
