"""The pod's own release record: made with its own engine when somebody asks for it, one at a time, in time no user wants.

``RecordDesk`` is what the management port reads and asks, from its own thread; everything else happens in the event loop. What
it holds belongs to one epoch of the engine: files may have changed before the next.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from pratique_contract.canonical import digest_bytes
from pratique_contract.record import RecordError, ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.artifacts.errors import ReleaseError
from pratique_server.engine.protocol import EngineError
from pratique_server.errors import PratiqueError
from pratique_server.gate.making import add_outputs, engine_generate, make_record
from pratique_server.life.idle import GaveWayError, IdleTime
from pratique_server.life.loading import Loaded
from pratique_server.release.greedy import GreedyRun
from pratique_server.release.recorder import Generate

# All of one recording, waiting for idle time included: who asks gets an answer the same hour.
MAKING_SECONDS_MAX: Final = 1800.0
# How often one request may be cut by users and begun again before the pod counts as too busy to record.
ATTEMPTS_MAX: Final = 50

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RecordAnswer:
    """What ``/record`` says: a record's bytes, or a sentence."""

    status: int
    body: bytes

    @classmethod
    def say(cls, status: int, message: str) -> "RecordAnswer":
        return cls(status=status, body=json.dumps({"message": message}, ensure_ascii=False).encode())


@dataclass
class _Asked:
    """What somebody asked for with POST, by the digest of what they sent. ``answer`` is 202 until ``done``."""

    of: str
    answer: RecordAnswer
    done: bool = False


NOTHING_LOADED: Final = RecordAnswer.say(503, "Nothing is loaded yet: ask again when the pod has a verdict")
NOT_MADE: Final = RecordAnswer.say(409, "This pod has made no record: POST asks it to")
NOT_ASKED: Final = RecordAnswer.say(409, "This pod is not making that record (any more): POST asks it to")
BUSY: Final = RecordAnswer.say(503, "This pod is making another record: ask again later")
# What a POST without a body is about.
OF_ITSELF: Final = digest_bytes(b"")


class RecordDesk:
    """``open`` for each loaded release, ``close`` when it is lost.

    Whoever reaches the port can POST, so what comes of that is told to those who name it and never takes the place of the record that
    this pod has proved: that one is what the operator keeps under TrustFirst.
    """

    def __init__(self, spec: ServingSpec, idle: IdleTime) -> None:
        self._spec = spec
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        self._task: asyncio.Task[None] | None = None
        self._making_first = False
        self._own = NOTHING_LOADED
        self._asked: _Asked | None = None

    # From any thread

    def answer(self, of: str | None = None) -> RecordAnswer:
        """GET: this pod's own record; with ``of`` what came of the POST whose body has this digest."""
        own, asked = self._own, self._asked
        if asked is not None and asked.of == (of or OF_ITSELF) and (of is not None or own is NOT_MADE):
            return asked.answer
        return own if of in (None, OF_ITSELF) else NOT_ASKED

    def ask(self, body: bytes) -> RecordAnswer:
        """POST: begin, unless it has begun. With a record as its body: that one, with this pod's outputs added. The body is read
        later and elsewhere: the thread that asks has probes to answer."""
        of = digest_bytes(body)
        with self._lock:
            if self._loaded is None:
                return NOTHING_LOADED
            asked = self._asked
            if self._making_first:
                return self._own if of == OF_ITSELF else BUSY
            if asked is not None and not asked.done:
                return asked.answer if asked.of == of else BUSY
            if asked is not None and asked.of == of and asked.answer.status == HTTPStatus.OK:
                return asked.answer  # the same files give the same record
            begun = _being_made("ask again with GET")
            self._asked = asked = _Asked(of, begun)
        self._loop.call_soon_threadsafe(self._begin, asked, body)
        return begun

    # In the event loop

    def open(self, loaded: Loaded) -> None:
        self.close()
        self._loaded = loaded
        self._own = NOT_MADE

    def close(self) -> None:
        with self._lock:
            self._loaded, self._own, self._asked = None, NOTHING_LOADED, None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def give(self, record: ReleaseRecord) -> None:
        """Show a record that this pod has proved: given to it, or made by it."""
        self._own = _show(record)

    async def make_first(self) -> ReleaseRecord:
        """For the gate, before anybody is served: nothing to give way to. Raises ``RecordingError`` or ``EngineError``."""
        loaded = self._require_loaded()
        self._making_first = True
        try:
            return await make_record(
                self._spec, loaded.manifest, loaded.renderer, self._at_once(loaded), progress=self._tell_first
            )
        finally:
            self._making_first = False

    def _tell_first(self, message: str) -> None:
        self._own = _being_made(message)

    def _begin(self, asked: _Asked, body: bytes) -> None:
        if self._loaded is None or asked is not self._asked:
            return  # the release is lost, and what was asked with it
        asked.answer = _being_made("waiting for idle time")
        self._task = asyncio.create_task(self._make(self._loaded, asked, body))

    async def _make(self, loaded: Loaded, asked: _Asked, body: bytes) -> None:
        def tell(message: str) -> None:
            asked.answer = _being_made(message)

        asked.answer = await self._try_to_make(loaded, body, tell)
        asked.done = True

    async def _try_to_make(self, loaded: Loaded, body: bytes, tell: Callable[[str], None]) -> RecordAnswer:
        generate = self._when_idle(loaded)
        try:
            base = await asyncio.to_thread(ReleaseRecord.from_json, body) if body else None
            async with asyncio.timeout(MAKING_SECONDS_MAX):
                if base is None:
                    record = await make_record(self._spec, loaded.manifest, loaded.renderer, generate, progress=tell)
                else:
                    record = await add_outputs(self._spec, base, loaded.manifest, loaded.renderer, generate)
            _log.info("Made a release record fingerprint=%s", record.fingerprint)
            return _show(record)
        except TimeoutError:
            return RecordAnswer.say(
                409, f"No record could be made in {MAKING_SECONDS_MAX:.0f} s: this pod is never idle for long enough"
            )
        except RecordError as error:
            return RecordAnswer.say(409, str(error))
        except (ReleaseError, EngineError, PratiqueError, GaveWayError) as error:
            return RecordAnswer.say(409, f"No record can be made of this release: {error}")
        except Exception as error:  # noqa: BLE001 - whoever asked must be told
            _log.exception("Could not make a release record")
            return RecordAnswer.say(409, f"Making the record failed: {error!r}")

    def _require_loaded(self) -> Loaded:
        assert self._loaded is not None  # the gate runs between open and close
        return self._loaded

    def _at_once(self, loaded: Loaded) -> Generate:
        return engine_generate(loaded.engine, loaded.manifest.special_tokens.stop_ids)

    def _when_idle(self, loaded: Loaded) -> Generate:
        """Each request waits for its own idle moment and is begun again when a user cuts it."""
        generate = self._at_once(loaded)

        async def patient(prompt_ids: Sequence[int], max_tokens: int, name: str) -> GreedyRun:
            for attempt in range(ATTEMPTS_MAX):
                try:
                    return await self._idle.run(_bind(generate, prompt_ids, max_tokens, f"{name}-{attempt}"))
                except GaveWayError:
                    continue
            raise GaveWayError(f"users kept coming {ATTEMPTS_MAX} times")

        return patient


def _bind(
    generate: Generate, prompt_ids: Sequence[int], max_tokens: int, name: str
) -> "Callable[[], asyncio.Future[GreedyRun]]":
    return lambda: asyncio.ensure_future(generate(prompt_ids, max_tokens, name))


def _being_made(message: str) -> RecordAnswer:
    return RecordAnswer.say(202, f"The record is being made: {message}")


def _show(record: ReleaseRecord) -> RecordAnswer:
    try:
        return RecordAnswer(status=200, body=record.to_json().encode())
    except RecordError as error:
        return RecordAnswer.say(409, str(error))
