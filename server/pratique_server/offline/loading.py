"""Build and record a release without a server: the same loading as a pod's, in one process, no HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pratique_contract.manifest import ReleaseManifest
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.engine.local import start_local_engine
from pratique_server.engine.protocol import Engine, EngineIdentity, LoadError
from pratique_server.gate.making import add_outputs, engine_generate, make_record
from pratique_server.release.builder import build_manifest
from pratique_server.release.recorder import Generate, Progress
from pratique_server.text.renderer import Renderer
from pratique_server.text.template import load_chat_template
from pratique_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedRelease:
    """Everything of a release that has been loaded."""

    engine: Engine
    identity: EngineIdentity
    manifest: ReleaseManifest
    renderer: Renderer


@asynccontextmanager
async def load_release(spec: ServingSpec) -> AsyncIterator[LoadedRelease]:
    """Load engine, tokenizer and template; close the engine at the end. Raises ``EngineError``, ``TokenizerError``,
    ``TemplateError`` or ``ManifestError`` with a sentence."""
    template = load_chat_template(spec)
    tokenizer = Tokenizer.load((spec.tokenizer or spec.model).path)
    engine = await _start_engine(spec)
    try:
        identity = await engine.identity()
        yield LoadedRelease(
            engine=engine,
            identity=identity,
            manifest=build_manifest(spec, identity, tokenizer, template),
            renderer=Renderer(template, tokenizer),
        )
    finally:
        await engine.close()


async def _start_engine(spec: ServingSpec) -> Engine:
    """The engine names the file and not the folder: a pod has one, a person on a desk may have given several."""
    try:
        return await start_local_engine(spec)
    except LoadError as error:
        if error.part == "adapters":  # these name theirs
            raise
        raise LoadError(f"{spec.model.path}: {error}", part=error.part) from error


async def build_release(spec: ServingSpec) -> ReleaseManifest:
    """The manifest of what the spec loads."""
    async with load_release(spec) as release:
        return release.manifest


async def record_release(spec: ServingSpec, *, progress: Progress | None = None) -> ReleaseRecord:
    """The full record of what the spec loads; see ``make_record``."""
    async with load_release(spec) as release:
        return await make_record(spec, release.manifest, release.renderer, _generate(release), progress=progress)


async def extend_record(spec: ServingSpec, record: ReleaseRecord) -> tuple[ReleaseRecord, ReleaseManifest]:
    """The record with this device's outputs added, and the manifest of what was loaded here; see ``add_outputs``."""
    async with load_release(spec) as release:
        extended = await add_outputs(spec, record, release.manifest, release.renderer, _generate(release))
        return extended, release.manifest


def _generate(release: LoadedRelease) -> Generate:
    return engine_generate(release.engine, release.manifest.special_tokens.stop_ids)
