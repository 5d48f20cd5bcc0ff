"""Options of the commands that talk to where models lie, each declared once, and the contract's form of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # pydantic is slow to import, and only commands that run need it
    from pratique_contract.serving import DownloadSpec

CredentialsOption = Annotated[
    Path | None,
    typer.Option(help="Folder with one file for each key: token, username, password, accessKeyId, …, ca.crt."),
]
HubOption = Annotated[str | None, typer.Option(help="A mirror of the hub. Default: HF_ENDPOINT.")]
S3Option = Annotated[str | None, typer.Option(help="An S3-compatible store. Default: the AWS one.")]
S3RegionOption = Annotated[str | None, typer.Option(help="Region of the bucket.")]
ConnectionsOption = Annotated[int, typer.Option(min=1, max=64, help="Connections at once.")]
TokenizerOnlyOption = Annotated[bool, typer.Option("--tokenizer-only", help="Leave the weights out.")]
CodeOption = Annotated[bool, typer.Option("--code", help="Also the model's own Python files (trustRemoteCode).")]


def make_download(
    *,
    credentials: Path | None,
    hub_endpoint: str | None,
    s3_endpoint: str | None,
    s3_region: str | None,
    connections: int,
) -> "DownloadSpec":
    """The options as a serving document has them."""
    from pratique_contract.serving import DownloadSpec

    return DownloadSpec(
        credentials_path=None if credentials is None else str(credentials),
        hub_endpoint=hub_endpoint,
        s3_endpoint=s3_endpoint,
        s3_region=s3_region,
        connections=connections,
    )
