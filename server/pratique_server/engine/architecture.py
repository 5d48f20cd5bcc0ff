"""From ``config.json`` to the class that is built: the library's own, or the folder's when the release trusts its code.

The rule: what the file declares (``architectures``) is what would be built, or it is an error that names the field. Code in the
folder is never preferred silently and never run unasked.
"""

from dataclasses import dataclass
from typing import Any, Final

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from pratique_server.engine.protocol import LoadError
from pratique_server.engine.remote_code import RemoteCode

CONFIG_FILE: Final = "config.json"
_AUTO_CONFIG: Final = "AutoConfig"
_AUTO_MODEL: Final = "AutoModelForCausalLM"


@dataclass(frozen=True)
class Architecture:
    """Which class is built, from which configuration."""

    name: str
    model_class: Any
    config: PreTrainedConfig


def choose_architecture(values: dict[str, Any], code: RemoteCode | None) -> Architecture:
    """The folder's own classes when the release trusts them, else the library's. Raises ``LoadError``."""
    mapping = values.get("auto_map")
    if code is not None and isinstance(mapping, dict) and _AUTO_MODEL in mapping:
        return _remote_architecture(values, mapping, code)
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        hint = (
            " Its field auto_map names code in the model folder; that runs only with model.trustRemoteCode."
            if mapping and code is None
            else ""
        )
        raise LoadError(
            f"{CONFIG_FILE} names model_type {model_type!r}, which the transformers library does not know.{hint}"
        )
    config = _make_config(CONFIG_MAPPING[model_type], values, model_type)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise LoadError(f"A {model_type} model does not generate text; this engine serves causal language models.")
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    _check_declared_architecture(values, model_class, model_type)
    return Architecture(str(model_class.__name__), model_class, config)


def _remote_architecture(values: dict[str, Any], mapping: dict[str, Any], code: RemoteCode) -> Architecture:
    def load(name: str) -> Any:
        reference = mapping.get(name)
        if not isinstance(reference, str):
            raise LoadError(f"{CONFIG_FILE}: auto_map.{name} is {reference!r}, not the name of a class.")
        return code.load_class(reference, field=f"{CONFIG_FILE}: auto_map.{name}")

    model_class = load(_AUTO_MODEL)
    if not issubclass(model_class, PreTrainedModel):
        raise LoadError(f"{CONFIG_FILE}: auto_map.{_AUTO_MODEL} names a class that is no transformers model.")
    config_class = load(_AUTO_CONFIG) if _AUTO_CONFIG in mapping else model_class.config_class
    _check_declared_architecture(values, model_class, "model with this auto_map")
    return Architecture(model_class.__name__, model_class, _make_config(config_class, values, model_class.__name__))


def _make_config(config_class: Any, values: dict[str, Any], kind: str) -> PreTrainedConfig:
    try:
        return config_class.from_dict(values)
    except Exception as error:
        raise LoadError(f"{CONFIG_FILE} does not describe a valid {kind} model: {error}.") from error


def _check_declared_architecture(values: dict[str, Any], model_class: Any, kind: str) -> None:
    architecture = str(model_class.__name__)
    declared = values.get("architectures") or [architecture]
    names = declared if isinstance(declared, list) else [declared]
    if architecture not in names:
        raise LoadError(
            f"{CONFIG_FILE} declares the architecture {', '.join(map(str, names))}, but a {kind} model "
            f"would be built as {architecture}."
        )
