"""Load a model folder into an unmodified Hugging Face model, with the digest of every file that was used.

In: a folder with ``config.json`` and safetensors (one file, or shards with an index), and the dtype to compute
in. Out: the model in evaluation mode and one ``LoadedFile`` for each file read. The rule: what is hashed is what
is used, what is used is everything the architecture needs and everything the folder declares. A missing,
left-over or misshapen tensor is an error, never a random initialisation. Code and pickles from the folder are
never run.
"""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from pratique_contract.manifest import DType
from pratique_server.engine.protocol import LoadedFile, LoadError
from pratique_server.engine.safetensors_file import read_safetensors
from pratique_server.release.files import CONFIG_OMITTED, JSON_ERRORS, hash_json_bytes

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
CONFIG_FILE: Final = "config.json"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NAMES_SHOWN: Final = 5

DTYPES: Final[dict[DType, torch.dtype]] = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
_DTYPE_NAMES: Final = {value: name for name, value in DTYPES.items()}


@dataclass(frozen=True)
class LoadedModel:
    """The model and what it was made of. ``tensors`` lists every checkpoint tensor that was read, sorted."""

    model: PreTrainedModel
    config: PreTrainedConfig
    architecture: str
    dtype: DType
    vocab_size: int
    context_limit: int
    files: list[LoadedFile]
    tensors: list[str]


def load_model(folder: Path, *, dtype: DType | None = None, device: str = "cpu") -> LoadedModel:
    """Load the folder; ``dtype`` None computes in the type the checkpoint was saved in. Raises ``LoadError``."""
    if not folder.is_dir():
        raise LoadError(f"The model folder {folder} does not exist or is not a folder.")
    values, config_entry = _read_config(folder)
    config, architecture = _build_config(values)
    state, files = _read_weights(folder)
    chosen = dtype or _checkpoint_dtype(values, state)
    model = _build_model(config, architecture, state, DTYPES[chosen])
    model.requires_grad_(requires_grad=False)
    return LoadedModel(
        model=model.to(device).eval(),
        config=model.config,
        architecture=architecture,
        dtype=chosen,
        vocab_size=_vocab_size(model),
        context_limit=_context_limit(config),
        files=sorted([config_entry, *files], key=lambda entry: entry.path),
        tensors=sorted(state),
    )


def _read_config(folder: Path) -> tuple[dict[str, Any], LoadedFile]:
    content = _read_bytes(folder / CONFIG_FILE)
    try:
        values = json.loads(content)
    except JSON_ERRORS as error:
        raise LoadError(f"{CONFIG_FILE} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise LoadError(f"{CONFIG_FILE} must hold one JSON object.")
    if "auto_map" in values or values.get("trust_remote_code"):
        raise LoadError(
            f"{CONFIG_FILE} asks for code from the model folder (auto_map); such code is never run. "
            "Use a model whose architecture is part of the transformers library."
        )
    if values.get("quantization_config"):
        raise LoadError(
            f"{CONFIG_FILE} declares a quantized checkpoint (quantization_config), which this engine cannot compute."
        )
    return values, hash_json_bytes(CONFIG_FILE, content, CONFIG_OMITTED)


def _build_config(values: dict[str, Any]) -> tuple[PreTrainedConfig, str]:
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise LoadError(f"{CONFIG_FILE} names model_type {model_type!r}, which the transformers library does not know.")
    try:
        config = CONFIG_MAPPING[model_type].from_dict(values)
    except Exception as error:
        raise LoadError(f"{CONFIG_FILE} does not describe a valid {model_type} model: {error}.") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise LoadError(f"A {model_type} model does not generate text; this engine serves causal language models.")
    architecture = str(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__)
    declared = values.get("architectures") or [architecture]
    names = declared if isinstance(declared, list) else [declared]
    if architecture not in names:
        raise LoadError(
            f"{CONFIG_FILE} declares the architecture {', '.join(map(str, names))}, but a {model_type} model "
            f"would be built as {architecture}."
        )
    return config, architecture


def _read_weights(folder: Path) -> tuple[dict[str, torch.Tensor], list[LoadedFile]]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise LoadError(f"The model folder has both {SINGLE_FILE} and {INDEX_FILE}: it is not clear which is meant.")
    if single.exists():
        tensors, entry = read_safetensors(single)
        return tensors, [entry]
    if index.exists():
        return _read_shards(folder)
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise LoadError(
            f"The model folder has its weights only as {_listed(pickles)}; files that can run code when read are "
            "refused. Convert the model to safetensors."
        )
    raise LoadError(f"The model folder has neither {SINGLE_FILE} nor {INDEX_FILE}.")


def _read_shards(folder: Path) -> tuple[dict[str, torch.Tensor], list[LoadedFile]]:
    content = _read_bytes(folder / INDEX_FILE)
    try:
        weight_map = {str(name): str(shard) for name, shard in json.loads(content)["weight_map"].items()}
    except (*JSON_ERRORS, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{INDEX_FILE} is not a valid index: {error}.") from error
    shards = sorted(set(weight_map.values()))
    outside = [shard for shard in shards if Path(shard).name != shard or not shard.endswith(".safetensors")]
    if outside:
        raise LoadError(f"{INDEX_FILE} names {_listed(outside)}; shards must be safetensors files in the same folder.")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise LoadError(f"{INDEX_FILE} names {_listed(missing)}, which the folder does not have.")
    state: dict[str, torch.Tensor] = {}
    files = [hash_json_bytes(INDEX_FILE, content)]
    for shard in shards:
        tensors, entry = read_safetensors(folder / shard)
        _check_shard(shard, set(tensors), {name for name, owner in weight_map.items() if owner == shard})
        state.update(tensors)
        files.append(entry)
    return state, files


def _check_shard(shard: str, found: set[str], expected: set[str]) -> None:
    if absent := sorted(expected - found):
        raise LoadError(f"{shard} lacks {_listed(absent)}, which {INDEX_FILE} says it holds.")
    if extra := sorted(found - expected):
        raise LoadError(f"{shard} holds {_listed(extra)}, which {INDEX_FILE} does not assign to it.")


def _checkpoint_dtype(values: dict[str, Any], state: dict[str, torch.Tensor]) -> DType:
    """The dtype the checkpoint says it was saved in, else that of its first floating-point tensor."""
    declared = str(values.get("dtype") or values.get("torch_dtype") or "").removeprefix("torch.")
    by_name = {str(value).removeprefix("torch."): name for value, name in _DTYPE_NAMES.items()}
    if declared in by_name:
        return by_name[declared]
    if declared:
        raise LoadError(f"{CONFIG_FILE} says dtype {declared}; this engine computes in FP32, FP16 or BF16.")
    floating = next((tensor.dtype for _, tensor in sorted(state.items()) if tensor.is_floating_point()), torch.float32)
    if floating not in _DTYPE_NAMES:
        raise LoadError(f"The checkpoint is saved as {floating}; name quantization.dtype FP32, FP16 or BF16.")
    return _DTYPE_NAMES[floating]


def _build_model(
    config: PreTrainedConfig, architecture: str, state: dict[str, torch.Tensor], dtype: torch.dtype
) -> PreTrainedModel:
    """Instantiate on the meta device and assign the tensors. The library reports what did not fit; any of it is
    an error."""
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, report = model_class.from_pretrained(
                None,
                config=config,
                state_dict=dict(state),
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that we can say which; it is refused below
                use_safetensors=True,
                local_files_only=True,
            )
    except Exception as error:
        raise LoadError(f"{architecture} could not be built from the checkpoint: {error}") from error
    _check_report(report, architecture)
    _check_placed(model)
    return model


def _check_report(report: dict[str, Any], architecture: str) -> None:
    mismatched = [
        f"{item[0]} (checkpoint {list(item[1])}, architecture {list(item[2])})" for item in report["mismatched_keys"]
    ]
    if mismatched:
        raise LoadError(f"Tensors have the wrong shape for {architecture}: {_listed(sorted(mismatched))}.")
    if report["missing_keys"]:
        raise LoadError(f"The checkpoint lacks tensors of {architecture}: {_listed(sorted(report['missing_keys']))}.")
    if report["unexpected_keys"]:
        raise LoadError(
            f"The checkpoint holds tensors that {architecture} has no place for: {_listed(sorted(report['unexpected_keys']))}."
        )
    if report["error_msgs"]:
        raise LoadError(f"{architecture} could not take the checkpoint's tensors: {_listed(report['error_msgs'])}.")


def _check_placed(model: PreTrainedModel) -> None:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    unplaced = sorted(name for name, tensor in tensors if tensor.is_meta)
    if unplaced:
        raise LoadError(f"Tensors were left without values: {_listed(unplaced)}.")


def _vocab_size(model: PreTrainedModel) -> int:
    """Rows of the input embedding: an id beyond them would read outside the table."""
    return int(model.get_input_embeddings().weight.shape[0])


def _context_limit(config: PreTrainedConfig) -> int:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        raise LoadError(f"{CONFIG_FILE} names no max_position_embeddings; the context limit is unknown.")
    return limit


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise LoadError(f"The model folder has no {path.name}.") from error
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read: {error.strerror or error}.") from error


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
