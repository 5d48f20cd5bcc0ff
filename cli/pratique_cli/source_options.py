"""What the commands take that talk to where models lie, and the contract's form of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pratique_cli.errors import EXIT_INTERRUPTED, CliError, missing_extra

if TYPE_CHECKING:  # pydantic is slow to import, and only commands that run need it
    from pratique_contract.serving import DownloadSpec


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a source is asked, and what of it is wanted."""

    credentials: Annotated[
        Path | None,
        typer.Option(help="Folder with one file for each key: token, username, password, accessKeyId, …, ca.crt."),
    ] = None
    hub_endpoint: Annotated[str | None, typer.Option(help="A mirror of the hub. Default: HF_ENDPOINT.")] = None
    s3_endpoint: Annotated[str | None, typer.Option(help="An S3-compatible store. Default: the AWS one.")] = None
    s3_region: Annotated[str | None, typer.Option(help="Region of the bucket.")] = None
    connections: Annotated[int, typer.Option(min=1, max=64, help="Connections at once.")] = 8
    tokenizer_only: Annotated[bool, typer.Option(help="Leave the weights out.")] = False
    code: Annotated[bool, typer.Option(help="Also the model's own Python files (trustRemoteCode).")] = False

    def download(self) -> "DownloadSpec":
        """As a serving document has them."""
        from pratique_contract.serving import DownloadSpec

        return DownloadSpec(
            credentials_path=None if self.credentials is None else str(self.credentials),
            hub_endpoint=self.hub_endpoint,
            s3_endpoint=self.s3_endpoint,
            s3_region=self.s3_region,
            connections=self.connections,
        )


@contextmanager
def source_errors() -> Iterator[None]:
    """The errors of whoever asks a source for a person, as the command line's; also that the package for it is not installed. Nobody is
    told of what is fetched: the library reads that when it is imported, which is inside."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        from pratique_server.fetch import person
    except ImportError as error:
        raise missing_extra("server", error) from error
    try:
        yield
    except person.StoppedError as error:
        raise CliError(str(error), code=EXIT_INTERRUPTED) from error
    except person.PersonError as error:
        raise CliError(str(error)) from error
