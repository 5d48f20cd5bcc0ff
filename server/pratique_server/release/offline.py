"""Build and record a release without a server: the same loading as a pod's, in one process, no HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from pratique_contract.manifest import ReleaseManifest, RuntimeSection
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.engine.local import start_local_engine
from pratique_server.engine.protocol import Engine, EngineIdentity
from pratique_server.errors import TemplateError
from pratique_server.release.builder import build_manifest
from pratique_server.release.errors import RecordingError
from pratique_server.release.recorder import Recorder
from pratique_server.text.renderer import Renderer
from pratique_server.text.template import load_chat_template
from pratique_server.text.tokenizer import Tokenizer

NO_TEMPLATE: Final = "The model has no chat template: declare one (chatTemplate), since golden cases are chat requests"


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
    engine = await start_local_engine(spec)
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


async def build_release(spec: ServingSpec) -> ReleaseManifest:
    """The manifest of what the spec loads."""
    async with load_release(spec) as release:
        return release.manifest


async def record_release(spec: ServingSpec) -> ReleaseRecord:
    """The full record. Byte-identical for the same files, code and kind of device: of the host it keeps only the device class."""
    async with load_release(spec) as release:
        template = release.renderer.template
        if template is None:
            raise RecordingError(NO_TEMPLATE)
        recorder = Recorder(
            engine=release.engine,
            identity=release.identity,
            special_tokens=release.manifest.special_tokens,
            renderer=release.renderer,
            decoder=release.renderer.tokenizer,
            refused_errors=(TemplateError,),
            prompt_tokens_max=spec.limits.max_prompt_tokens,
            output_tokens_max=spec.limits.max_output_tokens,
        )
        golden = await recorder.record()
        runtime = RuntimeSection(device_class=release.identity.device_class)
        return ReleaseRecord(
            manifest=release.manifest.model_copy(update={"runtime": runtime}),
            golden=golden,
            chat_template=template.text,
        )
