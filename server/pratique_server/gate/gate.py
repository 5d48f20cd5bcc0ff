"""Run every check in its order and come to one verdict.

In go the record to match, the loaded manifest, the engine and this pod's own address; out comes a verdict, always. The first
failed check decides; what was not run says so. The whole run has one time budget, which waiting for a turn under overload
does not use up: busy is not wrong.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from pratique_contract.golden import GoldenCase
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import CheckResult, Verdict, VerdictResult
from pratique_server.engine.protocol import Engine, EngineError, EngineStats
from pratique_server.gate.blocks import check_accounts, wait_for_blocks
from pratique_server.gate.cases import CaseRunner, LoadedRenderer
from pratique_server.gate.client import ProbeClient
from pratique_server.gate.company import Invariance, run_in_company
from pratique_server.gate.conclude import build_verdict
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.identity import check_manifest, check_trusted_fingerprint, describe_golden, require_record
from pratique_server.gate.outputs import require_enough
from pratique_server.gate.record_file import FoundRecord
from pratique_server.gate.rendering import check_all_renderings
from pratique_server.gate.trust import TrustFirst

MakeRecord = Callable[[], Awaitable[ReleaseRecord]]

# Making a record asks for many answers; it happens once in a service's life, and before anybody waits for this pod.
RECORDING_SECONDS_MAX: Final = 600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A named step. ``run`` returns what it found, in a few words, or raises."""

    name: str
    run: Callable[[], Awaitable[str]]


class Gate:
    """One verification of one loaded release. ``make_record`` is for the first pod under TrustFirst, which has none to match.
    ``serving`` says that users are being served meanwhile: then blocks in use are theirs, and are not counted."""

    def __init__(
        self,
        spec: ServingSpec,
        found: FoundRecord,
        *,
        manifest: ReleaseManifest,
        engine: Engine,
        renderer: LoadedRenderer,
        probe_token: str,
        make_record: MakeRecord | None = None,
        serving: bool = False,
        base_url: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._spec = spec
        self._found = found
        self._record = found.record
        self._manifest = manifest
        self._engine = engine
        self._renderer = renderer
        self._make_record = make_record
        self._serving = serving
        self._now = now
        self._clock = clock
        self._sleep = sleep
        self._client = ProbeClient(
            base_url=base_url or own_address(spec), probe_token=probe_token, model=spec.served_model_name
        )
        self._runner = CaseRunner(
            self._client, manifest=manifest, renderer=renderer, waited=self._extend_budget, sleep=sleep
        )
        self._baseline: EngineStats | None = None
        self._budget: asyncio.Timeout | None = None

    @property
    def record(self) -> ReleaseRecord | None:
        """What was proved: the record found, or after a first run under TrustFirst the one made here."""
        return self._record

    async def run(self) -> Verdict:
        """The verdict; never raises but when it is cancelled. Run it once."""
        started = self._clock()
        checks = [_Check(name="record", run=self._check_record), *self._plan()]
        done: list[CheckResult] = []
        failure: CheckFailedError | None = None
        try:
            async with asyncio.timeout(self._spec.probe_timeout_seconds) as self._budget:
                await self._run_checks(checks, done)
        except TimeoutError as error:
            name = checks[len(done)].name
            failure = (
                self._timed_out(name) if self._budget is not None and self._budget.expired() else _broke(name, error)
            )
        except CheckFailedError as error:
            failure = error
        except EngineError as error:
            failure = CheckFailedError(Reason.ENGINE_UNREACHABLE, f"The engine did not answer the gate: {error}")
        except Exception as error:  # noqa: BLE001 - whatever happens, a pod that was not proved must not serve
            failure = _broke(checks[len(done)].name, error)
        finally:
            await self._client.close()
        return build_verdict(
            release=self._spec.release,
            record=self._record,
            manifest=self._manifest,
            check_names=[check.name for check in checks],
            done=done,
            failure=failure,
            approved=self._found.approved,
            checked_at=self._now(),
            duration_ms=_milliseconds(self._clock() - started),
        )

    def _plan(self) -> list[_Check]:
        engine = _Check(name="engine", run=self._check_engine)
        blocks = [] if self._serving else [_Check(name="blocks", run=self._check_blocks)]
        company = [] if self._serving else [_Check(name="company", run=self._check_company)]
        if self._trusts_first:
            first = TrustFirst(
                self._runner, manifest=self._manifest, renderer=self._renderer, make_record=self._make_record
            )
            own = [_Check(name="answer", run=first.check_answer)]
            if self._make_record is not None:
                own.append(_Check(name="own-record", run=partial(self._record_itself, first)))
                own += company
            return [engine, *own, *blocks]
        cases = self._record.golden.cases if self._record is not None else ()
        return [
            _Check(name="manifest", run=self._check_manifest),
            _Check(name="rendering", run=self._check_rendering),
            engine,
            *(_Check(name=f"golden:{case.name}", run=partial(self._check_case, case)) for case in cases),
            _Check(name="compared", run=self._check_compared),
            *company,
            *blocks,
        ]

    @property
    def _trusts_first(self) -> bool:
        nothing_found = self._found.record is None and self._found.problem is None
        return nothing_found and self._spec.release.policy == "TrustFirst"

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
            return "no record yet; the policy is TrustFirst"
        record = require_record(self._spec.release, self._found.record, self._found.problem)
        whose = "" if self._found.approved else ", recorded by the first pod"
        return f"{describe_golden(record.golden)}{whose}"

    async def _check_manifest(self) -> str:
        return check_manifest(self._known, self._manifest, template=self._renderer.template_text)

    async def _check_rendering(self) -> str:
        # In a thread: a template may take its whole time limit, and the probes must go on answering.
        return await asyncio.to_thread(
            check_all_renderings, self._known, self._renderer, self._renderer.tokenizer.decode
        )

    async def _check_engine(self) -> str:
        self._baseline = await self._engine.stats()
        check_accounts(self._baseline)
        return f"{self._baseline.blocks_used} of {self._baseline.blocks_total} blocks in use"

    async def _check_case(self, case: GoldenCase) -> str:
        """One golden case through the public path."""
        return await self._runner.run(case)

    async def _check_compared(self) -> str:
        manifest = self._manifest
        require_enough(
            self._runner.compared, dtype=manifest.quantization.dtype, device_class=manifest.runtime.device_class
        )
        return f"{self._runner.compared} output tokens compared"

    async def _check_company(self) -> str:
        return await run_in_company(
            self._runner,
            self._known.golden.cases,
            invariance=Invariance.of(self._manifest),
            output_tokens_max=self._spec.limits.max_output_tokens,
        )

    async def _record_itself(self, first: TrustFirst) -> str:
        """Time for recording is its own: the budget is for proving."""
        self._extend_budget(RECORDING_SECONDS_MAX)
        started = self._clock()
        self._record, message = await first.record_itself()
        self._extend_budget(self._clock() - started - RECORDING_SECONDS_MAX)
        return message

    async def _check_blocks(self) -> str:
        assert self._baseline is not None  # the engine check ran before
        return await wait_for_blocks(self._engine.stats, self._baseline, sleep=self._sleep)

    def _extend_budget(self, seconds: float) -> None:
        budget = self._budget
        if budget is not None and (when := budget.when()) is not None:
            budget.reschedule(when + seconds)

    @property
    def _known(self) -> ReleaseRecord:
        assert self._record is not None  # the record check ran before
        return self._record

    def _timed_out(self, name: str) -> CheckFailedError:
        refusal = self._runner.last_refusal
        last = f" (last refusal: {refusal})" if refusal else ""
        seconds = self._spec.probe_timeout_seconds
        return CheckFailedError(
            Reason.PROBE_TIMEOUT, f"Check {name} had not ended when the time budget of {seconds:g} s was used up{last}"
        )


def _broke(name: str, error: Exception) -> CheckFailedError:
    """Our own fault, which says nothing about the pod: whatever a server may do wrong has a reason of its own."""
    _log.error("The gate broke in check %s", name, exc_info=error)
    return CheckFailedError(Reason.GATE_FAILED, f"The gate itself broke in check {name}: {error!r}")


def own_address(spec: ServingSpec) -> str:
    """This pod's public port as the pod itself reaches it."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - compared, not bound
    host = everywhere.get(spec.host, f"[{spec.host}]" if ":" in spec.host else spec.host)
    return f"http://{host}:{spec.api_port}"


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)
