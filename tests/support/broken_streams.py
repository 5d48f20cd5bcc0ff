"""A real server whose event streams are changed on their way out: what a proxy, a framework or a bug could make of right answers."""

from collections.abc import Callable
from typing import Any

Events = list[bytes]


class BreakStreams:
    """ASGI wrapper: holds back the body of every event stream and sends it changed. ``change`` gets whole events, ``data: …`` with
    the empty line; ``start`` may change the message that begins such an answer."""

    def __init__(
        self, app: Any, change: Callable[[Events], Events], *, start: Callable[[Any], Any] = lambda message: message
    ) -> None:
        self._app, self._change, self._start = app, change, start

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held: list[bytes] = []
        streaming = False

        async def changed_send(message: Any) -> None:
            nonlocal streaming
            if message["type"] == "http.response.start":
                streaming = (b"content-type", b"text/event-stream") in [
                    (name, value.split(b";")[0]) for name, value in message["headers"]
                ]
                message = self._start(message) if streaming else message
            elif streaming and message["type"] == "http.response.body":
                held.append(message.get("body", b""))
                if message.get("more_body", False):
                    return
                events = [event + b"\n\n" for event in b"".join(held).split(b"\n\n") if event]
                message = {**message, "body": b"".join(self._change(events))}
            await send(message)

        await self._app(scope, receive, changed_send)
