"""``pratique release review``: what differs between two releases, why, and which tests cover it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pratique_cli.commands.release.options import ReleaseOptions
from pratique_cli.commands.release.output import require_writable, write
from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.options import takes_options
from pratique_cli.printing import Format, emit, note

if TYPE_CHECKING:
    from pratique_cli.review.sides import Sides


@takes_options(ReleaseOptions, "reference", "candidate", prefixed=True)
def review(
    reference_file: Annotated[Path, typer.Argument(metavar="REFERENCE", help="Record or manifest of what serves now.")],
    candidate_file: Annotated[
        Path, typer.Argument(metavar="CANDIDATE", help="Record or manifest of what shall serve.")
    ],
    reference: ReleaseOptions,
    candidate: ReleaseOptions,
    intentional: Annotated[
        list[str] | None, typer.Option(metavar='PART="REASON"', help="Why a part differs; may be repeated.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="TEST.NAME=NUMBER", help="Hold a figure against another limit; may be repeated."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this test (RenderedFixtures, SemanticParity, LogitComparison, Workload) instead of those that the differences "
            "demand; may be repeated."
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts of your own: one JSON string or object with messages a line.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--write", help="Write the candidate's record with the review in it.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.TEXT,
) -> None:
    """Compare two releases side by side, run the tests that the differences demand, and say what is not covered.

    Ends with 0 when every difference has a reason and its tests passed, 1 when something is not covered, 4 when a field cannot be
    compared (not reproducible), 5 when a test failed; 2 for wrong usage and 3 when it could not be done.
    """
    from pratique_cli.review.findings import conclude, parse_intentional, parse_limits
    from pratique_cli.review.report import print_report
    from pratique_cli.review.sides import read_sides
    from pratique_cli.review.tests import run_all
    from pratique_contract.review import KINDS

    reasons, limits = parse_intentional(intentional or ()), parse_limits(limit or ())
    unknown = [kind for kind in test or () if kind not in KINDS]
    if unknown:
        raise CliError(f"--test takes {', '.join(KINDS)}; not {unknown[0]}", code=EXIT_USAGE)
    sides = read_sides(reference_file, candidate_file)
    require_writable(output)
    if output is not None:
        _require_record(sides, candidate_file)
    outcome = run_all(sides, reference, candidate, kinds=test, limits=limits, prompts=prompts, say=note)
    findings = conclude(sides, reasons, outcome)
    if form is Format.TEXT:
        print_report(findings)
    else:
        emit(findings.to_json_value(), form)
    if output is not None:
        write(findings.reviewed_record(), output)
        note(f"Wrote the reviewed record to {output}")
    raise typer.Exit(findings.exit_code)


def _require_record(sides: "Sides", path: Path) -> None:
    if sides.candidate_record is None:
        raise CliError(f"{path} is a manifest; a review is written into a record", code=EXIT_USAGE)
