"""``pratique resolve``: from a branch, tag, archive or bucket to the lines of a manifest that always name the same bytes."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pratique_cli.options import takes_options
from pratique_cli.printing import Format, emit, note, to_yaml
from pratique_cli.source_options import SourceOptions, source_errors

if TYPE_CHECKING:
    from pratique_server.fetch.resolve import Resolved


@takes_options(SourceOptions, "source")
def resolve(
    uri: Annotated[
        str,
        typer.Argument(
            help="hf://owner/name[@branch], oci://registry/repository:tag, https://host/path.tar.gz or s3://bucket/prefix."
        ),
    ],
    revision: Annotated[
        str | None, typer.Option(help="Branch or tag, when the URI names none. Default for the hub: main.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-o", help="text: the two lines of a manifest.")] = Format.TEXT,
    *,
    source: SourceOptions,
) -> None:
    """Print uri and revision as spec.model, an adapter or spec.tokenizer takes them: what a moving name stands for now. An https://
    archive is read whole for its digest (into TMPDIR, and removed)."""
    with source_errors():
        from pratique_server.fetch import person

        found = person.resolve_for_person(
            uri,
            revision=revision,
            download=source.download(),
            weights=not source.tokenizer_only,
            code=source.code,
        )
    if form is Format.TEXT:
        print(to_yaml(_lines(found)), end="")
        note(_describe(found))
    else:
        emit({**_lines(found), "files": [_file(file) for file in found.files]}, form)


def _lines(found: "Resolved") -> dict[str, str]:
    return {"uri": found.uri, "revision": found.revision}


def _file(file: Any) -> dict[str, Any]:
    return {"path": file.path, "size": file.size, "checksum": None if file.checksum is None else str(file.checksum)}


def _describe(found: "Resolved") -> str:
    from pratique_server.fetch.progress import size_text

    count = f"{len(found.files)} file{'' if len(found.files) == 1 else 's'}"
    return f"A pod fetches {count}" + ("" if found.size is None else f", {size_text(found.size)}")
