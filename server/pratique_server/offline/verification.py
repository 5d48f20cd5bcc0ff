"""Check a release against a record without a server: what ``pratique release verify`` does on a desk.

The same comparisons as the pod's gate (parts, renderings, golden outputs), but the golden cases go to the engine directly: no
HTTP path is proved here, and the verdict says so.
"""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from pratique_contract.golden import EVENT_ORDER, GoldenCase, Usage
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import CheckResult, Verdict, VerdictResult
from pratique_server.artifacts.errors import RecordingError
from pratique_server.engine.protocol import EngineError, FinishReason
from pratique_server.gate.conclude import build_verdict
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.identity import check_manifest, describe_golden, require_record
from pratique_server.gate.outputs import check_golden, require_enough
from pratique_server.gate.rendering import check_all_renderings
from pratique_server.gate.stream import StreamReport
from pratique_server.offline.loading import LoadedRelease, load_release
from pratique_server.release.greedy import run_greedy


async def verify_release(spec: ServingSpec, record: ReleaseRecord) -> Verdict:
    """Load what the spec names and compare it with the record. Raises what ``load_release`` raises."""
    async with load_release(spec) as release:
        return await _Verification(spec, record, release).run()


class _Verification:
    """One run of the checks over one loaded release."""

    def __init__(self, spec: ServingSpec, record: ReleaseRecord, release: LoadedRelease) -> None:
        self._spec = spec
        self._record = record
        self._release = release
        self._compared = 0

    async def run(self) -> Verdict:
        started = time.monotonic()
        checks: list[tuple[str, Callable[[], Awaitable[str]]]] = [
            ("record", self._check_record),
            ("manifest", self._check_manifest),
            ("rendering", self._check_rendering),
            *((f"golden:{case.name}", partial(self._check_case, case)) for case in self._record.golden.cases),
            ("compared", self._check_compared),
        ]
        done: list[CheckResult] = []
        failure: CheckFailedError | None = None
        try:
            for name, check in checks:
                at = time.monotonic()
                message = await check()
                elapsed = round((time.monotonic() - at) * 1000, 1)
                done.append(CheckResult(name=name, result=VerdictResult.PASS, duration_ms=elapsed, message=message))
        except CheckFailedError as error:
            failure = error
        return build_verdict(
            release=self._spec.release,
            record=self._record,
            manifest=self._release.manifest,
            check_names=[name for name, _ in checks],
            done=done,
            failure=failure,
            approved=True,
            checked_at=datetime.now(UTC),
            duration_ms=round((time.monotonic() - started) * 1000, 1),
        )

    async def _check_record(self) -> str:
        return f"{describe_golden(require_record(self._spec.release, self._record, None).golden)}; HTTP not proved here"

    async def _check_manifest(self) -> str:
        return check_manifest(self._record, self._release.manifest, template=self._release.renderer.template_text)

    async def _check_rendering(self) -> str:
        renderer = self._release.renderer
        return check_all_renderings(self._record, renderer, renderer.tokenizer.decode)

    async def _check_case(self, case: GoldenCase) -> str:
        try:
            report = await replay_case(case, self._release)
        except (EngineError, RecordingError) as error:
            raise CheckFailedError(
                Reason.OUTPUT_MISMATCH, f"Case {case.name}: the engine gave no answer: {error}"
            ) from error
        self._compared += check_golden(
            report,
            case,
            decode=self._release.renderer.tokenizer.decode,
            dtype=self._release.identity.dtype,
            device_class=self._release.identity.device_class,
            engine_build=self._release.identity.engine_build,
        )
        return f"{len(report.ids)} ids, {report.finish_reason}"

    async def _check_compared(self) -> str:
        identity = self._release.identity
        require_enough(self._compared, dtype=identity.dtype, device_class=identity.device_class)
        return f"{self._compared} output tokens compared"


async def replay_case(case: GoldenCase, release: LoadedRelease) -> StreamReport:
    """What the loaded engine answers to a golden case, in the form in which a stream is compared."""
    run = await run_greedy(
        release.engine,
        prompt_ids=case.prompt_ids,
        max_tokens=case.max_tokens,
        stop_ids=release.manifest.special_tokens.stop_ids,
        request_id=f"verify-{case.name}",
    )
    shown = run.ids[:-1] if run.finish is FinishReason.STOP else run.ids
    return StreamReport(
        text=release.renderer.tokenizer.decode(shown),
        pieces=(),
        ids=run.ids,
        prompt_ids=case.prompt_ids,
        logprobs=run.logprobs,
        finish_reason=str(run.finish),
        usage=Usage(prompt_tokens=len(case.prompt_ids), completion_tokens=len(run.ids)),
        events=EVENT_ORDER,
        system_fingerprint=release.manifest.fingerprint,
        model="",
    )
