"""``pratique serve``: one process tree that loads, proves and serves a release, with or without a cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pratique_cli.errors import EXIT_USAGE, CliError, missing_extra


def serve(
    config: Annotated[Path | None, typer.Option(help="Serving document, as the operator mounts it.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model folder; everything else by default.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Release record to prove. With --model it is needed unless --trust-first.")
    ] = None,
    trust_first: Annotated[
        bool,
        typer.Option("--trust-first", help="Serve without a record, unapproved, once the server agrees with itself."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="Served model name. Default: the folder's name.")] = None,
    dtype: Annotated[str | None, typer.Option(help="FP32, FP16 or BF16. Default: the checkpoint's.")] = None,
    quantization: Annotated[str | None, typer.Option(help="None or Int8WeightOnly. Default: None.")] = None,
    quantization_keep: Annotated[
        list[str] | None,
        typer.Option(help="Layers to leave unquantized, as in spec.quantization.config.keep; may be repeated."),
    ] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(help="Adapter as NAME=DIR, in the order of application; may be repeated.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python files in the model's folder.")
    ] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of a tokenizer of its own.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context limit. Default: the model's own.")] = None,
    chat_template: Annotated[Path | None, typer.Option(help="File with the chat template.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1 with --model.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="API port. Default: 8000.")] = None,
    management_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of probes, verdict and metrics. Default: 8001.")
    ] = None,
) -> None:
    """Load a model, prove its release through its own HTTP path, then serve it."""
    from pratique_cli.specs import choose_spec, require_folders

    spec = choose_spec(
        config=config,
        model=model,
        service=None,
        tokenizer=tokenizer,
        chat_template=chat_template,
        adapter=adapter,
        quantization=quantization,
        quantization_keep=quantization_keep,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        max_model_len=max_model_len,
        name=name,
    )
    if config is None and record is None and not trust_first:
        raise CliError("Give the approved --record FILE, or --trust-first to serve unapproved", code=EXIT_USAGE)
    if record is not None and not record.is_file():
        raise CliError(f"The release record {record} {'is a folder' if record.is_dir() else 'does not exist'}")
    if config is None:  # with a document it serves its reason, as a pod must
        require_folders(spec)
    changes: dict[str, Any] = {"host": host or ("127.0.0.1" if config is None else spec.host)}
    if port is not None:
        changes["api_port"] = port
    if management_port is not None:
        changes["management_port"] = management_port
    release: dict[str, Any] = {}
    if record is not None:
        release["record_path"] = str(record)
    if trust_first:
        release["policy"] = "TrustFirst"
    changes["release"] = spec.release.model_copy(update=release)
    try:
        from pratique_server.imports import import_large

        import_large("pratique_server.serve")
        from pratique_server.serve import run
    except ImportError as error:
        raise missing_extra("server", error) from error
    raise typer.Exit(run(spec.model_copy(update=changes)))
