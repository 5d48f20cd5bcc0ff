"""``pratique chat`` against a scripted server on a real socket."""

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gates import Script, ScriptedServer, ServedPort, serving, sse
from tests.unit.cli.conftest import Run

FINGERPRINT = "sha256:" + "a" * 64
SCRIPT = Script(FINGERPRINT)


class ChatServer(ScriptedServer):
    """Lists its model, then answers like the scripted server."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            body = json.dumps({"data": [{"id": "tiny"}]}).encode()
            await self._start(send, 200, "application/json")
            await send({"type": "http.response.body", "body": body})
            return
        await super().__call__(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[ServedPort]:
    with serving() as served:
        yield served


def _serve(port: ServedPort, **fields: Any) -> ChatServer:
    server = ChatServer(**{"pieces": sse(*SCRIPT.good()), "fingerprint": FINGERPRINT, **fields})
    port.app = server
    return server


def test_the_answer_is_the_output_and_the_rest_is_beside_it(pratique: Run, port: ServedPort) -> None:
    server = _serve(port)
    result = pratique("chat", "--url", port.url, "Ahoy", "--system", "Be brief", "--api-key", "k", "--max-tokens", "9")
    assert (result.code, result.out) == (0, "ab\n")
    assert f"release {FINGERPRINT}" in result.err
    assert "[3 tokens in" in result.err
    (request,) = server.requests
    assert (request["model"], request["max_tokens"]) == ("tiny", 9)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert server.headers[0]["authorization"] == "Bearer k"


def test_quiet_prints_only_the_answer(pratique: Run, port: ServedPort) -> None:
    _serve(port)
    assert pratique("chat", "-q", "--url", f"{port.url}/v1", "Ahoy").err == ""


def test_a_conversation_remembers_what_was_said(
    pratique: Run, port: ServedPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _serve(port)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))
    assert pratique("chat", "-q", "--url", port.url).out == "ab\nab\n"
    assert [message["content"] for message in server.requests[1]["messages"]] == ["one", "ab", "two"]


def test_an_error_answer_is_a_sentence(pratique: Run, port: ServedPort) -> None:
    _serve(port, refusals=[(503, "not_ready")])
    result = pratique("chat", "--url", port.url, "Ahoy")
    assert result.code == 3
    assert result.err == f"error: {port.url} answered HTTP 503: not_ready: not now\n"


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (SCRIPT.good()[:3], "without a finish reason"),
        ([*SCRIPT.good()[:2], {"error": {"code": "internal", "message": "boom"}}, "[DONE]"], "broke off: boom"),
    ],
)
def test_half_an_answer_does_not_look_like_a_whole_one(
    events: list[Any], sentence: str, pratique: Run, port: ServedPort
) -> None:
    _serve(port, pieces=sse(*events))
    result = pratique("chat", "--url", port.url, "Ahoy")
    assert result.code == 3
    assert sentence in result.err


def test_nobody_there_is_a_sentence(pratique: Run) -> None:
    result = pratique("chat", "--url", "http://127.0.0.1:9", "Ahoy")
    assert result.code == 3
    assert "cannot be reached" in result.err


def test_a_service_and_a_url_exclude_each_other(pratique: Run) -> None:
    assert pratique("chat", "smollm2", "Ahoy", "--url", "http://127.0.0.1:9").code == 2
