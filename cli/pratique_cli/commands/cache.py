"""``pratique cache``: what lies on a shared download cache, and the removal of what nothing in the cluster uses any more."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pratique_cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError, missing_extra
from pratique_cli.printing import Format, emit, format_table, note, say

if TYPE_CHECKING:
    from pratique_server.fetch.cache import Entry

app = typer.Typer(help="List a shared download cache, and remove from it what nothing uses.", no_args_is_help=True)
RootArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Where the cache volume is mounted.")]
_AGE: Final = re.compile(r"(\d+)([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}


@app.command("list")
def list_(
    root: RootArgument,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.TEXT,
) -> None:
    """Print every folder that pods have fetched or begun to: state, size, how long nobody has looked at it, source."""
    with _errors():
        from pratique_server.fetch.cache import list_entries

        entries = list_entries(root)
    if form is not Format.TEXT:
        emit([_value(entry) for entry in entries], form)
        return
    say(format_table(("NAME", "STATE", "SIZE", "IDLE", "SOURCE"), [_row(entry) for entry in entries]))


@app.command("prune")
def prune(
    root: RootArgument,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Where services use this volume; may be repeated."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Services of every namespace may use this volume.")
    ] = False,
    older_than: Annotated[
        str, typer.Option(help="Only what no fetch has looked at for so long: 90m, 12h, 7d; at least 1h.")
    ] = "7d",
    keep: Annotated[
        list[str] | None, typer.Option(help="Folder to keep, by its name in the list; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    context: Annotated[str | None, typer.Option(help="kubeconfig context.")] = None,
) -> None:
    """Remove what no service, Deployment or pod of these namespaces names and no fetch has looked at for a while; also what downloads
    that failed for good have left."""
    if bool(namespace) == all_namespaces:
        raise CliError(
            "Say whose services may use the volume: --namespace (repeated), or --all-namespaces", code=EXIT_USAGE
        )
    seconds = _parse_age(older_than)
    with _errors():
        from pratique_cli.kube import Cluster
        from pratique_server.fetch.cache import OLDER_THAN_SECONDS_MIN, plan, prune
        from pratique_server.fetch.halt import Halt
        from pratique_server.fetch.program import stop_on_signals

        if seconds < OLDER_THAN_SECONDS_MIN:
            raise CliError(
                "--older-than takes at least 1h: it is what protects a pod that is just starting", code=EXIT_USAGE
            )
        cluster = Cluster(context=context)

        def in_use() -> frozenset[str]:
            return frozenset(keep or ()) | cluster.cache_folders_in_use(namespace)

        halt = Halt()
        stop_on_signals(halt)
        freed = 0
        outcomes = (
            plan(root, older_than=seconds, in_use=in_use)
            if dry_run
            else prune(root, older_than=seconds, in_use=in_use, halt=halt)
        )
        for outcome in outcomes:
            entry = outcome.entry
            freed += entry.size_bytes if outcome.kept is None else 0
            action = f"kept, {outcome.kept}" if outcome.kept else "would go" if dry_run else "removed"
            say(f"{entry.path.name}: {action} ({_describe(entry)})")
    note(f"{_size(freed)} {'would be' if dry_run else 'were'} freed")


@contextmanager
def _errors() -> Iterator[None]:
    """The fetching package's errors as the command line's."""
    try:
        from pratique_server.fetch.errors import FetchError, HaltedError
    except ImportError as error:
        raise missing_extra("server", error) from error
    try:
        yield
    except FetchError as error:
        raise CliError(error.message) from error
    except HaltedError as error:
        raise CliError("Stopped; what was about to go is kept", code=EXIT_INTERRUPTED) from error


def _parse_age(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None:
        raise CliError(f"--older-than takes a number and m, h or d, as 7d; not {text!r}", code=EXIT_USAGE)
    return float(int(found[1]) * _SECONDS[found[2]])


def _value(entry: "Entry") -> dict[str, Any]:
    return {
        "name": entry.name,
        "state": entry.state,
        "sizeBytes": entry.size_bytes,
        "idleSeconds": round(entry.idle_seconds),
        "source": entry.source,
    }


def _row(entry: "Entry") -> tuple[object, ...]:
    return (entry.name, entry.state, _size(entry.size_bytes), _age(entry.idle_seconds), entry.source)


def _describe(entry: "Entry") -> str:
    source = f", {entry.source}" if entry.source else ""
    return f"{_size(entry.size_bytes)}, idle for {_age(entry.idle_seconds)}{source}"


def _size(count: int) -> str:
    from pratique_server.fetch.progress import size_text

    return size_text(count)


def _age(seconds: float) -> str:
    unit, size = next(((u, s) for u, s in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= 2 * s), ("s", 1))
    return f"{int(seconds // size)}{unit}"
