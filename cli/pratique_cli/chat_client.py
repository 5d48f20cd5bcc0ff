"""A small chat client: one streamed request over one connection, standard library only.

In go messages, out come pieces of text as they arrive; afterwards ``summary`` says what the server reported. An error answer, an
error event or a stream without its end is a ``CliError``: half an answer must not look like a whole one.
"""

import http.client
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_contract.constants import CHAT_COMPLETIONS_PATH, FINGERPRINT_HEADER, MODELS_PATH

Message = dict[str, str]

CONNECT_SECONDS_MAX: Final = 10.0
# Between two pieces; the server sends keep-alive comments while it works.
SILENCE_SECONDS_MAX: Final = 120.0
BODY_BYTES_MAX: Final = 1024 * 1024


@dataclass(kw_only=True)
class Summary:
    """What is known once the stream has ended."""

    fingerprint: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_text_ms: float | None = None
    total_ms: float | None = None


class ChatClient:
    """``open_connection`` gives a fresh connection for each request: a socket to a host, or one through the cluster."""

    def __init__(self, target: "Target", *, api_key: str | None = None) -> None:
        self._target = target
        self._api_key = api_key
        self.summary = Summary()

    def first_model(self) -> str:
        """The name of the model that is served."""
        connection = self._target.open()
        try:
            response = self._send(connection, "GET", MODELS_PATH, None)
            value = json.loads(response.read(BODY_BYTES_MAX))
            return str(value["data"][0]["id"])
        except (OSError, ValueError, KeyError, IndexError, http.client.HTTPException) as error:
            raise CliError(f"{self._target} does not list its models: {error}") from error
        finally:
            connection.close()

    def stream(self, messages: Sequence[Message], **options: Any) -> Iterator[str]:
        """Pieces of the answer; ``options`` are further fields of the request."""
        body = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}, **options}
        started = time.monotonic()
        self.summary = Summary()
        connection = self._target.open()
        try:
            response = self._send(connection, "POST", CHAT_COMPLETIONS_PATH, body)
            self.summary.fingerprint = response.getheader(FINGERPRINT_HEADER)
            for event in _read_events(response):
                text = self._take(event)
                if text and self.summary.first_text_ms is None:
                    self.summary.first_text_ms = (time.monotonic() - started) * 1000
                if text:
                    yield text
            self.summary.total_ms = (time.monotonic() - started) * 1000
        except (OSError, http.client.HTTPException) as error:
            raise CliError(f"The connection to {self._target} broke: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if self.summary.finish_reason is None:
            raise CliError("The stream ended without a finish reason: the answer is not complete")

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "text/event-stream, application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        connection.request(
            method, self._target.prefix + path, body=None if body is None else json.dumps(body), headers=headers
        )
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise CliError(
                f"{self._target} answered HTTP {response.status}: {_error_message(response.read(BODY_BYTES_MAX))}"
            )
        return response

    def _take(self, event: dict[str, Any]) -> str:
        if "error" in event:
            raise CliError(f"The answer broke off: {event['error'].get('message')}")
        usage = event.get("usage") or {}
        self.summary.prompt_tokens = usage.get("prompt_tokens", self.summary.prompt_tokens)
        self.summary.completion_tokens = usage.get("completion_tokens", self.summary.completion_tokens)
        for choice in event.get("choices", []):
            self.summary.finish_reason = choice.get("finish_reason") or self.summary.finish_reason
            return str(choice.get("delta", {}).get("content") or "")
        return ""


class Target:
    """Where requests go: a base URL. ``prefix`` is the URL's own path."""

    def __init__(self, url: str) -> None:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:  # a bracket without its other half, a port that is none
            raise CliError(f"{url!r} is not an http:// or https:// URL: {error}", code=EXIT_USAGE) from error
        if host is None or parts.scheme not in ("http", "https"):
            raise CliError(f"{url!r} is not an http:// or https:// URL", code=EXIT_USAGE)
        self._url = url
        self._host, self._port, self._tls = host, port, parts.scheme == "https"
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")

    def __str__(self) -> str:
        return self._url

    def open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS_MAX)
        try:
            connection.connect()
        except OSError as error:
            raise CliError(f"{self._url} cannot be reached: {error}") from error
        connection.sock.settimeout(SILENCE_SECONDS_MAX)
        return connection


class SocketTarget(Target):
    """Requests through connections that somebody else opens, such as a port forward."""

    def __init__(self, name: str, open_socket: Any) -> None:
        super().__init__("http://localhost")
        self._name = name
        self._open_socket = open_socket

    def __str__(self) -> str:
        return self._name

    def open(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost")
        forwarded: socket.socket = self._open_socket()
        connection.sock = forwarded
        return connection


def _read_events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Payloads of ``data:`` lines up to ``[DONE]``."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        payload = line.removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            return
        yield json.loads(payload)


def _error_message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return f"{error.get('code')}: {error.get('message')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:200].decode("utf-8", "replace") or "no body"
