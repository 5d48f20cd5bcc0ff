"""Proves each loaded release before it serves, and looks after it while it does: puts gate, record desk and re-verification together.

Under TrustFirst the record to match may appear only later: the first pods make their own, the operator keeps one, and every pod that
has none then holds what it loaded against that one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pratique_contract.canonical import short_digest
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import Verdict
from pratique_server.engine.protocol import EngineStats
from pratique_server.gate.blocks import check_accounts
from pratique_server.gate.cases import CaseRunner
from pratique_server.gate.client import ProbeClient
from pratique_server.gate.conclude import tell_verdict
from pratique_server.gate.gate import Gate, own_address
from pratique_server.gate.holder import VerdictHolder
from pratique_server.gate.record_file import RECORDED_PATH, FoundRecord, find_record
from pratique_server.life.idle import IdleTime
from pratique_server.life.loading import Loaded
from pratique_server.life.recording import RecordDesk
from pratique_server.life.reverification import UNANSWERED, Reverifier, Step
from pratique_server.metrics import Metrics

# A prefill step of this many tokens is about as long as a few decode steps: nobody notices that it could not be cut.
SHORT_PROMPT_TOKENS_MAX: Final = 128
# How long after a fault of its own looking after a pod goes on.
AGAIN_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


class Verification:
    """``spec`` names the API port that really listens. ``recorded_path`` is a parameter for tests."""

    def __init__(
        self,
        spec: ServingSpec,
        *,
        probe_token: str,
        holder: VerdictHolder,
        desk: RecordDesk,
        idle: IdleTime,
        metrics: Metrics,
        recorded_path: Path = RECORDED_PATH,
        recorded_poll_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spec = spec
        self._probe_token = probe_token
        self._holder = holder
        self._desk = desk
        self._idle = idle
        self._metrics = metrics
        self._recorded_path = recorded_path
        self._recorded_poll_seconds = recorded_poll_seconds
        self._sleep = sleep
        # What an earlier epoch of this process proved, wherever that record came from: the next one must still match it. A pod is one
        # release for as long as it lives, also when the record it was given has gone or was exchanged meanwhile.
        self._before: ReleaseRecord | None = None
        self._proved: ReleaseRecord | None = None
        self._was_given = False

    async def verify(self, loaded: Loaded) -> Verdict:
        """The verdict on a release nobody is served by yet."""
        self._desk.open(loaded)
        found = await asyncio.to_thread(find_record, self._spec.release, self._recorded_path)
        self._was_given = found.record is not None
        return await self._prove(loaded, self._as_before(found))

    def _as_before(self, found: FoundRecord) -> FoundRecord:
        before = self._before
        if before is None or found.problem is not None:
            return found
        if found.record is None:
            return replace(found, record=before)
        if found.approved and found.record.fingerprint != before.fingerprint:
            problem = (
                f"The release record given is of {short_digest(found.record.fingerprint)}, and this pod proved to be "
                f"{short_digest(before.fingerprint)} when it started: it was exchanged while the pod ran. Delete the pod"
            )
            return replace(found, record=None, problem=problem)
        return found

    def lose(self) -> None:
        """The engine is gone, and what was proved with it."""
        self._proved = None
        self._desk.close()

    async def look_after(self, loaded: Loaded) -> None:
        """After a passed verdict, until it is cancelled. Never raises for what it does itself: the pod goes on serving."""
        watch = asyncio.create_task(self._guarded("the recorded release", partial(self._watch_recorded, loaded)))
        reverify = asyncio.create_task(self._guarded("re-verification", partial(self._reverify, loaded)))
        try:
            await asyncio.gather(watch, reverify)
        finally:
            for task in (watch, reverify):
                task.cancel()
            await asyncio.gather(watch, reverify, return_exceptions=True)

    async def _prove(self, loaded: Loaded, found: FoundRecord, *, serving: bool = False) -> Verdict:
        gate = Gate(
            self._spec,
            found,
            manifest=loaded.manifest,
            engine=loaded.engine,
            renderer=loaded.renderer,
            probe_token=self._probe_token,
            make_record=self._desk.make_first,
            serving=serving,
        )
        verdict = await gate.run()
        if serving and not verdict.passed and verdict.reason in UNANSWERED:
            return verdict  # nothing was learned: what was proved before stands
        self._proved = gate.record if verdict.passed else None
        if self._proved is None:
            self._desk.open(loaded)  # what it may have made does not count
            return verdict
        self._desk.give(self._proved)
        self._before = self._proved
        return verdict

    async def _watch_recorded(self, loaded: Loaded) -> None:
        """Under TrustFirst without a record: match the one that is kept, as soon as one is."""
        if self._spec.release.policy != "TrustFirst" or self._was_given:
            return
        while True:
            await self._sleep(self._recorded_poll_seconds)
            found = await asyncio.to_thread(find_record, self._spec.release, self._recorded_path)
            if found.record is not None or found.problem is not None:
                break
        if found.record == self._proved:
            _log.info("The recorded release is the one this pod has proved fingerprint=%s", loaded.manifest.fingerprint)
            return
        while (verdict := await self._prove(loaded, found, serving=True)).reason in UNANSWERED:
            # Users keep it busy: that is no reason to take it from them.
            _log.warning("Could not compare with the recorded release yet: %s", verdict.one_line())
            await self._sleep(self._recorded_poll_seconds)
        if verdict.passed and not self._holder.current().passed:
            return  # re-verification has taken the pod out meanwhile, and this says nothing against that
        self._holder.set(verdict)
        tell_verdict(verdict)

    async def _reverify(self, loaded: Loaded) -> None:
        client = ProbeClient(
            base_url=own_address(self._spec), probe_token=self._probe_token, model=self._spec.served_model_name
        )
        reverifier = Reverifier(
            self._spec.release.reverify,
            steps=partial(self._steps, loaded, client),
            idle=self._idle,
            holder=self._holder,
            counter=self._metrics.reverifications,
            sleep=self._sleep,
        )
        try:
            await reverifier.run()
        finally:
            await client.close()

    def _steps(self, loaded: Loaded, client: ProbeClient, whole: bool) -> Sequence[Step]:
        """One round: the cases of the record that was proved (those with a short prompt unless the round is whole), then the engine's
        block accounts."""
        runner = CaseRunner(client, manifest=loaded.manifest, renderer=loaded.renderer)
        cases = self._proved.golden.cases if self._proved is not None else ()
        short = [case for case in cases if len(case.prompt_ids) <= SHORT_PROMPT_TOKENS_MAX]

        async def check_blocks() -> None:
            stats: EngineStats = await loaded.engine.stats()
            check_accounts(stats)

        return [*(partial(runner.run, case) for case in (short if short and not whole else cases)), check_blocks]

    async def _guarded(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Until the work is done: a verified pod serves on when it breaks, but is not left alone for good."""
        while True:
            try:
                return await work()
            except Exception:  # noqa: BLE001 - see above
                _log.exception("Could not go on with %s; again in %g s", what, AGAIN_SECONDS)
            await self._sleep(AGAIN_SECONDS)
