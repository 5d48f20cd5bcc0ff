"""What an adapter's ``adapter_config.json`` (PEFT layout) says, checked: plain LoRA with a known scale, or a sentence why not.

A setting this engine does not apply changes what the adapter computes, so each one must be known to be off. That includes settings
nobody has thought of yet: an unknown field that holds more than nothing is refused by name.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pratique_contract.canonical import JSON_ERRORS
from pratique_server.artifacts.files import LoadedFile, hash_json_bytes
from pratique_server.engine.protocol import LoadError

CONFIG_FILE: Final = "adapter_config.json"
# Only names the program that wrote the file.
_NOISE_FIELDS: Final = ("peft_version", "transformers_version")
# Fields read here, or that have no effect once the adapter is merged.
_READ_FIELDS: Final = frozenset({
    "peft_type", "r", "lora_alpha", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern", "use_rslora",
    "layers_to_transform", "layers_pattern", "base_model_name_or_path", "revision", "init_lora_weights", "bias",
    "task_type", "lora_dropout", "inference_mode", "fan_in_fan_out", "auto_mapping", "ephemeral_gpu_offload",
    "loftq_config", "eva_config", "runtime_config", "megatron_core", "qalora_group_size", *_NOISE_FIELDS,
})  # fmt: skip
# Initialisations that leave the base weights as they were. Others (PiSSA, OLoRA, CorDA, LoftQ) train against changed ones.
_SOUND_INITIALISATIONS: Final = (None, True, False, "gaussian", "eva", "orthogonal")
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_ALL_LINEAR: Final = "all-linear"


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """One adapter's rules. ``targets`` is a list of names (or endings of names) or one regular expression."""

    rank: int
    alpha: float
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    root_scaled: bool
    targets: tuple[str, ...] | str
    excluded: tuple[str, ...] | str
    layers: tuple[int, ...]
    layers_pattern: tuple[str, ...]
    base_model: str | None
    base_revision: str | None

    def rank_of(self, module: str) -> int:
        return next(
            (value for pattern, value in self.rank_pattern.items() if _is_pattern_of(pattern, module)), self.rank
        )

    def scale_of(self, module: str) -> float:
        """``alpha / rank``, or ``alpha / √rank`` for rsLoRA."""
        patterns = self.alpha_pattern.items()
        alpha = next((value for pattern, value in patterns if _is_pattern_of(pattern, module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.root_scaled else rank)

    def is_target(self, module: str) -> bool:
        """Whether the adapter declares that it changes this linear layer."""
        if self.excluded and _matches(self.excluded, module):
            return False
        if self.targets != _ALL_LINEAR and not _matches(self.targets, module):
            return False
        return not self.layers or _layer_of(module, self.layers_pattern) in self.layers

    def unmatched_targets(self, modules: list[str]) -> list[str]:
        """Declared names that name nothing among ``modules``."""
        targets = () if self.targets == _ALL_LINEAR else self.targets
        each = (targets,) if isinstance(targets, str) else targets
        return [
            name for name in each
            if not any(_matches(name if isinstance(targets, str) else (name,), module) for module in modules)
        ]  # fmt: skip

    def lineage(self) -> dict[str, str]:
        """What the adapter was trained on and how it acts, for the manifest."""
        known = {
            "baseModel": self.base_model,
            "baseRevision": self.base_revision,
            "rank": str(self.rank),
            "alpha": f"{self.alpha:g}",
            "scaling": "alpha/sqrt(rank)" if self.root_scaled else "alpha/rank",
            "targets": self.targets if isinstance(self.targets, str) else ",".join(sorted(self.targets)),
        }
        return {name: value for name, value in known.items() if value is not None}

    def decided_by_order(self, modules: Iterable[str]) -> dict[str, str]:
        """The patterns of which a module meets two that say different things: the first in the file's order counts, which a digest of the
        file's value does not tell. For the manifest, beside ``lineage``."""
        patterns: dict[str, dict[str, Any]] = {
            "rankPattern": {**self.rank_pattern},
            "alphaPattern": {**self.alpha_pattern},
        }
        modules = list(modules)
        return {
            name: json.dumps(list(values.items()))
            for name, values in patterns.items()
            if any(len({v for pattern, v in values.items() if _is_pattern_of(pattern, m)}) > 1 for m in modules)
        }

    def check_base(self, uri: str, revision: str | None) -> None:
        """Raise when the adapter was provably trained on another model than the one that is served."""
        if not uri.startswith("hf://"):
            return
        repository, _, named = uri.removeprefix("hf://").partition("@")
        if self.base_model and _HUB_NAME.fullmatch(self.base_model) and self.base_model.lower() != repository.lower():
            raise LoadError(
                f"{CONFIG_FILE} says that it was trained on {self.base_model}, and the model served is {repository}. "
                "If they are the same model, say so there (base_model_name_or_path)."
            )
        commits = [value for value in (self.base_revision, revision or named) if value and _COMMIT.fullmatch(value)]
        if len(set(commits)) > 1:
            raise LoadError(
                f"{CONFIG_FILE} says that it was trained on revision {commits[0]}, and {commits[1]} is served."
            )


def parse_config(content: bytes) -> tuple[LoraConfig, LoadedFile]:
    """The rules and the file's entry for the manifest; raises ``LoadError`` with a sentence that names the field."""
    try:
        values = json.loads(content)
    except JSON_ERRORS as error:
        raise LoadError(f"{CONFIG_FILE} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise LoadError(f"{CONFIG_FILE} must hold one JSON object.")
    _refuse_other_methods(values)
    config = LoraConfig(
        rank=_positive(values, "r"),
        alpha=_number(values.get("lora_alpha"), "lora_alpha"),
        rank_pattern={
            name: _positive(_object(values, "rank_pattern"), name) for name in _object(values, "rank_pattern")
        },
        alpha_pattern={
            name: _number(value, "alpha_pattern") for name, value in _object(values, "alpha_pattern").items()
        },
        root_scaled=values.get("use_rslora") is True,
        targets=_names(values, "target_modules"),
        excluded=_names(values, "exclude_modules", required=False),
        layers=_layers(values.get("layers_to_transform")),
        layers_pattern=_as_tuple(_names(values, "layers_pattern", required=False)),
        base_model=_text(values, "base_model_name_or_path"),
        base_revision=_text(values, "revision"),
    )
    return config, hash_json_bytes(CONFIG_FILE, content, _NOISE_FIELDS)


def _refuse_other_methods(values: dict[str, Any]) -> None:
    if values.get("peft_type") != "LORA":
        raise LoadError(f"{CONFIG_FILE} has peft_type {values.get('peft_type')!r}; only LORA can be merged.")
    if values.get("bias", "none") != "none":
        raise LoadError(f"{CONFIG_FILE} trains biases (bias is {values['bias']!r}), which this engine does not apply.")
    if values.get("init_lora_weights") not in _SOUND_INITIALISATIONS:
        raise LoadError(
            f"{CONFIG_FILE} has init_lora_weights {values['init_lora_weights']!r}: it was trained against changed base "
            "weights. Convert it to a plain LoRA first."
        )
    for name in sorted(set(values) - _READ_FIELDS):
        if values[name] not in (None, False, "", [], {}, "none"):
            shown = str(values[name])[:60]
            raise LoadError(f"{CONFIG_FILE} sets {name} ({shown}), which this engine does not apply.")


def _matches(names: tuple[str, ...] | str, module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _is_pattern_of(pattern: str, module: str) -> bool:
    """PEFT's rule: the pattern is an expression for the end of the module's name, or all of it after ``^``."""
    if pattern.startswith("^"):
        return re.fullmatch(pattern[1:], module) is not None
    return re.fullmatch(rf"(.*\.)?({pattern})", module) is not None


def _layer_of(module: str, patterns: tuple[str, ...]) -> int | None:
    names = [rf".*?\.{re.escape(pattern)}\.(\d+)\..*" for pattern in patterns] or [r".*?\.[^.]*\.(\d+)\..*"]
    found = next((match for name in names if (match := re.fullmatch(name, module))), None)
    return None if found is None else int(found[1])


def _positive(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LoadError(f"{CONFIG_FILE} has {name} {value!r}, not a rank of at least 1.")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LoadError(f"{CONFIG_FILE} has {name} {value!r}, not a number.")
    return float(value)


def _object(values: dict[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name) or {}
    if not isinstance(value, dict):
        raise LoadError(f"{CONFIG_FILE} has {name} {value!r}, not an object.")
    for pattern in value:
        _check_expression(pattern, name)
    return value


def _names(values: dict[str, Any], name: str, *, required: bool = True) -> tuple[str, ...] | str:
    value = values.get(name)
    if isinstance(value, str) and value:
        _check_expression(value, name)
        return value
    if value is None or value == []:
        if required:
            raise LoadError(f"{CONFIG_FILE} names no {name}.")
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise LoadError(f"{CONFIG_FILE} has {name} {value!r}, not a list of names or one expression.")
    return tuple(value)


def _as_tuple(names: tuple[str, ...] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _check_expression(text: str, name: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise LoadError(f"{CONFIG_FILE} has {name} {text!r}, which is no valid expression: {error}.") from error


def _layers(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    layers = value if isinstance(value, list) else [value]
    if not layers or not all(isinstance(item, int) and not isinstance(item, bool) for item in layers):
        raise LoadError(f"{CONFIG_FILE} has layers_to_transform {value!r}, not layer numbers.")
    return tuple(layers)


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise LoadError(f"{CONFIG_FILE} has {name} {value!r}, not a text.")
    return value or None
