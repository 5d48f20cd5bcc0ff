"""``pratique operator``: run the operator in the foreground; it is configured by environment variables."""

import typer


def operator() -> None:
    """Run the operator (in the cluster, or on this machine with the current kubeconfig)."""
    try:
        from pratique_operator.main import run
    except ImportError as error:
        from pratique_cli.errors import missing_extra

        raise missing_extra("operator", error) from error
    raise typer.Exit(run())
