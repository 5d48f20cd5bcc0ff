"""``pratique release``: describe, record, verify, show, compare and stamp releases, without a cluster."""

from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pratique_cli.errors import EXIT_NO, EXIT_USAGE, CliError, missing_extra
from pratique_cli.printing import Format, emit, format_table, note, to_yaml

if TYPE_CHECKING:
    from pratique_contract.manifest import ReleaseManifest
    from pratique_contract.record import ReleaseRecord
    from pratique_contract.serving import ServingSpec
    from pratique_contract.verdict import Verdict

T = TypeVar("T")

app = typer.Typer(help="Describe, record, verify, show, compare and stamp releases.", no_args_is_help=True)


class RecordFormat(StrEnum):
    """How a record is written."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    CONFIGMAP = "configmap"


ConfigOption = Annotated[Path | None, typer.Option("--config", help="Serving document, as a pod reads it.")]
ModelOption = Annotated[Path | None, typer.Option("--model", help="Folder with the model's files.")]
ServiceOption = Annotated[
    Path | None, typer.Option("--service", help="InferenceService manifest the release is for (with --model).")
]
TokenizerOption = Annotated[Path | None, typer.Option("--tokenizer", help="Folder of a tokenizer of its own.")]
TemplateOption = Annotated[Path | None, typer.Option("--chat-template", help="File with the chat template.")]
ImageOption = Annotated[
    str | None, typer.Option("--image", help="Server image the pods will run; identity only when named by digest.")
]
OutputOption = Annotated[Path | None, typer.Option("--output", help="Write to a file instead of the terminal.")]
FileArgument = Annotated[Path, typer.Argument(help="Record, ConfigMap with a record, or manifest.")]


@app.command()
def build(
    config: ConfigOption = None,
    model: ModelOption = None,
    service: ServiceOption = None,
    tokenizer: TokenizerOption = None,
    chat_template: TemplateOption = None,
    image: ImageOption = None,
    output: OutputOption = None,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.JSON,
) -> None:
    """Load a release and print its manifest: eight parts, each with its digest, and the fingerprint."""
    spec = _spec(config, model, service, tokenizer, chat_template, image)
    manifest = _load(spec, "build")
    if form is Format.TEXT:
        _write(_describe_manifest(manifest), output)
        return
    _write(_to_text(manifest.describe(), form), output)


@app.command()
def record(
    config: ConfigOption = None,
    model: ModelOption = None,
    service: ServiceOption = None,
    tokenizer: TokenizerOption = None,
    chat_template: TemplateOption = None,
    image: ImageOption = None,
    output: OutputOption = None,
    form: Annotated[RecordFormat, typer.Option("--format", "-o", help="json or configmap.")] = RecordFormat.JSON,
    name: Annotated[str | None, typer.Option(help="Name of the ConfigMap. Default: SERVICE-release.")] = None,
    immutable: Annotated[bool, typer.Option("--immutable", help="Make the ConfigMap immutable.")] = False,
) -> None:
    """Load a release, render the fixtures, search for clear golden cases, and write the record."""
    spec = _spec(config, model, service, tokenizer, chat_template, image)
    note(f"Loading {spec.model.path} and searching for golden cases (about a minute for a small model)")
    made: ReleaseRecord = _load(spec, "record")
    _write(_record_text(made, form, name=name or f"{spec.service}-release", immutable=immutable), output)
    note(
        f"Recorded release {made.fingerprint}: {len(made.golden.fixtures)} fixtures, {len(made.golden.cases)} golden cases"
    )


@app.command()
def verify(
    record_file: Annotated[Path, typer.Option("--record", help="The record to prove.")],
    config: ConfigOption = None,
    model: ModelOption = None,
    service: ServiceOption = None,
    tokenizer: TokenizerOption = None,
    chat_template: TemplateOption = None,
    image: ImageOption = None,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print the verdict.")] = Format.TEXT,
) -> None:
    """Load a release and check it against a record, without HTTP. Ends with 1 when it is not the recorded release."""
    from pratique_cli.records import read_record

    approved = read_record(record_file)
    spec = _spec(config, model, service, tokenizer, chat_template, image)
    verdict: Verdict = _load(spec, "verify", approved)
    if form is Format.TEXT:
        print(_describe_verdict(verdict))
    else:
        emit(verdict.to_json_value(), form)
    if not verdict.passed:
        raise typer.Exit(EXIT_NO)


@app.command()
def show(
    file: FileArgument,
    form: Annotated[RecordFormat, typer.Option("--format", "-o", help="How to print it.")] = RecordFormat.TEXT,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the ConfigMap, as in recordRef (NAME-release unless stamped otherwise). Default: the file's."
        ),
    ] = None,
    immutable: Annotated[bool, typer.Option("--immutable", help="Make the ConfigMap immutable.")] = False,
) -> None:
    """Print the manifest of a record or manifest file; --format configmap wraps a whole record for kubectl apply --server-side."""
    from pratique_cli.records import read_manifest, read_record

    if form is RecordFormat.CONFIGMAP:
        print(_record_text(read_record(file), form, name=name or file.stem, immutable=immutable), end="")
        return
    manifest = read_manifest(file)
    if form is not RecordFormat.TEXT:
        print(_to_text(manifest.describe(), Format(form.value)), end="")
        return
    print(_describe_manifest(manifest), end="")


@app.command()
def diff(
    approved: FileArgument,
    candidate: FileArgument,
    form: Annotated[Format, typer.Option("--format", "-o", help="How to print it.")] = Format.TEXT,
) -> None:
    """Compare two releases part by part. Ends with 1 when they differ."""
    from pratique_cli.records import read_manifest
    from pratique_contract.compare import compare_manifests

    differences = compare_manifests(read_manifest(approved), read_manifest(candidate))
    if form is Format.TEXT:
        rows = [(f"{d.part}.{f.path}", f.expected, f.observed) for d in differences for f in d.fields]
        print(format_table(("FIELD", "APPROVED", "CANDIDATE"), rows) if rows else "The releases are the same.")
    else:
        emit([difference.to_json_value() for difference in differences], form)
    if differences:
        raise typer.Exit(EXIT_NO)


@app.command()
def stamp(
    file: Annotated[Path, typer.Argument(help="YAML file with one InferenceService.")],
    record_file: Annotated[Path, typer.Option("--record", help="The record of the approved release.")],
    record_ref: Annotated[
        str | None, typer.Option(help="Name of the record's ConfigMap. Default: NAME-release.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file in place (comments are lost).")] = False,
) -> None:
    """Print the YAML with spec.release.fingerprint and recordRef set to a record's release."""
    from pratique_cli.records import read_record, stamp_documents

    text = to_yaml(*stamp_documents(file, read_record(record_file), record_ref=record_ref))
    _write(text, file if write else None)


def _spec(
    config: Path | None,
    model: Path | None,
    service: Path | None,
    tokenizer: Path | None,
    chat_template: Path | None,
    image: str | None,
) -> "ServingSpec":
    from pratique_cli.specs import choose_spec

    return choose_spec(
        config=config,
        model=model,
        service=service,
        tokenizer=tokenizer,
        chat_template=chat_template,
        image=image,
    )


def _load(spec: "ServingSpec", action: str, *arguments: Any) -> Any:
    """Run one of the server's offline actions; its errors are sentences already."""
    import asyncio
    import os

    # Offline, like a pod: what is recorded is what lies in the folder, not what a hub has today.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    try:
        from pratique_server.engine.protocol import EngineError
        from pratique_server.errors import PratiqueError
        from pratique_server.gate.offline import verify_release
        from pratique_server.release.errors import ReleaseError
        from pratique_server.release.offline import build_release, record_release
        from pratique_server.text.tokenizer import TokenizerError
    except ImportError as error:
        raise missing_extra("server", error) from error
    actions = {"build": build_release, "record": record_release, "verify": verify_release}
    work: Coroutine[Any, Any, Any] = actions[action](spec, *arguments)  # type: ignore[operator]
    try:
        return asyncio.run(work)
    except (EngineError, PratiqueError, ReleaseError, TokenizerError) as error:
        raise CliError(str(error)) from error


def _record_text(record: "ReleaseRecord", form: RecordFormat, *, name: str, immutable: bool) -> str:
    from pratique_cli.records import build_config_map
    from pratique_contract.record import RecordError

    try:
        text = record.to_json()
    except RecordError as error:
        raise CliError(str(error)) from error
    if form is RecordFormat.CONFIGMAP:
        return to_yaml(build_config_map(record, name=name, immutable=immutable))
    if form is RecordFormat.JSON:
        return f"{text}\n"
    raise CliError("A record is written as json or configmap; release show prints it for people", code=EXIT_USAGE)


def _describe_manifest(manifest: "ReleaseManifest") -> str:
    summaries = {
        "model": f"{manifest.model.architecture}, {len(manifest.model.files)} files, "
        f"{manifest.model.source or 'location'}@{manifest.model.revision}",
        "adapters": ", ".join(adapter.name for adapter in manifest.adapters.adapters) or "none",
        "tokenizer": f"{manifest.tokenizer.vocab_size} tokens, {len(manifest.tokenizer.files)} files",
        "chatTemplate": f"{manifest.chat_template.length} characters",
        "specialTokens": f"stop ids {list(manifest.special_tokens.stop_ids)}, context {manifest.special_tokens.context_limit}",
        "quantization": f"{manifest.quantization.method}, {manifest.quantization.dtype}",
        "engine": f"{manifest.engine.name} {manifest.engine.version}",
        "servingFlags": f"{len(manifest.serving_flags.flags)} flags",
    }
    rows = [(part, digest.removeprefix("sha256:")[:12], summaries[part]) for part, digest in manifest.digests.items()]
    return f"Fingerprint: {manifest.fingerprint}\n\n{format_table(('PART', 'DIGEST', 'HOLDS'), rows)}\n"


def _describe_verdict(verdict: "Verdict") -> str:
    rows = [(check.name, check.result, f"{check.duration_ms:.0f} ms", check.message) for check in verdict.checks]
    lines = [f"{verdict.result}: {verdict.one_line()}", "", format_table(("CHECK", "RESULT", "TIME", "FOUND"), rows)]
    if verdict.evidence:
        evidence = [(item.subject, item.expected, item.observed) for item in verdict.evidence]
        lines += ["", format_table(("EVIDENCE", "APPROVED", "OBSERVED"), evidence)]
    return "\n".join(lines)


def _to_text(value: Any, form: Format) -> str:
    import json

    return to_yaml(value) if form is Format.YAML else json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{output} cannot be written: {error.strerror or error}") from error
