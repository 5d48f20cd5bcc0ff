"""``pratique fetch``: bring what a URI names into a folder, verified, as a pod's first container does."""

from pathlib import Path
from typing import Annotated

import typer

from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.options import takes_options
from pratique_cli.source_options import SourceOptions, source_errors


@takes_options(SourceOptions, "source")
def fetch(
    uri: Annotated[
        str | None,
        typer.Argument(help="hf://owner/name@commit, oci://…@sha256:…, https://….tar.gz or s3://bucket/prefix."),
    ] = None,
    directory: Annotated[Path | None, typer.Argument(help="Folder to fill: new, empty, or fetched before.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Serving document: fetch all it names, as a pod does. Instead of URI and DIR.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Commit, or sha256:… (the archive's for https). Default: what the URI names.")
    ] = None,
    *,
    source: SourceOptions,
) -> None:
    """Fetch a source into a folder. Again on the same folder: check every byte, repair what is damaged, else do nothing."""
    given = (uri, directory) if config is None else (None, None)
    if config is not None and (uri is not None or directory is not None):
        raise CliError("Give either --config FILE, or URI and DIR", code=EXIT_USAGE)
    with source_errors():
        from pratique_server.fetch import person, program
        from pratique_server.logs import configure_logs

        if config is not None:
            configure_logs()
            raise typer.Exit(program.run_document(config))
        if given[0] is None or given[1] is None:
            raise CliError("Give URI and DIR, or --config FILE", code=EXIT_USAGE)
        person.fetch_for_person(
            given[0],
            given[1],
            revision=revision,
            download=source.download(),
            weights=not source.tokenizer_only,
            code=source.code,
        )
