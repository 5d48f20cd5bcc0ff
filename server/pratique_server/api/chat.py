"""The answer of a chat request as an ASGI response. Nothing is sent before the engine's first event: overload, bad input and a dead
engine are statuses, never a stream with status 200. A client that goes away, streaming or not, ends its request in the engine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pratique_server.api.answer import Piece, PieceMerger
from pratique_server.api.generation import Generation
from pratique_server.api.outbox import Outbox, drain_to_client
from pratique_server.api.pipeline import PreparedChat
from pratique_server.api.sse import ChatStream, Envelope
from pratique_server.api.state import ApiState
from pratique_server.api.trace import RequestTrace
from pratique_server.errors import CancelledByClientError, InternalError, PratiqueError, SlowReaderError

_log = logging.getLogger(__name__)

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Asks nginx-like proxies not to collect the stream before passing it on.
    (b"x-accel-buffering", b"no"),
]


class ChatResponse(Response):
    """Runs one prepared request; holds its id while it lives."""

    def __init__(self, prepared: PreparedChat, *, state: ApiState, trace: RequestTrace) -> None:
        super().__init__()
        self._prepared = prepared
        self._state = state
        self._trace = trace
        self._envelope = Envelope(
            id=prepared.execution.request_id,
            created=int(state.wall_clock()),
            model=state.spec.served_model_name,
            fingerprint=state.release.fingerprint,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._prepared.api.stream else self._whole
        with self._state.live.hold(self._trace.request_id):
            await run_while_connected(answer, receive, send)

    async def _whole(self, send: Send) -> None:
        merged = Piece(logprobs=[] if self._prepared.api.logprobs is not None else None)
        async with Generation(self._prepared, state=self._state, trace=self._trace) as generation:
            while merged.finish is None:
                _append(merged, await generation.next_piece())
            usage = generation.answer.usage
        body = msgspec.json.encode(self._completion(merged, usage.to_json_value()))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _completion(self, merged: Piece, usage: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": merged.text, "refusal": None},
            "logprobs": None if merged.logprobs is None else {"content": merged.logprobs},
            "finish_reason": merged.finish,
        }
        value = {**self._envelope.to_json_value("chat.completion"), "choices": [choice], "usage": usage}
        if self._prepared.api.return_token_ids:
            choice["token_ids"] = merged.token_ids
            value |= {"prompt_token_ids": self._prepared.prompt.ids, "prompt_text": self._prepared.prompt.text}
        return value

    async def _stream(self, send: Send) -> None:
        api = self._prepared.api
        stream = ChatStream(
            self._envelope,
            include_usage=api.include_usage,
            continuous_usage=api.continuous_usage,
            return_token_ids=api.return_token_ids,
        )
        async with Generation(self._prepared, state=self._state, trace=self._trace) as generation:
            first = await generation.next_piece()
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            outbox = Outbox(bytes_max=self._state.limits.unread_bytes_max)
            outbox.put(stream.role(self._prepared.prompt, generation.answer.usage))
            await self._relay(generation, first, stream, outbox, send)

    async def _relay(
        self, generation: Generation, first: Piece, stream: ChatStream, outbox: Outbox, send: Send
    ) -> None:
        """Two tasks: one takes events from the engine as fast as they come, one writes as fast as the client reads. A slow
        client fills its own outbox and nothing else."""
        limits = self._state.limits
        pump = asyncio.create_task(self._pump(generation, first, stream, outbox))
        write = asyncio.create_task(
            drain_to_client(
                outbox, send, stall_seconds_max=limits.stall_seconds_max, comment_seconds=limits.comment_seconds
            )
        )
        try:
            await _first_failure_or_all(pump, write)
        except SlowReaderError as error:
            self._trace.error = error
            self._state.metrics.stream_aborts.labels(cause="slow_reader").inc()
            raise
        finally:
            for task in (pump, write):
                task.cancel()
            await asyncio.gather(pump, write, return_exceptions=True)

    async def _pump(self, generation: Generation, first: Piece, stream: ChatStream, outbox: Outbox) -> None:
        merger, piece = PieceMerger(), first
        try:
            while True:
                for ready in merger.add(piece):
                    event = stream.content if ready.finish is None else stream.finish
                    outbox.put(event(ready, generation.answer.usage))
                if piece.finish is not None:
                    break
                # The writer's turn: a burst of events must not look like a client that does not read.
                await asyncio.sleep(0)
                piece = await generation.next_piece()
            outbox.put(stream.end(generation.answer.usage))
        except SlowReaderError:
            raise
        except PratiqueError as error:
            self._fail(error, stream, outbox)
        except Exception:  # noqa: BLE001 - the client is told in its stream, the reason is in the log
            _log.exception("Request %s failed while streaming", self._trace.request_id)
            self._fail(InternalError("The server failed while answering"), stream, outbox)
        finally:
            # Before the client has read the rest: its blocks are needed by others.
            await generation.close()
            outbox.close()

    def _fail(self, error: PratiqueError, stream: ChatStream, outbox: Outbox) -> None:
        self._trace.error = error
        self._state.metrics.stream_aborts.labels(cause=error.code).inc()
        if not stream.ended:
            outbox.put(stream.error(error))


def _append(merged: Piece, piece: Piece) -> None:
    merged.text += piece.text
    merged.token_ids += piece.token_ids
    merged.finish = piece.finish
    if merged.logprobs is not None and piece.logprobs is not None:
        merged.logprobs += piece.logprobs


async def _first_failure_or_all(*tasks: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def run_while_connected(answer: Callable[[Send], Awaitable[None]], receive: Receive, send: Send) -> None:
    """Run ``answer``; when the client goes away first, cancel it, wait for its clean-up and raise ``CancelledByClientError``."""
    complete = False

    async def watched_send(message: Message) -> None:
        nonlocal complete
        complete = complete or (message["type"] == "http.response.body" and not message.get("more_body", False))
        await send(message)

    work = asyncio.ensure_future(answer(watched_send))
    gone = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        # After the last byte the server reports a disconnect as well; then the work is only tidying up.
        if not work.done() and not complete:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise CancelledByClientError("The client went away")
        await work
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
