"""One admitted request between the engine's first event and the return of its blocks.

Owns the engine's iterator: whatever ends the request (finish, stop string, deadline, disconnect, error), ``close`` cancels it in
the engine. Engine errors become the server's own here; nothing above sees an ``EngineError``.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from pratique_server import errors
from pratique_server.api.admission import require_still_admitted
from pratique_server.api.answer import Answer, Piece
from pratique_server.api.pipeline import PreparedChat
from pratique_server.api.state import ApiState
from pratique_server.api.trace import RequestTrace
from pratique_server.engine import protocol
from pratique_server.engine.protocol import StepEvent

_log = logging.getLogger(__name__)


class Generation:
    """Use as ``async with``; ``next_piece`` until one has ``finish``."""

    def __init__(self, prepared: PreparedChat, *, state: ApiState, trace: RequestTrace) -> None:
        # In one step with what is taken of the state and given to the engine: nothing can come in between.
        require_still_admitted(trace, state)
        api, execution = prepared.api, prepared.execution
        self._request_id = execution.request_id
        self._deadline = prepared.deadline
        self._state = state
        self._trace = trace
        self._engine = state.engine.get()
        self._events: AsyncIterator[StepEvent] = self._engine.start(execution)
        self._finished_in_engine = False
        self._closed = False
        self.answer = Answer(
            state.renderer.tokenizer,
            prompt_tokens=len(execution.prompt_ids),
            stop=api.stop,
            min_tokens=execution.min_tokens,
            logprobs=api.logprobs is not None,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def next_piece(self) -> Piece:
        """The next event as the client sees it; may be without text. Raises a ``PratiqueError``."""
        try:
            async with asyncio.timeout_at(self._deadline.at):
                event = await anext(self._events)
        except StopAsyncIteration as error:
            self._finished_in_engine = True
            raise errors.EngineUnavailableError("The engine ended the answer without a reason") from error
        except TimeoutError as error:
            raise self._deadline.error() from error
        except protocol.EngineError as error:
            self._finished_in_engine = not isinstance(error, protocol.EngineDeadError)
            raise self._translate(error) from error
        # Before its text is anybody's: the pod may have been found out in the middle of an answer.
        require_still_admitted(self._trace, self._state)
        self._finished_in_engine = event.finish is not None
        self._trace.note_event(event, self._state.clock())
        piece = self.answer.push(event)
        self._trace.output_tokens = self.answer.usage.completion
        self._trace.finish_reason = piece.finish
        return piece

    async def close(self) -> None:
        """Give back what the engine holds. Bounded in time, idempotent, never raises: teardown must not hide the first error."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(self._state.limits.cancel_seconds_max):
                if not self._finished_in_engine:
                    await self._engine.cancel(self._request_id)
                close = getattr(self._events, "aclose", None)
                if close is not None:
                    await close()
        except Exception:  # noqa: BLE001 - see the docstring
            _log.exception("Could not cancel request %s in the engine", self._request_id)
        self._trace.cleaned_up_at = self._state.clock()

    def _translate(self, error: protocol.EngineError) -> errors.PratiqueError:
        match error:
            case protocol.EngineOverloadedError():
                return errors.SaturatedError("The queue is full; try again later")
            case protocol.RequestTooLargeError():
                return errors.ContextLengthError(str(error), param="max_tokens")
            case protocol.RequestInvalidError():
                return errors.InvalidRequestError(str(error))
            case protocol.DeadlineExceededError():
                return self._deadline.error()
            case protocol.EngineDeadError() | protocol.RequestAbortedError() if self._state.status.draining:
                return errors.DrainingError("The pod stopped before the answer was complete")
            case protocol.EngineDeadError():
                return errors.EngineUnavailableError("The engine stopped; the answer cannot go on")
            case protocol.RequestAbortedError():
                return errors.EngineUnavailableError("The engine gave the request up")
            case _:
                _log.error("Engine error in request %s: %s", self._request_id, error)
                return errors.InternalError("The engine failed on this request")
