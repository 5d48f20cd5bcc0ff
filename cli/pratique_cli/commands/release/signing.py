"""The commands about signatures: ``keygen``, ``sign``, ``verify-signature``."""

from pathlib import Path
from typing import Annotated

import typer

from pratique_cli.commands.release.options import (
    ImmutableOption,
    KeyOption,
    NameOption,
    OutputOption,
    RecordArgument,
    RecordFormat,
    ServiceOption,
)
from pratique_cli.commands.release.output import format_record, signature_path, write
from pratique_cli.errors import EXIT_NO, EXIT_USAGE, CliError
from pratique_cli.printing import note, say


def keygen(
    output: Annotated[Path, typer.Argument(help="File for the private key; the public one goes to FILE.pub.")],
) -> None:
    """Make an Ed25519 key pair. An existing file is never overwritten."""
    from pratique_cli.signatures import make_key_files

    public = make_key_files(output)
    note(f"Wrote the private key to {output} (keep it secret) and the public key to {public}")


def sign(
    file: Annotated[Path, typer.Argument(help="Record file.")],
    key: KeyOption,
    output: OutputOption = None,
    form: Annotated[
        RecordFormat | None,
        typer.Option("--format", "-o", help="configmap: print the ConfigMap with record and signature."),
    ] = None,
    name: NameOption = None,
    service: ServiceOption = None,
    immutable: ImmutableOption = False,
) -> None:
    """Sign the exact bytes of a record file: FILE.sig, or with --format configmap a ConfigMap that carries both."""
    from pratique_cli.records import read_record_text
    from pratique_cli.signatures import read_private_key, sign_text

    if form not in (None, RecordFormat.CONFIGMAP):
        raise CliError("A signature is written beside the record, or with it as --format configmap", code=EXIT_USAGE)
    read = read_record_text(file)
    signed = read.signed(sign_text(read_private_key(key), read.text))
    if form is RecordFormat.CONFIGMAP:
        write(format_record(signed.named(name, service=service), form, immutable=immutable), output)
        return
    if read.from_config_map:
        raise CliError(
            f"{file} is a ConfigMap: give --format configmap, since its signature stands in it", code=EXIT_USAGE
        )
    target = output or signature_path(file)
    write(str(signed.signature), target)
    note(f"Signed release {read.record.fingerprint}: {target}")


def verify_signature(
    file: RecordArgument,
    key: Annotated[Path, typer.Option("--key", help="PEM file with the public Ed25519 key, or several of them.")],
    signature: Annotated[
        Path | None, typer.Option(help="Signature file. Default: FILE.sig, or the one in the ConfigMap.")
    ] = None,
) -> None:
    """Check a record's signature. Ends with 1 when none of the keys made it over these very bytes."""
    from pratique_cli.records import read_record_text
    from pratique_cli.signatures import is_signed_by, read_public_keys
    from pratique_cli.specs import read_text

    read = read_record_text(file)
    text = read.signature if signature is None else read_text(signature)
    if text is None:
        raise CliError(f"{file} has no signature beside it; name one with --signature FILE")
    keys = read_public_keys(key)
    if not is_signed_by(keys, read.text, text):
        say(f"Not signed by {key}: the signature is not of these bytes, or of another key.")
        raise typer.Exit(EXIT_NO)
    say(f"Signed by {key}: release {read.record.fingerprint}")
