"""Options that several release commands take, each declared once."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pratique_cli.errors import CliError
from pratique_cli.names import check_map_name
from pratique_cli.options import option_names

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

    config: Annotated[Path | None, typer.Option(help="Serving document, as a pod reads it.")] = None
    model: Annotated[Path | None, typer.Option(help="Folder with the model's files.")] = None
    service: Annotated[
        Path | None,
        typer.Option(
            help="InferenceService manifest the release is for (with the model's folder). record: or a running service's name."
        ),
    ] = None
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of a tokenizer of its own.")] = None
    chat_template: Annotated[Path | None, typer.Option(help="File with the chat template.")] = None
    adapter: Annotated[
        list[str] | None, typer.Option(help="Adapter as NAME=DIR, in the order of application; may be repeated.")
    ] = None
    quantization: Annotated[
        str | None, typer.Option(help="Quantization method, as in spec.quantization.method. Default: None.")
    ] = None
    quantization_keep: Annotated[
        list[str] | None,
        typer.Option(help="Layers to leave unquantized, as in spec.quantization.config.keep; may be repeated."),
    ] = None
    dtype: Annotated[str | None, typer.Option(help="FP32, FP16 or BF16. Default: the checkpoint's.")] = None
    trust_remote_code: Annotated[
        bool | None, typer.Option(help="Run the Python files in the model's folder; they become part of the release.")
    ] = None
    image: Annotated[
        str | None, typer.Option(help="Server image the pods will run; identity only when named by digest.")
    ] = None
    prefix: str = ""

    @property
    def given(self) -> bool:
        """Whether any of them was typed."""
        return any(self._typed().values())

    def _typed(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in option_names(type(self))}

    def spec(self) -> "ServingSpec":
        """The serving document; raises ``CliError`` for options that contradict each other."""
        from pratique_cli.specs import choose_spec, require_folders

        try:
            spec = choose_spec(**self._typed())
            require_folders(spec)
            return spec
        except CliError as error:
            # The sentences name plain options; a review has them twice.
            raise CliError(re.sub(r"--(?=[a-z])", f"--{self.prefix}", str(error)), code=error.code) from error


OutputOption = Annotated[Path | None, typer.Option("--output", help="Write to a file instead of the terminal.")]
FileArgument = Annotated[Path, typer.Argument(help="Record, ConfigMap with a record, or manifest.")]
RecordArgument = Annotated[Path, typer.Argument(help="Record, or ConfigMap with a record.")]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        callback=check_map_name,
        help="Name of the ConfigMap. Default with --service: its recordRef, or NAME-release.",
    ),
]
ServiceOption = Annotated[
    Path | None, typer.Option("--service", help="InferenceService manifest that will refer to the ConfigMap.")
]
ImmutableOption = Annotated[bool, typer.Option("--immutable", help="Make the ConfigMap immutable.")]
KeyOption = Annotated[Path, typer.Option("--key", help="PEM file with the private Ed25519 key.")]
