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
)
from pratique_cli.commands.release.output import (
    describe_manifest,
    describe_verdict,
    format_record,
    require_writable,
    signature_path,
    to_text,
    write,
)
from pratique_cli.errors import EXIT_NO, EXIT_USAGE, CliError
from pratique_cli.offline import run_offline
from pratique_cli.options import takes_options
from pratique_cli.pod_records import ManagementPort, at_url, obtain_record
from pratique_cli.printing import Format, emit, note, say

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from pratique_contract.record import ReleaseRecord
    from pratique_contract.verdict import Verdict


@takes_options(ReleaseOptions, "release")
def build(
    release: ReleaseOptions,
    output: OutputOption = None,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.JSON,
) -> None:
    """Load a release and print its manifest: eight parts, each with its digest, and the fingerprint."""
    require_writable(output)
    manifest = run_offline("build", release.spec())
    text = describe_manifest(manifest) if form is Format.TEXT else to_text(manifest.describe(), form)
    write(text, output)


@takes_options(ReleaseOptions, "release")
def record(
    release: ReleaseOptions,
    output: OutputOption = None,
    form: Annotated[RecordFormat, typer.Option("--format", "-o", help="json or configmap.")] = RecordFormat.JSON,
    name: NameOption = None,
    immutable: ImmutableOption = False,
    key: Annotated[
        Path | None, typer.Option("--key", help="Sign with this private key: into the ConfigMap, or to OUTPUT.sig.")
    ] = None,
    add_output: Annotated[
        Path | None,
        typer.Option(
            "--add-output", help="Add what this device answers to an approved record, and change nothing else."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Let a running pod record: its management port (http://127.0.0.1:8001).")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="With --service NAME. Default: the context's.")
    ] = None,
    pod: Annotated[str | None, typer.Option("--pod", help="With --service NAME: this pod, not any.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="With --service NAME: kubeconfig context.")] = None,
) -> None:
    """Load a release, render the fixtures, search for clear golden cases, and write the record. Or let a running pod do that with
    its own engine: --service NAME -n NAMESPACE, or --url."""
    from pratique_cli.records import RecordText, read_record

    if key is not None and form is RecordFormat.JSON and output is None:
        raise CliError(
            "--key needs --output FILE (the signature goes beside it) or --format configmap", code=EXIT_USAGE
        )
    require_writable(output)
    base = None if add_output is None else read_record(add_output)
    private = None if key is None else _read_key(key)
    port = _running_pod(release, url=url, namespace=namespace, pod=pod, context=context)
    if form is RecordFormat.CONFIGMAP and name is None:
        name = _default_name(release)
    made = _record_here(release, base) if port is None else obtain_record(port, base=base, tell=note)
    text = RecordText.of(made, name=name)
    if private is not None:
        from pratique_cli.signatures import sign_text

        text = text.signed(sign_text(private, text.text))
    write(format_record(text, form, immutable=immutable), output)
    if text.signature is not None and form is RecordFormat.JSON and output is not None:
        write(text.signature, signature_path(output))
    note(_say_recorded(made, base))


def _read_key(path: Path) -> "Ed25519PrivateKey":
    """Before anything is loaded: a wrong password is no reason to search for golden cases again."""
    from pratique_cli.signatures import read_private_key

    return read_private_key(path)


def _running_pod(
    release: ReleaseOptions, *, url: str | None, namespace: str | None, pod: str | None, context: str | None
) -> ManagementPort | None:
    """The pod that shall record, or None when this machine does. ``--service`` without files to load names a running service."""
    folder = release.config or release.model
    if url is not None:
        if release.given or namespace or pod or context:
            raise CliError(
                "--url names the pod; options that say what to load or where to look do not go with it", code=EXIT_USAGE
            )
        return at_url(url)
    if release.service is None or folder is not None:
        if namespace or pod or context:
            raise CliError("--namespace, --pod and --context go with --service NAME", code=EXIT_USAGE)
        return None
    if release.service.is_file():
        raise CliError(
            f"{release.service} is a file: say with --model DIR which files the release is of", code=EXIT_USAGE
        )
    if release.service.suffix or len(release.service.parts) > 1:  # no service has such a name
        raise CliError(f"There is no file {release.service}, and no service can have that name")
    from pratique_cli.kube import Cluster
    from pratique_contract.constants import MANAGEMENT_PORT

    cluster = Cluster(context=context)
    where = namespace or cluster.namespace
    chosen = pod or cluster.any_pod(str(release.service), where)
    note(f"Asking pod {where}/{chosen}")
    return lambda method, path, body: cluster.request_pod(chosen, MANAGEMENT_PORT, where, method, path, body)


def _record_here(release: ReleaseOptions, base: "ReleaseRecord | None") -> "ReleaseRecord":
    spec = release.spec()
    if base is None:
        note(
            f"Loading {spec.model.path} and searching for golden cases (about a minute for a small model on a quiet machine)"
        )
        made: ReleaseRecord = run_offline("record", spec, progress=_tell_progress)
        return made
    note(f"Loading {spec.model.path} and running the golden cases of release {base.fingerprint}")
    extended: ReleaseRecord
    extended, loaded = run_offline("extend", spec, base)
    if loaded.fingerprint != base.fingerprint:
        note(
            f"Here the files are release {loaded.fingerprint} (another engine or dtype): its outputs are recorded beside the others, "
            "and a pod that loads it still needs a record of its own"
        )
    return extended


def _tell_progress(said: str) -> None:
    note(f"The record is being made: {said}")


def _say_recorded(made: "ReleaseRecord", base: "ReleaseRecord | None") -> str:
    golden = made.golden
    if base is None:
        refused = f" ({len(golden.refused)} refused by the template)" if golden.refused else ""
        fixtures = len(golden.fixtures) + len(golden.refused)
        return f"Recorded release {made.fingerprint}: {fixtures} fixtures{refused}, {len(golden.cases)} golden cases"
    known = {output for case in base.golden.cases for output in case.outputs}
    new = [output for case in golden.cases for output in case.outputs if output not in known]
    if not new:
        return f"The record of release {made.fingerprint} has the outputs of this device already"
    where = f"{new[0].dtype} on {new[0].device_class}"
    return f"Added the outputs of {where} to release {made.fingerprint}; a signature has to be made anew"


def _default_name(release: ReleaseOptions) -> str:
    """What the service's recordRef names. A folder alone belongs to no service, and a made-up name would match none."""
    from pratique_cli.records import map_name, record_ref_of
    from pratique_cli.specs import read_service

    if release.service is not None and release.model is None:
        return map_name(str(release.service))
    if release.service is not None:
        return record_ref_of(read_service(release.service))
    if release.config is None:
        raise CliError("Name the ConfigMap as recordRef does: --name, or --service FILE", code=EXIT_USAGE)
    return map_name(release.spec().service)


@takes_options(ReleaseOptions, "release")
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
        say(describe_verdict(verdict))
    else:
        emit(verdict.to_json_value(), form)
    if not verdict.passed:
        raise typer.Exit(EXIT_NO)
