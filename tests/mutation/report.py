"""The report of a run: ``mutation.json`` for programs, ``mutation.md`` for people. Rows come from the tests, conditions from here."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.conditions import describe_host
from pratique_server.engine.identity import engine_build, library_versions

Row = dict[str, Any]
_PATH: Final = re.compile(r"(?:/[^\s/'\":]+){2,}/")
MESSAGE_SHOWN_MAX: Final = 160


def write_report(rows: Sequence[Row], folder: Path, *, seconds: float) -> None:
    """Replace both files."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = {"conditions": _conditions(seconds), "counts": _counts(rows), "rows": [_cleaned(row) for row in rows]}
    (folder / "mutation.json").write_text(_as_json(summary), encoding="utf-8")
    (folder / "mutation.md").write_text(_as_markdown(summary), encoding="utf-8")


def _as_json(summary: dict[str, Any]) -> str:
    """Conditions and counts to read, then a line for each row. What the verdicts said in words is in the other file."""
    rows = [
        {name: value for name, value in row.items() if name not in ("message", "why", "number")}
        for row in summary["rows"]
    ]
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False, sort_keys=True)}" for row in rows)
    head = json.dumps(
        {name: summary[name] for name in ("conditions", "counts")}, indent=1, ensure_ascii=False, sort_keys=True
    )
    return f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


def _conditions(seconds: float) -> dict[str, Any]:
    commit, changed = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", "contract", "server", "tests")
    return {
        "commit": commit + (" with changes" if changed else ""),
        "engineBuild": engine_build(),
        "libraries": library_versions(),
        "host": describe_host(),
        "model": "random Llama, 2 layers, hidden 64, context 2048, float32",
        "seconds": round(seconds),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip()


def _counts(rows: Sequence[Row]) -> dict[str, Any]:
    faults, harmless = _of(rows, "fault"), _of(rows, "harmless")
    return {
        "faults": len(faults),
        "refused": sum(row["result"] == "Fail" for row in faults),
        "refusedForTheRightReason": sum(row["result"] == "Fail" and row["reason"] == row["expected"] for row in faults),
        "userRequestsBeforeTheVerdict": sum(row["knocks"] for row in faults),
        "userRequestsAnsweredByAFault": sum(row["answered"] for row in faults),
        "harmless": len(harmless),
        "harmlessRefused": sum(row["result"] != "Pass" for row in harmless),
        "equivalent": len(_of(rows, "equivalent")),
        "limits": len(_of(rows, "limit")),
        "parts": dict(sorted(Counter(row["part"] for row in faults).items())),
    }


def _of(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def _cleaned(row: Row) -> Row:
    """Without paths of the machine it ran on, and no longer than a person reads."""
    message = _PATH.sub("…/", str(row.get("message", "")))
    shown = message if len(message) <= MESSAGE_SHOWN_MAX else f"{message[: MESSAGE_SHOWN_MAX - 1]}…"
    return {**{name: value for name, value in row.items() if name not in ("knocks", "answered")}, "message": shown}


def _as_markdown(summary: dict[str, Any]) -> str:
    counts, conditions, rows = summary["counts"], summary["conditions"], summary["rows"]
    host = conditions["host"]
    libraries = ", ".join(f"{name} {version}" for name, version in conditions["libraries"].items())
    lines = [
        "# Mutation suite",
        "",
        "Written by `make mutation`; how to read it: [docs/mutation.md](../../docs/mutation.md).",
        "",
        (
            f"* **{counts['refusedForTheRightReason']} of {counts['faults']}** single faults refused with the right reason "
            f"({counts['refused']} refused at all); {counts['userRequestsAnsweredByAFault']} of "
            f"{counts['userRequestsBeforeTheVerdict']} users' requests answered meanwhile."
        ),
        f"* **{counts['harmlessRefused']} of {counts['harmless']}** harmless variations refused.",
        (
            f"* Commit {conditions['commit']}, {host['at']}; {conditions['seconds']} s on {host['processor']}, {host['cores']} cores "
            f"(load {host['loadAverage']} at the end)."
        ),
        f"* {conditions['model']}; Python {host['python']}, {libraries}.",
        "",
    ]
    for part in counts["parts"]:
        chosen = [row for row in rows if row["kind"] == "fault" and row["part"] == part]
        lines += [f"## {part}: {len(chosen)}", "", "| fault | like | reason | the verdict says |", "|---|---|---|---|"]
        lines += [_row(row["name"], row["bug"], row["reason"], row["message"]) for row in chosen]
        lines.append("")
    for kind, title in (
        ("harmless", "Harmless, not refused"),
        ("equivalent", "Equivalent mutants, not counted"),
        ("limit", "What the gate cannot know, not counted"),
    ):
        chosen = [row for row in rows if row["kind"] == kind]
        lines += [f"## {title}: {len(chosen)}", "", "| change | why | verdict |", "|---|---|---|"]
        lines += [_row(row["name"], row["why"], row["reason"]) for row in chosen]
        lines.append("")
    return "\n".join(lines)


def _row(*cells: str) -> str:
    escaped = (str(cell).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells)
    return f"| {' | '.join(escaped)} |"
