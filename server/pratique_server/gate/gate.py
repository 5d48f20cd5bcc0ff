"""Run every check in its order and come to one verdict.

In go the approved record, the loaded manifest, the engine and this pod's own address; out comes a verdict, always. The first
failed check decides; what was not run says so. The whole run has one time budget, which waiting for a turn under overload
does not use up: busy is not wrong.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from pratique_contract.golden import GoldenCase
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import CheckResult, Verdict, VerdictResult
from pratique_server.engine.protocol import Engine, EngineError, EngineStats
from pratique_server.gate.blocks import check_accounts, wait_for_blocks
from pratique_server.gate.client import ProbeClient
from pratique_server.gate.conclude import build_verdict
from pratique_server.gate.errors import BusyError, CheckFailedError
from pratique_server.gate.identity import check_manifest, check_trusted_fingerprint, require_record
from pratique_server.gate.outputs import check_answer, check_golden
from pratique_server.gate.rendering import check_rendering, conversations_of
from pratique_server.gate.stream import StreamReport
from pratique_server.release.prompts import FIXTURES
from pratique_server.release.recorder import ConversationRenderer, TokenDecoder

BUSY_RETRY_SECONDS: Final = 0.2
TRUST_FIRST_TOKENS: Final = 8


class LoadedRenderer(ConversationRenderer, Protocol):
    """The server's own renderer with the tokenizer it renders for."""

    @property
    def tokenizer(self) -> TokenDecoder: ...
    @property
    def template_text(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A named step. ``run`` returns what it found, in a few words, or raises."""

    name: str
    run: Callable[[], Awaitable[str]]


class Gate:
    """One verification of one loaded release. ``record_problem`` says why a record could not be read (see ``read_record``)."""

    def __init__(
        self,
        spec: ServingSpec,
        record: ReleaseRecord | None,
        *,
        manifest: ReleaseManifest,
        engine: Engine,
        renderer: LoadedRenderer,
        probe_token: str,
        record_problem: str | None = None,
        base_url: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spec = spec
        self._record = record
        self._record_problem = record_problem
        self._manifest = manifest
        self._engine = engine
        self._renderer = renderer
        self._now = now
        self._clock = clock
        self._sleep = sleep
        self._base_url = base_url or own_address(spec)
        self._probe_token = probe_token
        self._run_id = secrets.token_hex(4)
        self._baseline: EngineStats | None = None
        self._budget: asyncio.Timeout | None = None
        self._last_refusal: str | None = None

    async def run(self) -> Verdict:
        """The verdict; never raises but when it is cancelled."""
        started = self._clock()
        client = ProbeClient(base_url=self._base_url, probe_token=self._probe_token, model=self._spec.served_model_name)
        checks = [_Check(name="record", run=self._check_record), *self._plan(client)]
        done: list[CheckResult] = []
        failure: CheckFailedError | None = None
        try:
            async with asyncio.timeout(self._spec.probe_timeout_seconds) as self._budget:
                await self._run_checks(checks, done)
        except TimeoutError:
            failure = self._timed_out(checks[len(done)].name)
        except CheckFailedError as error:
            failure = error
        except EngineError as error:
            failure = CheckFailedError(Reason.ENGINE_UNREACHABLE, f"The engine did not answer the gate: {error}")
        except Exception as error:  # noqa: BLE001 - whatever happens, a pod that was not proved must not serve
            failure = CheckFailedError(Reason.STREAM_BROKEN, f"The gate could not finish: {error!r}")
        finally:
            await client.close()
        return build_verdict(
            release=self._spec.release,
            record=self._record,
            manifest=self._manifest,
            check_names=[check.name for check in checks],
            done=done,
            failure=failure,
            approved=not self._trusts_first,
            checked_at=self._now(),
            duration_ms=_milliseconds(self._clock() - started),
        )

    def _plan(self, client: ProbeClient) -> list[_Check]:
        before = [_Check(name="engine", run=self._check_engine)]
        after = [_Check(name="blocks", run=self._check_blocks)]
        if self._trusts_first:
            return [*before, _Check(name="answer", run=partial(self._check_own_answer, client)), *after]
        cases = self._record.golden.cases if self._record is not None else ()
        return [
            _Check(name="manifest", run=self._check_manifest),
            _Check(name="rendering", run=self._check_rendering),
            *before,
            *(_Check(name=f"golden:{case.name}", run=partial(self._check_case, client, case)) for case in cases),
            *after,
        ]

    @property
    def _trusts_first(self) -> bool:
        return self._record is None and self._record_problem is None and self._spec.release.policy == "TrustFirst"

    async def _run_checks(self, checks: Sequence[_Check], done: list[CheckResult]) -> None:
        """``done`` grows by each check that passed; the one that raises is the next."""
        for check in checks:
            started = self._clock()
            message = await check.run()
            elapsed = _milliseconds(self._clock() - started)
            done.append(CheckResult(name=check.name, result=VerdictResult.PASS, duration_ms=elapsed, message=message))

    async def _check_record(self) -> str:
        if self._trusts_first:
            check_trusted_fingerprint(self._spec.release, self._manifest)
            return "no record; the policy is TrustFirst"
        record = require_record(self._spec.release, self._record, self._record_problem)
        return f"{len(record.golden.fixtures)} fixtures, {len(record.golden.cases)} golden cases"

    async def _check_manifest(self) -> str:
        return check_manifest(self._approved, self._manifest, template=self._renderer.template_text)

    async def _check_rendering(self) -> str:
        conversations = conversations_of(self._approved)
        for conversation in conversations:
            # In a thread: a template may take its whole time limit, and the probes must go on answering.
            await asyncio.to_thread(check_rendering, conversation, self._renderer, self._renderer.tokenizer.decode)
        return f"{len(conversations)} conversations exact"

    async def _check_engine(self) -> str:
        self._baseline = await self._engine.stats()
        check_accounts(self._baseline)
        return f"{self._baseline.blocks_used} of {self._baseline.blocks_total} blocks in use"

    async def _check_case(self, client: ProbeClient, case: GoldenCase) -> str:
        """One golden case through the public path."""
        report = await self._ask(client, case.messages, max_tokens=case.max_tokens, name=case.name)
        check_answer(report, prompt_tokens=len(case.prompt_ids), name=case.name, decode=self._renderer.tokenizer.decode)
        check_golden(
            report,
            case,
            dtype=self._manifest.quantization.dtype,
            device_class=self._manifest.runtime.device_class,
            engine_build=self._manifest.engine.build,
        )
        return f"{len(report.ids)} ids, {report.finish_reason}"

    async def _check_own_answer(self, client: ProbeClient) -> str:
        """Without a record: the answer must agree with itself and come out the same twice."""
        name, messages, _ = FIXTURES[0]
        rendered = await asyncio.to_thread(self._renderer.render, messages, None)
        reports = []
        for attempt in ("first", "second"):
            report = await self._ask(client, messages, max_tokens=TRUST_FIRST_TOKENS, name=f"{name}-{attempt}")
            check_answer(report, prompt_tokens=len(rendered.ids), name=name, decode=self._renderer.tokenizer.decode)
            reports.append(report)
        if reports[0].ids != reports[1].ids:
            raise CheckFailedError(
                Reason.OUTPUT_MISMATCH,
                "The same greedy request gave two different answers",
                expected=str(list(reports[0].ids)),
                observed=str(list(reports[1].ids)),
            )
        return f"{len(reports[0].ids)} ids, twice the same"

    async def _check_blocks(self) -> str:
        assert self._baseline is not None  # the engine check ran before
        return await wait_for_blocks(self._engine.stats, self._baseline, sleep=self._sleep)

    async def _ask(
        self, client: ProbeClient, messages: Sequence[dict[str, object]], *, max_tokens: int, name: str
    ) -> StreamReport:
        """Send until the server takes it; waiting under overload does not use up the budget."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await client.stream(
                    messages=messages,
                    max_tokens=max_tokens,
                    fingerprint=self._manifest.fingerprint,
                    request_id=f"gate-{self._run_id}-{name}-{attempt}",
                )
            except BusyError as error:
                self._last_refusal = str(error)
                if error.saturated:
                    self._extend_budget(BUSY_RETRY_SECONDS)
                await self._sleep(BUSY_RETRY_SECONDS)

    def _extend_budget(self, seconds: float) -> None:
        budget = self._budget
        if budget is not None and (when := budget.when()) is not None:
            budget.reschedule(when + seconds)

    @property
    def _approved(self) -> ReleaseRecord:
        assert self._record is not None  # the record check ran before
        return self._record

    def _timed_out(self, name: str) -> CheckFailedError:
        last = f" (last refusal: {self._last_refusal})" if self._last_refusal else ""
        seconds = self._spec.probe_timeout_seconds
        return CheckFailedError(
            Reason.PROBE_TIMEOUT, f"Check {name} had not ended when the time budget of {seconds:g} s was used up{last}"
        )


def own_address(spec: ServingSpec) -> str:
    """This pod's public port as the pod itself reaches it."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - compared, not bound
    host = everywhere.get(spec.host, f"[{spec.host}]" if ":" in spec.host else spec.host)
    return f"http://{host}:{spec.api_port}"


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)
