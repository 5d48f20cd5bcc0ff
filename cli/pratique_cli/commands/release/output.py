"""What the release commands print, and where to. Pure but for ``write``."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pratique_cli.commands.release.options import RecordFormat
from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.printing import Format, format_table, to_yaml

if TYPE_CHECKING:
    from pratique_cli.records import RecordText
    from pratique_contract.manifest import ReleaseManifest
    from pratique_contract.verdict import Verdict


def format_record(record: "RecordText", form: RecordFormat, *, immutable: bool) -> str:
    """A record as its file, or as the ConfigMap that carries the file's own text."""
    if form is RecordFormat.CONFIGMAP:
        return to_yaml(record.config_map(immutable=immutable))
    if form is RecordFormat.JSON:
        return record.text
    raise CliError("A record is written as json or configmap; release show prints it for people", code=EXIT_USAGE)


def signature_path(record: Path) -> Path:
    """The file beside a record's that holds its signature."""
    from pratique_contract.signature import signature_name

    return record.with_name(signature_name(record.name))


def describe_manifest(manifest: "ReleaseManifest") -> str:
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


def describe_verdict(verdict: "Verdict") -> str:
    """The sentence first, then what was expected and seen, then every check and every differing field."""
    lines = [f"{verdict.result}: {verdict.one_line()}"]
    if not verdict.passed:
        facts = (("Part", verdict.part), ("Expected", verdict.expected), ("Observed", verdict.observed))
        lines += [f"  {name + ':':<10} {_on_one_line(value)}" for name, value in facts if value]
    told = {verdict.message: "as said above"}
    rows = [
        (check.name, check.result, f"{check.duration_ms:.0f} ms", told.get(check.message, check.message))
        for check in verdict.checks
    ]
    lines += ["", format_table(("CHECK", "RESULT", "TIME", "FOUND"), rows)]
    if verdict.evidence:
        evidence = [(item.subject, item.expected, item.observed) for item in verdict.evidence]
        lines += ["", format_table(("EVIDENCE", "EXPECTED", "OBSERVED"), evidence)]
    return "\n".join(lines)


def _on_one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)


def to_text(value: Any, form: Format) -> str:
    return to_yaml(value) if form is Format.YAML else json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def require_writable(output: Path | None) -> None:
    """Raises ``CliError`` for a place that ``write`` could not write to: before the minutes that it takes to have something to write."""
    if output is None:
        return
    if output.is_dir():
        raise CliError(f"{output} cannot be written: it is a folder")
    place = output if output.exists() else output.absolute().parent
    if not place.exists():
        raise CliError(f"{output} cannot be written: there is no folder {place}")
    if not os.access(place, os.W_OK):
        raise CliError(f"{output} cannot be written: Permission denied")


def write(text: str, output: Path | None) -> None:
    """To the terminal, or to a file; raises ``CliError``."""
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise CliError(f"{output} cannot be written: {error.strerror or error}") from error
