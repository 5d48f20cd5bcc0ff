"""Options that several release commands take, each declared once.

A release that is loaded has eleven of them, and a review takes two releases. ``takes_releases`` gives a command one ``ReleaseOptions`` per
prefix instead of eleven parameters: typer reads a function's signature, so the signature is made of the table.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pratique_cli.errors import CliError

if TYPE_CHECKING:
    from pratique_contract.serving import ServingSpec


class RecordFormat(StrEnum):
    """How a record is written."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    CONFIGMAP = "configmap"


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """What says which release to load, as it was typed."""

    config: Path | None = None
    model: Path | None = None
    service: Path | None = None
    tokenizer: Path | None = None
    chat_template: Path | None = None
    adapter: list[str] | None = None
    quantization: str | None = None
    quantization_keep: list[str] | None = None
    dtype: str | None = None
    trust_remote_code: bool | None = None
    image: str | None = None
    prefix: str = ""

    @property
    def given(self) -> bool:
        """Whether any of them was typed."""
        return any(getattr(self, field.name) for field in fields(self) if field.name != "prefix")

    def spec(self) -> "ServingSpec":
        """The serving document; raises ``CliError`` for options that contradict each other."""
        from pratique_cli.specs import choose_spec, require_folders

        try:
            spec = choose_spec(**{f.name: getattr(self, f.name) for f in fields(self) if f.name != "prefix"})
            require_folders(spec)
            return spec
        except CliError as error:
            # The sentences name plain options; a review has them twice.
            raise CliError(re.sub(r"--(?=[a-z])", f"--{self.prefix}", str(error)), code=error.code) from error


# Field of ReleaseOptions: its type and its help.
_RELEASE: Final[dict[str, tuple[Any, str]]] = {
    "config": (Path | None, "Serving document, as a pod reads it."),
    "model": (Path | None, "Folder with the model's files."),
    "service": (
        Path | None,
        "InferenceService manifest the release is for (with the model's folder). record: or a running service's name.",
    ),
    "tokenizer": (Path | None, "Folder of a tokenizer of its own."),
    "chat_template": (Path | None, "File with the chat template."),
    "adapter": (list[str] | None, "Adapter as NAME=DIR, in the order of application; may be repeated."),
    "quantization": (str | None, "Quantization method, as in spec.quantization.method. Default: None."),
    "quantization_keep": (
        list[str] | None,
        "Layers to leave unquantized, as in spec.quantization.config.keep; may be repeated.",
    ),
    "dtype": (str | None, "FP32, FP16 or BF16. Default: the checkpoint's."),
    "trust_remote_code": (bool | None, "Run the Python files in the model's folder; they become part of the release."),
    "image": (str | None, "Server image the pods will run; identity only when named by digest."),
}

OutputOption = Annotated[Path | None, typer.Option("--output", help="Write to a file instead of the terminal.")]
FileArgument = Annotated[Path, typer.Argument(help="Record, ConfigMap with a record, or manifest.")]
RecordArgument = Annotated[Path, typer.Argument(help="Record, or ConfigMap with a record.")]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Name of the ConfigMap. Default with --service: its recordRef, or NAME-release."),
]
ServiceOption = Annotated[
    Path | None, typer.Option("--service", help="InferenceService manifest that will refer to the ConfigMap.")
]
ImmutableOption = Annotated[bool, typer.Option("--immutable", help="Make the ConfigMap immutable.")]
KeyOption = Annotated[Path, typer.Option("--key", help="PEM file with the private Ed25519 key.")]


def takes_releases(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each parameter ``<name>`` (a ``ReleaseOptions``) by its options. The name ``release`` has plain options
    (``--model``), any other one a prefix (``--reference-model`` for ``reference``)."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        kept = [parameter for parameter in own.parameters.values() if parameter.name not in names]
        made = [parameter for name in names for parameter in _parameters(name)]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            releases = {name: _collect(name, values) for name in names}
            command(**values, **releases)

        # Every parameter goes by name, so that one without a default may follow one that has it.
        merged = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*made, *kept)]
        run.__signature__ = own.replace(parameters=merged)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
        return run

    return decorate


def _parameters(name: str) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            f"{_prefix(name)}{field}",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind, typer.Option(f"--{_prefix(name)}{field}".replace("_", "-"), help=text)],
        )
        for field, (kind, text) in _RELEASE.items()
    ]


def _collect(name: str, values: dict[str, Any]) -> ReleaseOptions:
    given = {field: values.pop(f"{_prefix(name)}{field}") for field in _RELEASE}
    return ReleaseOptions(**given, prefix=_prefix(name).replace("_", "-"))


def _prefix(name: str) -> str:
    return "" if name == "release" else f"{name}_"
