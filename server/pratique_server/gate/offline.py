"""Check a release against a record without a server: what ``pratique release verify`` does on a desk.

The same comparisons as the pod's gate (parts, renderings, golden outputs), but the golden cases go to the engine directly: no
HTTP path is proved here, and the verdict says so.
"""

import time
from datetime import UTC, datetime

from pratique_contract.golden import EVENT_ORDER, GoldenCase, Usage
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.verdict import CheckResult, Verdict, VerdictResult
from pratique_server.engine.protocol import EngineError, FinishReason
from pratique_server.gate.conclude import build_verdict
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.identity import check_manifest, require_record
from pratique_server.gate.outputs import check_golden
from pratique_server.gate.rendering import check_rendering, conversations_of
from pratique_server.gate.stream import StreamReport
from pratique_server.release.errors import RecordingError
from pratique_server.release.greedy import run_greedy
from pratique_server.release.offline import LoadedRelease, load_release

NAMES_BEFORE_CASES = ("record", "manifest", "rendering")


async def verify_release(spec: ServingSpec, record: ReleaseRecord) -> Verdict:
    """Load what the spec names and compare it with the record. Raises what ``load_release`` raises."""
    async with load_release(spec) as release:
        started = time.monotonic()
        names = [*NAMES_BEFORE_CASES, *(f"golden:{case.name}" for case in record.golden.cases)]
        done: list[CheckResult] = []
        failure: CheckFailedError | None = None
        try:
            for name in names:
                at = time.monotonic()
                message = await _run_check(name, spec, record, release)
                elapsed = round((time.monotonic() - at) * 1000, 1)
                done.append(CheckResult(name=name, result=VerdictResult.PASS, duration_ms=elapsed, message=message))
        except CheckFailedError as error:
            failure = error
        return build_verdict(
            release=spec.release,
            record=record,
            manifest=release.manifest,
            check_names=names,
            done=done,
            failure=failure,
            approved=True,
            checked_at=datetime.now(UTC),
            duration_ms=round((time.monotonic() - started) * 1000, 1),
        )


async def _run_check(name: str, spec: ServingSpec, record: ReleaseRecord, release: LoadedRelease) -> str:
    if name == "record":
        require_record(spec.release, record, None)
        return f"{len(record.golden.fixtures)} fixtures, {len(record.golden.cases)} golden cases; HTTP not proved here"
    if name == "manifest":
        return check_manifest(record, release.manifest, template=release.renderer.template_text)
    if name == "rendering":
        conversations = conversations_of(record)
        for conversation in conversations:
            check_rendering(conversation, release.renderer, release.renderer.tokenizer.decode)
        return f"{len(conversations)} conversations exact"
    case = next(case for case in record.golden.cases if name == f"golden:{case.name}")
    try:
        report = await replay_case(case, release)
    except (EngineError, RecordingError) as error:
        raise CheckFailedError(
            Reason.OUTPUT_MISMATCH, f"Case {case.name}: the engine gave no answer: {error}"
        ) from error
    check_golden(
        report,
        case,
        dtype=release.identity.dtype,
        device_class=release.identity.device_class,
        engine_build=release.identity.engine_build,
    )
    return f"{len(report.ids)} ids, {report.finish_reason}"


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
