"""What the routes share: the loaded release as the API needs it, and the owners of everything that changes."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pratique_contract import ReleaseManifest, ServingSpec
from pratique_server.api.auth import ApiKeys
from pratique_server.api.live import LiveRequests
from pratique_server.config import ApiLimits
from pratique_server.engine.protocol import Engine
from pratique_server.errors import EngineUnavailableError
from pratique_server.management.status import PodStatus
from pratique_server.metrics import Metrics
from pratique_server.text import Renderer

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Release:
    """The loaded release: taken from the manifest, so that what acts is what is fingerprinted."""

    fingerprint: str
    model_revision: str
    tokenizer_revision: str
    stop_ids: tuple[int, ...]
    defaults: dict[str, Any]
    context_limit: int
    vocab_size: int

    @classmethod
    def of(cls, manifest: ReleaseManifest, spec: ServingSpec, *, vocab_size: int) -> "Release":
        """``vocab_size`` is the model's: ids beyond the tokenizer's vocabulary are padding rows, still valid to the engine."""
        special = manifest.special_tokens
        return cls(
            fingerprint=manifest.fingerprint,
            model_revision=manifest.model.revision,
            tokenizer_revision=manifest.tokenizer.revision,
            stop_ids=special.stop_ids,
            defaults=special.generation_defaults,
            context_limit=min(special.context_limit, spec.engine.max_model_len or special.context_limit),
            vocab_size=vocab_size,
        )


class EngineSlot:
    """The current engine, or none while it is being restarted. Written by the life cycle only."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine

    def set(self, engine: Engine | None) -> None:
        self._engine = engine

    def get(self) -> Engine:
        """Raises ``EngineUnavailableError`` while there is none."""
        if self._engine is None:
            raise EngineUnavailableError("The engine is being restarted")
        return self._engine


@dataclass(kw_only=True)
class ApiState:
    """Built once per process. ``probe_token`` is the gate's: a request that carries it is served before the verdict."""

    spec: ServingSpec
    release: Release
    renderer: Renderer
    engine: EngineSlot
    status: PodStatus
    metrics: Metrics
    probe_token: str
    keys: ApiKeys | None = None
    limits: ApiLimits = field(default_factory=ApiLimits)
    live: LiveRequests = field(default_factory=LiveRequests)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    started_at: int = 0
    text_pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.text_pool = ThreadPoolExecutor(self.limits.text_workers, thread_name_prefix="text")
        self.started_at = self.started_at or int(self.wall_clock())

    async def in_text_pool(self, work: Callable[[], T]) -> T:
        """Templates and tokenizers block: never on the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.text_pool, work)
