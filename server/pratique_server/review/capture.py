"""Ask one loaded release: greedy answers with the lead of every choice, and the logits behind given ids.

Prompts are ids here. When both tokenizers agree, the candidate is asked with the reference's own ids: how messages become ids is another
test's matter, and a difference in the answers is then the computation's.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from pratique_server.engine.local import LocalEngine
from pratique_server.engine.protocol import EngineError, FinishReason
from pratique_server.engine.step_engine import ForcedSequence
from pratique_server.errors import TemplateError
from pratique_server.gate.company import Invariance
from pratique_server.offline.loading import LoadedRelease
from pratique_server.release.greedy import run_greedy
from pratique_server.review.errors import ReviewError
from pratique_server.review.prompts import PromptSet

# Requests at once where the engine proved that they do not influence each other.
REQUESTS_AT_ONCE: Final = 8
# The reference's logits wait in memory for the candidate's.
LOGIT_BYTES_MAX: Final = 1024**3


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One greedy answer. ``margins`` (nat) has the lead of each chosen id; ``text`` is without the stop token."""

    name: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    margins: tuple[float, ...]
    text: str
    stopped: bool


def render_prompts(prompts: PromptSet, release: LoadedRelease) -> dict[str, list[int]]:
    """Prompt ids by name; raises ``ReviewError`` when the template refuses one."""
    rendered = {}
    for name, messages in prompts.prompts:
        try:
            rendered[name] = release.renderer.render(messages).ids
        except TemplateError as error:
            raise ReviewError(f"The chat template refuses {name}: {error}") from error
    return rendered


async def collect_answers(
    release: LoadedRelease, prompts: Mapping[str, Sequence[int]], *, max_tokens: int
) -> list[Answer]:
    """Greedy answers in the prompts' order."""
    invariance = Invariance.of(release.manifest)
    seats = asyncio.Semaphore(REQUESTS_AT_ONCE if invariance.has_company and invariance.is_exact else 1)

    async def ask(name: str, ids: Sequence[int]) -> Answer:
        async with seats:
            return await _ask(release, name, ids, max_tokens)

    return list(await asyncio.gather(*(ask(name, ids) for name, ids in prompts.items())))


async def _ask(release: LoadedRelease, name: str, ids: Sequence[int], max_tokens: int) -> Answer:
    try:
        run = await run_greedy(
            release.engine,
            prompt_ids=ids,
            max_tokens=max_tokens,
            stop_ids=release.manifest.special_tokens.stop_ids,
            request_id=f"review-{name}",
        )
    except EngineError as error:
        raise ReviewError(f"{name} cannot be answered: {error}") from error
    stopped = run.finish is FinishReason.STOP
    return Answer(
        name=name,
        prompt_ids=tuple(ids),
        ids=run.ids,
        margins=run.margins,
        text=release.renderer.tokenizer.decode(run.ids[:-1] if stopped else run.ids),
        stopped=stopped,
    )


def fit_in_memory(answers: Sequence[Answer], *, vocab_size: int, bytes_max: int = LOGIT_BYTES_MAX) -> list[Answer]:
    """The first answers whose logits (float32) fit into ``bytes_max``, at least one. The caller says how many were left out."""
    room = bytes_max // (4 * vocab_size)
    fitting: list[Answer] = []
    for answer in answers:
        room -= len(answer.ids)
        if room < 0 and fitting:
            break
        fitting.append(answer)
    return fitting


async def collect_logits(release: LoadedRelease, answers: Sequence[Answer]) -> list[torch.Tensor]:
    """For each answer ``[ids, vocabulary]``: what every id of it would be chosen from by this release."""
    engine: Any = release.engine
    assert isinstance(engine, LocalEngine)  # load_release makes no other
    return await engine.score(
        [ForcedSequence(prompt_ids=list(answer.prompt_ids), forced_ids=list(answer.ids)) for answer in answers]
    )
