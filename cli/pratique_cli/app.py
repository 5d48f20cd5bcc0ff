"""All commands under one name. Only what parsing needs is imported here; each command imports its own world when it runs, so that
``--help`` and completion stay quick."""

import typer

from pratique_cli.commands import chat, operator, release, serve, status

app = typer.Typer(
    help="Inference deployments that take traffic only after they have proved to be the approved release.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("operator")(operator.operator)
app.command("chat")(chat.chat)
app.command("status")(status.status)
app.add_typer(release.app, name="release")
