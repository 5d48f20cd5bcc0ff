"""``pratique fetch``: bring what a URI names into a folder, verified, as a pod's first container does."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pratique_cli.errors import EXIT_USAGE, CliError, missing_extra

if TYPE_CHECKING:
    from pratique_contract.serving import DownloadSpec


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
    credentials: Annotated[
        Path | None,
        typer.Option(help="Folder with one file for each key: token, username, password, accessKeyId, …, ca.crt."),
    ] = None,
    hub_endpoint: Annotated[str | None, typer.Option(help="A mirror of the hub. Default: HF_ENDPOINT.")] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="An S3-compatible store. Default: the AWS one.")] = None,
    s3_region: Annotated[str | None, typer.Option(help="Region of the bucket.")] = None,
    connections: Annotated[int, typer.Option(min=1, max=64, help="Connections at once.")] = 8,
    tokenizer_only: Annotated[bool, typer.Option("--tokenizer-only", help="Leave the weights out.")] = False,
    code: Annotated[bool, typer.Option("--code", help="Also the model's own Python files (trustRemoteCode).")] = False,
) -> None:
    """Fetch a source into a folder. Again on the same folder: check every byte, repair what is damaged, else do nothing."""
    given = (uri, directory) if config is None else (None, None)
    if config is not None and (uri is not None or directory is not None):
        raise CliError("Give either --config FILE, or URI and DIR", code=EXIT_USAGE)
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        from pratique_server.fetch import program
        from pratique_server.logs import configure_logs
    except ImportError as error:
        raise missing_extra("server", error) from error
    if config is not None:
        configure_logs()
        raise typer.Exit(program.run_document(config))
    if given[0] is None or given[1] is None:
        raise CliError("Give URI and DIR, or --config FILE", code=EXIT_USAGE)
    options = {"hub_endpoint": hub_endpoint, "s3_endpoint": s3_endpoint, "s3_region": s3_region}
    problem = program.fetch_for_person(
        given[0],
        given[1],
        revision=revision,
        download=_download(credentials_path=credentials, connections=connections, **options),
        weights=not tokenizer_only,
        code=code,
    )
    if problem is not None:
        raise CliError(problem)


def _download(*, credentials_path: Path | None, **options: Any) -> "DownloadSpec":
    from pratique_contract.serving import DownloadSpec

    path = None if credentials_path is None else str(credentials_path)
    return DownloadSpec(credentials_path=path, **options)
