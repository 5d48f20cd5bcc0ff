"""Show a review to a person: both manifests side by side, each difference with its reason and tests, what changed, what is missing.

Tables are rich's: as wide as the terminal, without colour or wrapping of paths when they go into a file or a pipe.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pratique_cli.load.measures import look_up
from pratique_cli.review.findings import Findings
from pratique_contract.canonical import short_digest
from pratique_contract.compare import FieldDifference
from pratique_contract.manifest import PARTS
from pratique_contract.review import ReviewTest, find_exceeded

PIPE_WIDTH: Final = 160
# Lists of tensors differ in hundreds of alike entries: beyond this many they are told as one.
ALIKE_MAX: Final = 4
DIVERGENCES_SHOWN: Final = 6
ANSWER_SHOWN: Final = 70


def print_report(findings: Findings, console: Console | None = None) -> None:
    """The whole screen."""
    out = console or _make_console()
    _print_header(out, findings)
    if findings.differences:
        out.print(_fields_table(findings))
        out.print(_parts_table(findings))
    if findings.review is not None and findings.review.tests:
        out.print(_tests_table(findings.review.tests))
    _print_changes(out, findings)
    _print_divergences(out, findings)
    _print_workload(out, findings)
    _print_end(out, findings)


def _make_console() -> Console:
    console = Console(highlight=False, soft_wrap=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=PIPE_WIDTH)


def _print_header(out: Console, findings: Findings) -> None:
    if findings.sides.manifests is None:
        out.print("These two documents cannot be compared.")
        return
    reference, candidate = findings.sides.manifests
    out.print(f"Reference: {reference.fingerprint}\nCandidate: {candidate.fingerprint}\n")
    same = [part for part in PARTS if part not in findings.sides.differing]
    if not findings.differences:
        out.print("The releases are the same: all eight parts are equal.")
        if findings.sides.proves_otherwise:
            out.print(
                "What their records make a pod prove is not: pratique release diff shows where. No review covers that."
            )
    elif same:
        out.print(f"Equal in both: {', '.join(same)}\n")


def _table(*columns: str, title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _fields_table(findings: Findings) -> Table:
    table = _table("field", "reference", "candidate", title="Differing fields")
    for difference in findings.differences:
        for field in fold_alike(difference.fields):
            table.add_row(f"{difference.part}.{field.path}", _shown(field.expected), _shown(field.observed))
        table.add_section()
    return table


def fold_alike(fields: Sequence[FieldDifference]) -> Iterator[FieldDifference]:
    """Neighbours in one list with the same two values, told as one when they are many."""
    for (path, expected, observed), group in groupby(
        fields, key=lambda f: (f.path.partition("[")[0], f.expected, f.observed)
    ):
        members = list(group)
        if len(members) <= ALIKE_MAX or "[" not in members[0].path:
            yield from members
            continue
        names = f"{path}[{len(members)} entries: {_entry(members[0])} … {_entry(members[-1])}]"
        yield FieldDifference(path=names, expected=expected, observed=observed)


def _entry(field: FieldDifference) -> str:
    return field.path.partition("[")[2].partition("]")[0]


def _shown(value: str) -> str:
    return f"sha256:{short_digest(value)}…" if value.startswith("sha256:") else value


def _parts_table(findings: Findings) -> Table:
    table = _table("part", "intentional", "demanded test", "result", title="What covers them")
    reasons = findings.reasons()
    for difference in findings.differences:
        reason: str | Text = reasons.get(difference.part) or Text("nobody said why", style="red")
        for number, (kind, result) in enumerate(findings.tests_of(difference.part)):
            first = number == 0
            missing = findings.outcome.missing.get(kind)
            cell = (
                _result(result) if result is not None else Text(f"not run: {missing or 'not asked for'}", style="red")
            )
            table.add_row(difference.part if first else "", reason if first else "", kind, cell)
        table.add_section()
    return table


def _result(test: ReviewTest) -> Text:
    return Text("passed", style="green") if test.passed else Text("failed", style="red")


def _tests_table(tests: Sequence[ReviewTest]) -> Table:
    table = _table("test", "result", "figures and limits", "in words", title="Tests")
    for test in tests:
        table.add_row(test.kind, _result(test), "\n".join(_figures(test)), test.message)
        table.add_section()
    return table


def _figures(test: ReviewTest) -> Iterator[str]:
    """Each figure with its limit; the ones beyond it are marked."""
    beyond = {line.split(" ", 1)[0] for line in find_exceeded(test.measurements, test.limits)}
    for name, value in test.measurements.items():
        low, high = test.limits.get(f"{name}Min"), test.limits.get(f"{name}Max")
        limit = f" (at least {low:g})" if isinstance(low, int | float) else ""
        limit += f" (at most {high:g})" if isinstance(high, int | float) else ""
        yield f"{'✗ ' if name in beyond else ''}{name} {_shown(str(value))}{limit}"
    for name in sorted(beyond - set(test.measurements)):
        yield f"✗ {name} was not measured"


def _print_changes(out: Console, findings: Findings) -> None:
    """All of them, since the test passes on the ground that they were seen. Changes with the same lines are shown once, with the names
    of all conversations that have them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for change in findings.outcome.changes:
        same = tuple(change["lines"]) or (change["kind"], change["message"])
        groups.setdefault((change["kind"], *same), []).append(f"{change['name']} ({change['message']})")
    if not groups:
        return
    out.print("Rendered otherwise", style="bold")
    for key, names in groups.items():
        out.print(f"  {key[0]}: {', '.join(names)}")
        for line in key[1:] if key[0] == "text" else ():
            out.print(f"    {line}", style="red" if line[0] == "-" else "green" if line[0] == "+" else "dim")
    out.print()


def _print_divergences(out: Console, findings: Findings) -> None:
    """The clear ones first: they are the ones that rounding does not explain."""
    found = sorted(findings.outcome.divergences, key=lambda divergence: not divergence["clear"])
    if not found:
        return
    table = _table(
        "prompt", "parts at", "lead (nat)", "reference goes on", "candidate goes on", title="Answers that part"
    )
    for item in found[:DIVERGENCES_SHOWN]:
        left, right = _from_parting(item["reference"], item["candidate"])
        margin = "-" if item["margin"] is None else f"{item['margin']:.2f}{' clear' if item['clear'] else ''}"
        table.add_row(item["name"], str(item["index"]), margin, left, right)
    out.print(table)
    if len(found) > DIVERGENCES_SHOWN:
        out.print(f"… and {len(found) - DIVERGENCES_SHOWN} more: -o json shows all")
    out.print()


def _print_workload(out: Console, findings: Findings) -> None:
    """What both servers did on this machine; only the ratios are in the review."""
    if not findings.outcome.workload:
        return
    table = _table("", "reference", "candidate", title="Under load, in turns, on this machine (ms)")
    sides = [findings.outcome.workload[name] for name in ("reference", "candidate")]
    for title, path in _WORKLOAD_ROWS.items():
        values = [look_up(figures, path) for figures in sides]
        table.add_row(title, *("-" if value is None else _number(value) for value in values))
    out.print(table)


def _number(value: float) -> str:
    """Three digits or more, never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_WORKLOAD_ROWS: Final = {
    "requests": ("requests",),
    "errors": ("errorRate",),
    "output tokens per second": ("tokensPerSecond",),
    "TTFT p50": ("ttftMs", "p50"),
    "TTFT p95": ("ttftMs", "p95"),
    "ITL p50": ("itlMs", "p50"),
    "ITL p95": ("itlMs", "p95"),
    "TTFT p95, light tenant": ("tenants", "light", "ttftMs", "p95"),
    "TTFT p95, heavy tenant": ("tenants", "heavy", "ttftMs", "p95"),
    "fairness (Jain)": ("fairness",),
    "client's own delay p95": ("sendDelayMs", "p95"),
}


def _from_parting(left: str, right: str) -> tuple[str, str]:
    """Both texts from a few characters before the first difference."""
    index = next(
        (i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(len(left), len(right))
    )
    start = max(0, index - 16)
    return tuple(f"{'…' if start else ''}{text[start:][:ANSWER_SHOWN]!r}" for text in (left, right))  # type: ignore[return-value]


def _print_end(out: Console, findings: Findings) -> None:
    endings = {
        "Covered": "Covered: every difference has a reason, and the tests its part demands have passed.",
        "NotCovered": "Not covered:",
        "NotReproducible": "Not reproducible: what follows cannot be compared.",
        "TestFailed": "A test failed:",
    }
    if not findings.differences and findings.result == "Covered":
        return
    out.print(endings[findings.result], style="green" if findings.result == "Covered" else "red")
    told = list(findings.not_comparable) + [f"{test.kind}: {test.message}" for test in findings.failed]
    # What was told in full is not told again as the cause of something uncovered.
    others = [finding.message for finding in findings.uncovered]
    told += [line for line in others if not line.startswith("not reproducible") and " test failed: " not in line]
    for line in told:
        out.print(f"  - {line}")
