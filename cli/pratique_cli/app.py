"""All commands under one name. Only what parsing needs is imported here; each command imports its own world when it runs, so that
``--help`` and completion stay quick."""

from typing import Annotated

import typer

from pratique_cli.commands import cache, chat, fetch, operator, release, resolve, serve, status

app = typer.Typer(
    help="Inference deployments that take traffic only after they have proved to be the approved release.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"pratique {version('pratique')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("serve")(serve.serve)
app.command("fetch")(fetch.fetch)
app.command("resolve")(resolve.resolve)
app.command("operator")(operator.operator)
app.command("chat")(chat.chat)
app.command("status")(status.status)
app.add_typer(cache.app, name="cache")
app.add_typer(release.app, name="release")
