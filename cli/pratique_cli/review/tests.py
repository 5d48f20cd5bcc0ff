"""Run a review's tests: three kinds in this process with the server's own code, the workload against two served releases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from pratique_cli.commands.release.options import ReleaseOptions
from pratique_cli.errors import EXIT_USAGE, CliError, missing_extra
from pratique_cli.offline import run_offline
from pratique_cli.review.sides import Sides
from pratique_cli.specs import read_text
from pratique_contract.review import ReviewTest, TestKind, required_tests

Say = Callable[[str], None]

NEEDS_FOLDERS: Final = (
    "both releases have to be loaded: name their files (--reference-model DIR, --candidate-model DIR)"
)


@dataclass(kw_only=True)
class Outcome:
    """What the tests found, as plain values. ``missing`` says for each kind that was not run what it lacks."""

    tests: list[ReviewTest] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    divergences: list[dict[str, Any]] = field(default_factory=list)
    workload: dict[str, dict[str, Any]] = field(default_factory=dict)


def run_all(
    sides: Sides,
    reference: ReleaseOptions,
    candidate: ReleaseOptions,
    *,
    kinds: Sequence[str] | None,
    limits: Mapping[str, float],
    prompts: Path | None,
    say: Say,
) -> Outcome:
    """The tests in ``kinds``, or those that the differences demand. Nothing is loaded when no test is wanted."""
    outcome = Outcome()
    wanted = list(kinds if kinds is not None else required_tests(sides.differing))
    if sides.manifests is None:
        return outcome
    _refuse_idle(wanted, limits, prompts)
    if not wanted:
        return outcome
    specs = [options.spec() if options.given else None for options in (reference, candidate)]
    offline = [kind for kind in wanted if kind != "Workload"]
    if offline and (any(specs) or sides.reference_record is not None):
        _run_offline(outcome, sides, specs, offline, limits, prompts, say)
    elif offline:
        outcome.missing |= dict.fromkeys(offline, NEEDS_FOLDERS)
    if "Workload" in wanted:
        _run_workload(outcome, sides, specs, limits, say)
    return outcome


def _refuse_idle(wanted: Sequence[str], limits: Mapping[str, float], prompts: Path | None) -> None:
    """An option that no test of this review looks at would be taken for granted by whoever gave it."""
    told = (
        f"the tests of this review are {', '.join(wanted)}" if wanted else "nothing differs, so this review has no test"
    )
    idle = [name for name in limits if name.partition(".")[0] not in wanted]
    if idle:
        raise CliError(f"--limit {idle[0]} has nothing to hold: {told}", code=EXIT_USAGE)
    if prompts is not None and not {"SemanticParity", "LogitComparison"} & set(wanted):
        raise CliError(f"--prompts {prompts} would be asked by no test: {told}", code=EXIT_USAGE)


def _run_workload(outcome: Outcome, sides: Sides, specs: Sequence[Any], limits: Mapping[str, float], say: Say) -> None:
    reference, candidate = specs
    if reference is None or candidate is None:
        outcome.missing["Workload"] = NEEDS_FOLDERS
        return
    from pratique_cli.review.workload import run_workload

    assert sides.manifests is not None  # checked by the caller
    measured = run_workload((reference, candidate), sides.manifests, limits, say)
    outcome.tests.append(measured.test)
    outcome.workload = {"reference": measured.reference, "candidate": measured.candidate}


def _run_offline(
    outcome: Outcome,
    sides: Sides,
    specs: Sequence[Any],
    kinds: Sequence[str],
    limits: Mapping[str, float],
    prompts: Path | None,
    say: Say,
) -> None:
    from dataclasses import asdict

    try:
        from pratique_server.review.errors import ReviewError
        from pratique_server.review.limits import choose_limits
        from pratique_server.review.prompts import BUILT_IN, parse_prompts
        from pratique_server.review.run import Side
    except ImportError as error:
        raise missing_extra("server", error) from error
    assert sides.manifests is not None  # checked by the caller
    try:
        for kind in kinds:
            choose_limits(cast(TestKind, kind), *sides.manifests, limits)
    except ReviewError as error:
        raise CliError(str(error), code=EXIT_USAGE) from error
    try:
        chosen = BUILT_IN if prompts is None else parse_prompts(read_text(prompts))
    except ReviewError as error:
        raise CliError(str(error)) from error
    if all(spec is not None for spec in specs):
        asked = [kind for kind in kinds if kind != "RenderedFixtures"]
        each = f", {len(chosen.prompts)} prompts each (minutes for a larger model)" if asked else ""
        say(f"Running {', '.join(kinds)} on both releases{each}")
    records = (sides.reference_record, sides.candidate_record)
    left, right = (
        Side(name=name, manifest=manifest, record=record, spec=spec)
        for name, manifest, record, spec in zip(
            ("reference", "candidate"), sides.manifests, records, specs, strict=True
        )
    )
    found = run_offline("review", left, right, kinds=kinds, limits=limits, prompts=chosen)
    outcome.tests += found.tests
    outcome.missing |= found.missing
    outcome.changes = [change.to_json_value() for change in found.changes]
    outcome.divergences = [asdict(divergence) for divergence in found.divergences]
