"""From a loaded release to its record, and from a record to the same record with one more device's outputs.

Whoever has loaded the release calls this: the command line in its own process, a pod with its own engine. The bytes are the same.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from pratique_contract.compare import PartDifference, compare_manifests, shorten
from pratique_contract.golden import GoldenCase, GoldenOutput
from pratique_contract.manifest import ReleaseManifest, RuntimeSection
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.artifacts.errors import RecordingError
from pratique_server.engine.protocol import Engine, EngineError
from pratique_server.errors import PratiqueError
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.outputs import check_recorded, require_enough
from pratique_server.gate.rendering import check_refused, check_rendering, conversations_of
from pratique_server.release.greedy import GreedyRun, run_greedy
from pratique_server.release.recorder import Generate, Progress, Recorder
from pratique_server.text.renderer import Renderer

NO_TEMPLATE: Final = "The model has no chat template: declare one (chatTemplate), since golden cases are chat requests"
# Anything else that differs is another release, and its outputs say nothing about the recorded one.
_MAY_DIFFER: Final = ("engine.", "quantization.dtype")


def engine_generate(engine: Engine, stop_ids: Sequence[int], *, prefix: str = "record") -> Generate:
    """Run requests on the engine as they come."""

    async def generate(prompt_ids: Sequence[int], max_tokens: int, name: str) -> GreedyRun:
        return await run_greedy(
            engine, prompt_ids=prompt_ids, max_tokens=max_tokens, stop_ids=stop_ids, request_id=f"{prefix}-{name}"
        )

    return generate


def make_recorder(
    spec: ServingSpec,
    manifest: ReleaseManifest,
    renderer: Renderer,
    generate: Generate,
    *,
    progress: Progress | None = None,
) -> Recorder:
    """A recorder that asks for nothing this release's limits refuse."""
    build = partial(Recorder, progress=progress) if progress is not None else Recorder
    return build(
        generate=generate,
        manifest=manifest,
        renderer=renderer,
        decoder=renderer.tokenizer,
        prompt_tokens_max=spec.limits.max_prompt_tokens,
        output_tokens_max=spec.limits.max_output_tokens,
    )


async def make_record(
    spec: ServingSpec,
    manifest: ReleaseManifest,
    renderer: Renderer,
    generate: Generate,
    *,
    progress: Progress | None = None,
) -> ReleaseRecord:
    """The full record. Byte-identical for the same files, code and kind of device: of the host it keeps only the device class.
    Raises ``RecordingError``, and what the engine raises."""
    if renderer.template is None:
        raise RecordingError(NO_TEMPLATE)
    golden = await make_recorder(spec, manifest, renderer, generate, progress=progress).record()
    runtime = RuntimeSection(device_class=manifest.runtime.device_class)
    return ReleaseRecord(
        manifest=manifest.model_copy(update={"runtime": runtime}), golden=golden, chat_template=renderer.template.text
    )


async def add_outputs(
    spec: ServingSpec, record: ReleaseRecord, manifest: ReleaseManifest, renderer: Renderer, generate: Generate
) -> ReleaseRecord:
    """The record with this device's output of every case, and nothing else changed; the very record when it has them already.

    Raises ``RecordingError`` when another release is loaded, when it renders otherwise, or when its outputs are not what the
    recorded ones allow on another device: a broken kernel must not become approved because it was recorded.
    """
    require_same_release(record.manifest, manifest)
    gaps = record.find_gaps()
    if gaps:
        raise RecordingError(f"The record proves too little to be added to: {'; '.join(gaps)}")
    try:
        for conversation in conversations_of(record):
            check_rendering(conversation, renderer, renderer.tokenizer.decode)
        for fixture in record.golden.refused:
            check_refused(fixture, renderer)
        cases, compared = [], 0
        recorder = make_recorder(spec, manifest, renderer, generate)
        for case in record.golden.cases:
            output = await recorder.add_output(case)
            compared += check_recorded(output, case, renderer.tokenizer.decode)
            cases.append(_with_output(case, output))
        require_enough(compared, dtype=manifest.quantization.dtype, device_class=manifest.runtime.device_class)
    except CheckFailedError as error:
        raise RecordingError(f"This is not the recorded release on another device: {error.message}") from error
    except (EngineError, PratiqueError) as error:
        raise RecordingError(f"A recorded case cannot be run here: {error}") from error
    return record.model_copy(update={"golden": record.golden.model_copy(update={"cases": tuple(cases)})})


def require_same_release(recorded: ReleaseManifest, loaded: ReleaseManifest) -> tuple[PartDifference, ...]:
    """What may differ and does (engine, dtype); raises ``RecordingError`` naming everything that may not."""
    differences = compare_manifests(recorded, loaded)
    wrong = [
        f"{part.part}.{field.path} ({shorten(field.expected)} is recorded, {shorten(field.observed)} is loaded)"
        for part in differences
        for field in part.fields
        if not f"{part.part}.{field.path}".startswith(_MAY_DIFFER)
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise RecordingError(f"Another release is loaded than the recorded one: {'; '.join(wrong[:5])}{more}")
    return differences


def _with_output(case: GoldenCase, output: GoldenOutput) -> GoldenCase:
    known = case.exact_output(dtype=output.dtype, device_class=output.device_class, engine_build=output.engine_build)
    return case if known is not None else case.model_copy(update={"outputs": (*case.outputs, output)})
