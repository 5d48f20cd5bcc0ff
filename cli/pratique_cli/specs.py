"""From options to the serving document: a whole document, or a model folder (with an InferenceService) and a few words.

``--config`` is exactly what a pod reads. ``--service`` maps a manifest the way the operator does, so that what is recorded on a
desk has the fingerprint the pods will have; ``--model`` says where the files lie on this machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pratique_cli.errors import EXIT_USAGE, CliError, missing_extra

TEXT_BYTES_MAX: Final = 64 * 1024 * 1024

if TYPE_CHECKING:  # pydantic is slow to import, and only commands that run need it
    from pratique_contract.serving import ServingSpec


def read_config(path: Path) -> "ServingSpec":
    """A serving document; raises ``CliError`` with the first wrong field named."""
    from pydantic import ValidationError

    from pratique_contract.serving import ServingSpec

    try:
        return ServingSpec.model_validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise CliError(f"{path} is not a serving document at {field}: {first['msg']}") from error


def choose_spec(
    *,
    config: Path | None,
    model: Path | None,
    service: Path | None,
    tokenizer: Path | None = None,
    chat_template: Path | None = None,
    adapter: Sequence[str] | None = None,
    quantization: str | None = None,
    quantization_keep: Sequence[str] | None = None,
    dtype: str | None = None,
    trust_remote_code: bool | None = None,
    image: str | None = None,
    max_model_len: int | None = None,
    name: str | None = None,
) -> "ServingSpec":
    """The document the options describe; raises ``CliError`` for options that contradict each other: none is ever ignored."""
    if (config is None) == (model is None):
        raise CliError("Give either --config FILE or --model DIR", code=EXIT_USAGE)
    numeric = {
        "--quantization": quantization,
        "--quantization-keep": quantization_keep,
        "--dtype": dtype,
        "--max-model-len": max_model_len,
        "--trust-remote-code": trust_remote_code,
    }
    if config is not None:
        files = {"--service": service, "--tokenizer": tokenizer, "--chat-template": chat_template, "--adapter": adapter}
        _refuse("--config is a whole document", {**files, "--image": image, **numeric})
        return read_config(config)
    assert model is not None  # one of the two, checked above
    template = None if chat_template is None else read_text(chat_template)
    adapters = parse_adapters(adapter or ())
    if service is not None:
        _refuse("--service says how to serve", numeric)
        return service_spec(
            service,
            model=model,
            tokenizer=tokenizer,
            chat_template=template,
            image=image or "",
            adapters=adapters,
        )
    return folder_spec(
        model,
        tokenizer=tokenizer,
        chat_template=template,
        adapters=adapters,
        quantization=quantization,
        quantization_keep=quantization_keep,
        dtype=dtype,
        trust_remote_code=bool(trust_remote_code),
        image=image,
        max_model_len=max_model_len,
        name=name,
    )


def require_folders(spec: "ServingSpec") -> None:
    """Raise ``CliError`` when the model's or the tokenizer's folder lacks what every load needs: before minutes of loading, and naming
    the file."""
    try:
        from pratique_server.artifacts.errors import FolderError
        from pratique_server.artifacts.folders import require_model_folder, require_tokenizer_folder
    except ImportError as error:
        raise missing_extra("server", error) from error
    try:
        require_model_folder(Path(spec.model.path))
        require_tokenizer_folder(Path((spec.tokenizer or spec.model).path))
    except FolderError as error:
        raise CliError(str(error)) from error


def _refuse(why: str, options: Mapping[str, object]) -> None:
    given = [option for option, value in options.items() if value]
    if given:
        raise CliError(f"{why}; {', '.join(given)} cannot add to it", code=EXIT_USAGE)


def parse_adapters(given: Sequence[str]) -> dict[str, Path]:
    """Folders by adapter name, in order, from ``NAME=DIR`` each."""
    adapters: dict[str, Path] = {}
    for item in given:
        name, separator, folder = item.partition("=")
        if not (name and separator and folder) or name in adapters:
            raise CliError(f"--adapter takes NAME=DIR, each name once; {item!r} is not that", code=EXIT_USAGE)
        adapters[name] = Path(folder)
    return adapters


def folder_spec(
    model: Path,
    *,
    tokenizer: Path | None = None,
    chat_template: str | None = None,
    adapters: Mapping[str, Path] | None = None,
    quantization: str | None = None,
    quantization_keep: Sequence[str] | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    image: str | None = None,
    max_model_len: int | None = None,
    name: str | None = None,
) -> "ServingSpec":
    """Everything by default, from a folder on this machine. Raises ``CliError`` naming the first wrong value."""
    from pydantic import ValidationError

    from pratique_contract.canonical import is_digest
    from pratique_contract.serving import ServingSpec

    method = quantization or "None"
    if quantization_keep and method == "None":
        raise CliError(
            "--quantization-keep says what --quantization leaves as it is; give --quantization Int8WeightOnly",
            code=EXIT_USAGE,
        )
    digest = (image or "").partition("@")[2]
    value: dict[str, Any] = {
        "servedModelName": name or model.resolve().name,
        "model": {
            "path": str(model),
            "uri": model.resolve().as_uri(),
            "trustRemoteCode": trust_remote_code,
            "adapters": [
                {"name": adapter, "path": str(folder), "uri": folder.resolve().as_uri()}
                for adapter, folder in (adapters or {}).items()
            ],
        },
        "tokenizer": None if tokenizer is None else {"path": str(tokenizer), "uri": tokenizer.resolve().as_uri()},
        "chatTemplate": chat_template,
        "quantization": {
            "dtype": dtype,
            "method": method,
            "config": {"keep": sorted(set(quantization_keep))} if quantization_keep else {},
        },
        "engine": {"maxModelLen": max_model_len, "imageDigest": digest if is_digest(digest) else None},
    }
    try:
        return ServingSpec.from_json_value(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CliError(f"The options make no serving document: {field}: {first['msg']}", code=EXIT_USAGE) from error


def service_spec(
    path: Path,
    *,
    model: Path,
    tokenizer: Path | None,
    chat_template: str | None,
    image: str,
    adapters: Mapping[str, Path] | None = None,
) -> "ServingSpec":
    """What the operator will hand to this service's pods, with the files of this machine."""
    try:
        from pratique_operator.api.types import parse_spec
        from pratique_operator.desired.serving import build_serving
        from pratique_operator.errors import InvalidSpecError
    except ImportError as error:
        raise missing_extra("operator", error) from error
    manifest = read_service(path)
    try:
        spec = parse_spec(manifest.get("spec"))
    except InvalidSpecError as error:
        raise CliError(f"{path}: {error}") from error
    declared = spec.chat_template
    if declared is not None and declared.inline is None and chat_template is None:
        raise CliError(
            "The chat template is kept in the cluster; give its text with --chat-template FILE", code=EXIT_USAGE
        )
    if spec.tokenizer is not None and tokenizer is None:
        raise CliError(
            "The service names a tokenizer of its own; give its folder with --tokenizer DIR", code=EXIT_USAGE
        )
    metadata = manifest.get("metadata", {})
    serving = build_serving(
        spec,
        service=metadata.get("name", ""),
        namespace=metadata.get("namespace", "default"),
        image=spec.engine.image or image,
        chat_template=chat_template or (declared.inline if declared is not None else None),
        record=None,
    )
    value = serving.to_json_value()
    value["model"]["path"] = str(model)
    value["chatTemplatePath"] = None
    if value["tokenizer"] is not None:
        value["tokenizer"]["path"] = str(tokenizer)
    _place_adapters(value["model"]["adapters"], adapters or {})
    return type(serving).from_json_value(value)


def _place_adapters(declared: list[dict[str, Any]], folders: Mapping[str, Path]) -> None:
    """The service says which adapters and in which order, the options where their files lie on this machine."""
    names = [adapter["name"] for adapter in declared]
    if set(names) != set(folders):
        given = ", ".join(folders) or "none"
        raise CliError(
            f"The service names the adapters {', '.join(names) or 'none'}; give the folder of each with "
            f"--adapter NAME=DIR (given: {given})",
            code=EXIT_USAGE,
        )
    for adapter in declared:
        adapter["path"] = str(folders[adapter["name"]])


def read_service(path: Path) -> dict[str, Any]:
    """The one InferenceService in a YAML file; raises ``CliError`` when there is not exactly one."""
    services = [document for document in read_documents(path) if is_service(document)]
    if len(services) != 1:
        raise CliError(f"{path} holds {len(services)} InferenceServices, not one")
    return dict(services[0])


def is_service(document: Any) -> bool:
    from pratique_contract.constants import GROUP, KIND

    return (
        isinstance(document, Mapping)
        and document.get("kind") == KIND
        and str(document.get("apiVersion", "")).startswith(f"{GROUP}/")
    )


def read_documents(path: Path) -> list[Any]:
    import yaml

    try:
        return [document for document in yaml.safe_load_all(read_text(path)) if document is not None]
    except yaml.YAMLError as error:
        raise CliError(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise CliError(f"{path} is nested more deeply than any manifest") from error


def read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(TEXT_BYTES_MAX + 1)
        if len(content) > TEXT_BYTES_MAX:
            raise CliError(f"{path} has more than {TEXT_BYTES_MAX} bytes: no record, manifest or document is so large")
        return content.decode()
    except IsADirectoryError as error:
        raise CliError(f"{path} is a folder, and a file is needed here") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
