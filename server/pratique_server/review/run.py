"""Run the tests of a review: load what the options name, check that it is what the records describe, ask both, and judge.

The reference and the candidate are loaded one after the other, never together: a desk has memory for one. What cannot be run is said, with
what is missing, and is no test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from pratique_contract.compare import compare_manifests
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.record import ReleaseRecord
from pratique_contract.review import ReviewTest, TestKind, find_exceeded, find_mismatch
from pratique_contract.serving import ServingSpec
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.outputs import check_golden
from pratique_server.offline.loading import LoadedRelease, load_release
from pratique_server.offline.verification import replay_case
from pratique_server.review import parity, rendering
from pratique_server.review.capture import Answer, collect_answers, collect_logits, fit_in_memory, render_prompts
from pratique_server.review.errors import ReviewError
from pratique_server.review.limits import Limits, choose_limits
from pratique_server.review.logits import describe_logits, measure_logits
from pratique_server.review.parity import Divergence, Figures
from pratique_server.review.prompts import PromptSet
from pratique_server.text.renderer import Renderer
from pratique_server.text.template import load_chat_template
from pratique_server.text.tokenizer import Tokenizer

HERE: Final[tuple[TestKind, ...]] = ("RenderedFixtures", "SemanticParity", "LogitComparison")
_LOADED: Final[tuple[TestKind, ...]] = ("SemanticParity", "LogitComparison")
NEEDS_FOLDERS: Final = "both releases have to be loaded: name the reference's and the candidate's files"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One release of a review: what its file says, and the serving document that loads it, when there is one."""

    name: str
    manifest: ReleaseManifest
    record: ReleaseRecord | None = None
    spec: ServingSpec | None = None


@dataclass(kw_only=True)
class Outcome:
    """What was found. ``missing`` says for each kind that was not run why; the rest is for a person's eyes."""

    tests: list[ReviewTest] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    changes: list[rendering.RenderingChange] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Replayed:
    """Golden cases of an older build on this one: how many, how many gave something else, and how many tokens were compared."""

    cases: int
    mismatches: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What one loaded release answered."""

    manifest: ReleaseManifest
    asked: PromptSet
    prompts: dict[str, list[int]]
    answers: list[Answer]
    scored: list[Answer]  # those of the reference that both are given, as many as fit in memory
    logits: list[torch.Tensor]
    golden: _Replayed | None = None


async def run_tests(
    reference: Side,
    candidate: Side,
    *,
    kinds: Sequence[TestKind],
    limits: Mapping[str, float],
    prompts: PromptSet,
) -> Outcome:
    """Every test of ``kinds`` that this module knows. Raises ``ReviewError`` when a folder is not the release its file describes."""
    outcome = Outcome()
    chosen = {
        kind: choose_limits(kind, reference.manifest, candidate.manifest, limits) for kind in kinds if kind in HERE
    }
    if "RenderedFixtures" in chosen:
        _run_rendering(outcome, reference, candidate, chosen["RenderedFixtures"])
    wanted = [kind for kind in _LOADED if kind in chosen]
    if wanted and (reference.spec is None or candidate.spec is None):
        outcome.missing |= dict.fromkeys(wanted, NEEDS_FOLDERS)
    elif wanted:
        await _run_loaded(outcome, reference, candidate, chosen, prompts)
    return outcome


def _run_rendering(outcome: Outcome, reference: Side, candidate: Side, limits: Limits) -> None:
    renders = [_render_of(side) for side in (reference, candidate)]
    if renders[0] is None or renders[1] is None:
        outcome.missing["RenderedFixtures"] = "needs a record or the files of each release: a manifest renders nothing"
        return
    conversations = rendering.conversations_of(reference.record, candidate.record)
    compared = rendering.compare_renderings(conversations, renders[0], renders[1])
    if not compared.pairs:
        outcome.missing["RenderedFixtures"] = (
            "the two records have no conversation in common: name both releases' files"
        )
        return
    differing = [difference.part for difference in compare_manifests(reference.manifest, candidate.manifest)]
    figures = rendering.measure_renderings(
        compared,
        differing=differing,
        candidate_record=candidate.record,
        bos_id=candidate.manifest.special_tokens.bos_id,
    )
    loaded = reference.spec is not None and candidate.spec is not None
    figures["source"] = "files" if loaded else "records"
    outcome.changes = compared.changes
    outcome.tests.append(_judge("RenderedFixtures", figures, limits, rendering.describe_renderings(figures)))


def _render_of(side: Side) -> rendering.Render | None:
    if side.spec is not None:
        tokenizer = Tokenizer.load((side.spec.tokenizer or side.spec.model).path)
        return rendering.render_with(Renderer(load_chat_template(side.spec), tokenizer))
    return None if side.record is None else rendering.render_from(side.record)


async def _run_loaded(
    outcome: Outcome, reference: Side, candidate: Side, chosen: Mapping[TestKind, Limits], prompts: PromptSet
) -> None:
    scores = "LogitComparison" in chosen
    left = await _ask(reference, prompts, like=None, scores=scores, replays="SemanticParity" in chosen)
    same_tokenizer = reference.manifest.tokenizer.compiled == candidate.manifest.tokenizer.compiled
    right = await _ask(candidate, prompts, like=left if same_tokenizer else None, scores=scores, replays=False)
    if "SemanticParity" in chosen:
        _judge_parity(outcome, reference, left, right, chosen["SemanticParity"], by_text=not same_tokenizer)
    if scores:
        _judge_logits(outcome, left, right, chosen["LogitComparison"], same_tokenizer=same_tokenizer)


async def _ask(side: Side, prompts: PromptSet, *, like: _Asked | None, scores: bool, replays: bool) -> _Asked:
    """Load one side and ask it. ``like`` is the reference: its prompt ids are asked again, and its answers are scored."""
    assert side.spec is not None
    async with load_release(side.spec) as release:
        _require_described(side, release.manifest)
        ids = like.prompts if like is not None else render_prompts(prompts, release)
        answers = await collect_answers(release, ids, max_tokens=prompts.max_tokens)
        asked = like.scored if like is not None else fit_in_memory(answers, vocab_size=release.identity.vocab_size)
        logits = await collect_logits(release, asked) if scores else []
        other = differs_in_engine(side.manifest, release.manifest)
        golden = await _replay(side, release) if replays and other else None
        return _Asked(
            manifest=release.manifest,
            asked=prompts,
            prompts=ids,
            answers=answers,
            scored=asked,
            logits=logits,
            golden=golden,
        )


def _require_described(side: Side, loaded: ReleaseManifest) -> None:
    """A test of other files than the ones under review would prove something about something else. A reference of an older build is
    computed by this one; whether that is the same is what replaying its golden cases tells."""
    mismatch = find_mismatch(side.manifest, loaded, other_build=side.name == "reference")
    if mismatch is not None:
        raise ReviewError(f"The {side.name}'s files are not the release that its file describes: {mismatch.message}")


async def _replay(side: Side, release: LoadedRelease) -> _Replayed | None:
    """The reference's golden cases on this build, compared by the gate's own rule."""
    cases = side.record.golden.cases if side.record is not None else ()
    if not cases:
        return None
    compared = failed = 0
    for case in cases:
        try:
            compared += check_golden(
                await replay_case(case, release),
                case,
                decode=release.renderer.tokenizer.decode,
                dtype=release.identity.dtype,
                device_class=release.identity.device_class,
                engine_build=release.identity.engine_build,
            )
        except CheckFailedError:
            failed += 1
    return _Replayed(cases=len(cases), mismatches=failed, tokens=compared)


def _judge_parity(
    outcome: Outcome, reference: Side, left: _Asked, right: _Asked, limits: Limits, *, by_text: bool
) -> None:
    outcome.divergences = parity.find_divergences(
        left.answers, right.answers, clear_margin=limits["clearMarginNats"], by_text=by_text
    )
    figures = parity.measure_parity(left.answers, right.answers, outcome.divergences, by_text=by_text)
    figures["promptsDigest"] = left.asked.digest
    message = parity.describe_parity(figures, outcome.divergences, limits)
    golden = left.golden
    if golden is not None:
        figures |= {
            "goldenCases": golden.cases,
            "goldenMismatches": golden.mismatches,
            "goldenTokens": golden.tokens,
        }
        held = golden.cases - golden.mismatches
        message += f"; {held} of {golden.cases} golden cases of the reference hold on this engine"
    elif differs_in_engine(reference.manifest, left.manifest):
        outcome.missing["SemanticParity"] = (
            "the reference was recorded by another build, and its file has no golden cases to replay: give its record"
        )
        return
    else:
        # The reference was computed by the program that it was recorded with: nothing had to be replayed.
        limits = {name: limit for name, limit in limits.items() if not name.startswith("golden")}
    outcome.tests.append(_judge("SemanticParity", figures, limits, message))


def differs_in_engine(recorded: ReleaseManifest, loaded: ReleaseManifest) -> bool:
    """Whether another program computes now than the one that was recorded."""
    return recorded.engine.model_copy(update={"image_digest": None}) != loaded.engine.model_copy(
        update={"image_digest": None}
    )


def _judge_logits(outcome: Outcome, left: _Asked, right: _Asked, limits: Limits, *, same_tokenizer: bool) -> None:
    sizes = {rows.shape[-1] for rows in (*left.logits, *right.logits)}
    if not same_tokenizer or len(sizes) != 1:
        outcome.missing["LogitComparison"] = (
            "the vocabularies differ: no id means the same in both, so no logits compare"
        )
        return
    figures = measure_logits(left.logits, right.logits, left.scored)
    figures |= {"prompts": len(left.scored), "promptsDigest": left.asked.digest}
    part = f" (the first {len(left.scored)} of {len(left.answers)} prompts: more do not fit in memory)"
    message = describe_logits(figures) + (part if len(left.scored) < len(left.answers) else "")
    outcome.tests.append(_judge("LogitComparison", figures, limits, message))


def _judge(kind: TestKind, figures: Figures, limits: Limits, message: str) -> ReviewTest:
    exceeded = find_exceeded(figures, limits)
    value: dict[str, Any] = {"measurements": figures, "limits": limits}
    return ReviewTest(kind=kind, passed=not exceeded, message="; ".join([*exceeded, message]), **value)
