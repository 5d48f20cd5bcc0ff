"""Load what the serving document names, and say what is wrong when it cannot be loaded.

The engine and the text side load at the same time. When both fail, the engine's error is told: the model is the first part.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from pratique_contract import PART_REASONS, Reason, ReleaseManifest, ServingSpec
from pratique_server.artifacts.errors import ManifestError
from pratique_server.engine.protocol import Engine, EngineDeadError, EngineError, EngineIdentity, LoadError
from pratique_server.errors import TemplateError
from pratique_server.release.builder import build_manifest
from pratique_server.text import Renderer, Tokenizer, TokenizerError, load_chat_template


class ServedEngine(Engine, Protocol):
    """An engine with a process of its own, that can be lost and replaced."""

    async def wait_dead(self) -> None:
        """Return when the engine is gone or silent."""
        ...

    async def restart(self) -> EngineIdentity:
        """Begin a new epoch. Raises ``EngineError`` when it does not load."""
        ...


StartEngine = Callable[[ServingSpec], Awaitable[ServedEngine]]


class LoadFailedError(Exception):
    """The release cannot be loaded: the reason code and a sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One loaded release with its engine; the vocabulary size is the model's."""

    engine: ServedEngine
    manifest: ReleaseManifest
    renderer: Renderer
    vocab_size: int


async def load(spec: ServingSpec, start_engine: StartEngine) -> Loaded:
    """Raises ``LoadFailedError``; then nothing is left running."""
    starting = asyncio.ensure_future(start_engine(spec))
    reading = asyncio.ensure_future(asyncio.to_thread(load_renderer, spec))
    try:
        await asyncio.gather(starting, reading, return_exceptions=True)
    except asyncio.CancelledError:
        await _close(starting)
        raise
    try:
        engine = starting.result()
        renderer = reading.result()
        identity = await engine.identity()
        manifest = await asyncio.to_thread(build_manifest, spec, identity, renderer.tokenizer, renderer.template)
    except Exception as error:
        await _close(starting)
        failure = _explain(error)
        if failure is None:
            raise
        raise failure from error
    return Loaded(engine=engine, manifest=manifest, renderer=renderer, vocab_size=identity.vocab_size)


def load_renderer(spec: ServingSpec) -> Renderer:
    """The text side; blocking."""
    tokenizer = Tokenizer.load((spec.tokenizer or spec.model).path)
    return Renderer(load_chat_template(spec), tokenizer)


def _explain(error: Exception) -> LoadFailedError | None:
    """The fitting reason, or None for what is our own fault."""
    match error:
        case EngineDeadError():
            return LoadFailedError(Reason.ENGINE_UNREACHABLE, f"The engine stopped while loading: {error}")
        case LoadError():
            return LoadFailedError(PART_REASONS[error.part], str(error))
        case EngineError():
            return LoadFailedError(Reason.MODEL_MISMATCH, str(error))
        case TokenizerError():
            return LoadFailedError(Reason.TOKENIZER_MISMATCH, str(error))
        case TemplateError():
            return LoadFailedError(Reason.TEMPLATE_MISMATCH, error.message)
        case ManifestError():
            return LoadFailedError(Reason.SPECIAL_TOKENS_MISMATCH, str(error))
    return None


async def _close(starting: "asyncio.Future[ServedEngine]") -> None:
    """Stop an engine that has started, or that is still starting."""
    if not starting.done():
        starting.cancel()
    results = await asyncio.gather(starting, return_exceptions=True)
    engine = results[0]
    if not isinstance(engine, BaseException):
        await engine.close()
