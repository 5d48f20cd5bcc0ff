"""The commands that only read files: ``show``, ``diff``, ``stamp``."""

from pathlib import Path
from typing import Annotated

import typer

from pratique_cli.commands.release.options import (
    FileArgument,
    ImmutableOption,
    NameOption,
    RecordFormat,
    ServiceOption,
)
from pratique_cli.commands.release.output import describe_manifest, format_record, to_text, write
from pratique_cli.errors import EXIT_NO
from pratique_cli.printing import Format, emit, format_table, say, to_yaml


def show(
    file: FileArgument,
    form: Annotated[RecordFormat, typer.Option("--format", "-o", help="How to print it.")] = RecordFormat.TEXT,
    name: NameOption = None,
    service: ServiceOption = None,
    immutable: ImmutableOption = False,
) -> None:
    """Print the manifest of a record or manifest file; --format configmap wraps a whole record, with its signature when FILE.sig is
    there, for kubectl apply --server-side."""
    from pratique_cli.records import read_manifest, read_record_text

    if form is RecordFormat.CONFIGMAP:
        text = read_record_text(file).named(name, service=service)
        print(format_record(text, form, immutable=immutable), end="")
        return
    manifest = read_manifest(file)
    if form is not RecordFormat.TEXT:
        print(to_text(manifest.describe(), Format(form.value)), end="")
        return
    say(describe_manifest(manifest), end="")


def diff(
    approved: FileArgument,
    candidate: FileArgument,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.TEXT,
) -> None:
    """Compare two releases part by part, and two records of the same release by what they prove. Ends with 1 when they differ."""
    from pratique_cli.records import read_release
    from pratique_contract.compare import compare_golden, compare_manifests

    (reference, proof), (other, other_proof) = read_release(approved), read_release(candidate)
    differences = compare_manifests(reference, other)
    golden = () if differences or proof is None or other_proof is None else compare_golden(proof, other_proof)
    if form is Format.TEXT:
        rows = [(f"{d.part}.{f.path}", f.expected, f.observed) for d in differences for f in d.fields]
        rows += [(f.path, f.expected, f.observed) for f in golden]
        if not differences:
            say(f"The releases are the same{', what their records make a pod prove is not:' if golden else '.'}")
        if rows:
            say(format_table(("FIELD", "REFERENCE", "CANDIDATE"), rows))
    else:
        found = [difference.to_json_value() for difference in differences]
        emit([*found, *([{"part": "golden", "fields": [f.to_json_value() for f in golden]}] if golden else [])], form)
    if differences or golden:
        raise typer.Exit(EXIT_NO)


def stamp(
    file: Annotated[Path, typer.Argument(help="YAML file with one InferenceService.")],
    record_file: Annotated[Path, typer.Option("--record", help="The record of the approved release.")],
    record_ref: Annotated[
        str | None, typer.Option(help="Name of the record's ConfigMap. Default: NAME-release.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--write", help="Change the file in place (comments are lost).")] = False,
) -> None:
    """Print the YAML with spec.release.fingerprint and recordRef set to a record's release."""
    from pratique_cli.records import read_record, stamp_documents

    text = to_yaml(*stamp_documents(file, read_record(record_file), record_ref=record_ref))
    write(text, file if in_place else None)
