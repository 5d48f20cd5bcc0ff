"""The commands that load a release: ``build``, ``record``, ``verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pratique_cli.commands.release.options import (
    ImmutableOption,
    NameOption,
    OutputOption,
    RecordFormat,
    ReleaseOptions,
    takes_releases,
)
from pratique_cli.commands.release.output import (
    describe_manifest,
    describe_verdict,
    format_record,
    signature_path,
    to_text,
    write,
)
from pratique_cli.errors import EXIT_NO, EXIT_USAGE, CliError
from pratique_cli.offline import run_offline
from pratique_cli.printing import Format, emit, note

if TYPE_CHECKING:
    from pratique_contract.record import ReleaseRecord
    from pratique_contract.serving import ServingSpec
    from pratique_contract.verdict import Verdict


@takes_releases("release")
def build(
    release: ReleaseOptions,
    output: OutputOption = None,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.JSON,
) -> None:
    """Load a release and print its manifest: eight parts, each with its digest, and the fingerprint."""
    manifest = run_offline("build", release.spec())
    text = describe_manifest(manifest) if form is Format.TEXT else to_text(manifest.describe(), form)
    write(text, output)


@takes_releases("release")
def record(
    release: ReleaseOptions,
    output: OutputOption = None,
    form: Annotated[RecordFormat, typer.Option("--format", "-o", help="json or configmap.")] = RecordFormat.JSON,
    name: NameOption = None,
    immutable: ImmutableOption = False,
    key: Annotated[
        Path | None, typer.Option("--key", help="Sign with this private key: into the ConfigMap, or to OUTPUT.sig.")
    ] = None,
) -> None:
    """Load a release, render the fixtures, search for clear golden cases, and write the record."""
    from pratique_cli.records import RecordText

    spec = release.spec()
    if form is RecordFormat.CONFIGMAP and name is None:
        name = _default_name(release, spec)
    if key is not None and form is RecordFormat.JSON and output is None:
        raise CliError(
            "--key needs --output FILE (the signature goes beside it) or --format configmap", code=EXIT_USAGE
        )
    note(f"Loading {spec.model.path} and searching for golden cases (about a minute for a small model)")
    made: ReleaseRecord = run_offline("record", spec)
    text = RecordText.of(made, name=name)
    if key is not None:
        from pratique_cli.signatures import read_private_key, sign_text

        text = text.signed(sign_text(read_private_key(key), text.text))
    write(format_record(text, form, immutable=immutable), output)
    if text.signature is not None and form is RecordFormat.JSON and output is not None:
        write(text.signature, signature_path(output))
    note(
        f"Recorded release {made.fingerprint}: {len(made.golden.fixtures)} fixtures, {len(made.golden.cases)} golden cases"
    )


def _default_name(release: ReleaseOptions, spec: "ServingSpec") -> str:
    """What the service's recordRef names. A folder alone belongs to no service, and a made-up name would match none."""
    from pratique_cli.records import map_name, record_ref_of
    from pratique_cli.specs import read_service

    if release.service is not None:
        return record_ref_of(read_service(release.service))
    if release.config is None:
        raise CliError("Name the ConfigMap as recordRef does: --name, or --service FILE", code=EXIT_USAGE)
    return map_name(spec.service)


@takes_releases("release")
def verify(
    release: ReleaseOptions,
    record_file: Annotated[Path, typer.Option("--record", help="The record to prove.")],
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print the verdict.")] = Format.TEXT,
) -> None:
    """Load a release and check it against a record, without HTTP. Ends with 1 when it is not the recorded release."""
    from pratique_cli.records import read_record

    approved = read_record(record_file)
    verdict: Verdict = run_offline("verify", release.spec(), approved)
    if form is Format.TEXT:
        print(describe_verdict(verdict))
    else:
        emit(verdict.to_json_value(), form)
    if not verdict.passed:
        raise typer.Exit(EXIT_NO)
