"""Load a model folder into an unmodified Hugging Face model, with the digest of every file that was used.

In: a folder with ``config.json`` and safetensors (one file, or shards with an index), the dtype to compute in, adapters to merge
and a quantization to apply. Out: the model in evaluation mode and one ``LoadedFile`` for each file read. The rule: what is
hashed is what is used, what is used is everything the architecture needs and everything the folder declares. A missing,
left-over or misshapen tensor is an error, never a random initialisation. Pickles from the folder are never opened, its
Python files run only when the release names that (``trust_remote_code``).
"""

import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from pratique_contract.canonical import JSON_ERRORS
from pratique_contract.manifest import DType
from pratique_contract.serving import ModelSource, QuantizationSpec
from pratique_server.artifacts.files import CONFIG_OMITTED, LoadedFile, hash_json_bytes
from pratique_server.engine.adapters import merge_adapters
from pratique_server.engine.architecture import CONFIG_FILE, Architecture, choose_architecture
from pratique_server.engine.protocol import LoadedAdapter, LoadError
from pratique_server.engine.quantization import AppliedQuantization, apply_quantization
from pratique_server.engine.remote_code import read_data_files, read_remote_code
from pratique_server.engine.weights import ReadingFacts, listed, read_bytes, read_weights

ADAPTER_CONFIG_FILE: Final = "adapter_config.json"
# Where quantizers keep their settings, in the configuration or beside it.
_QUANTIZER_FIELDS: Final = ("quantization_config", "compression_config")
_QUANTIZER_FILES: Final = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")

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
    adapters: list[LoadedAdapter]
    quantization: AppliedQuantization
    reading: ReadingFacts


def load_model(
    source: ModelSource | Path,
    *,
    dtype: DType | None = None,
    device: str = "cpu",
    quantization: QuantizationSpec | None = None,
) -> LoadedModel:
    """Load the folder, merge its adapters, then quantize. ``dtype`` None (here or in ``quantization``) computes in the type
    the checkpoint was saved in. Raises ``LoadError``."""
    source = (
        source if isinstance(source, ModelSource) else ModelSource(path=str(source), uri=source.absolute().as_uri())
    )
    quantization = quantization or QuantizationSpec()
    folder = Path(source.path)
    if not folder.is_dir():
        raise LoadError(f"The model folder {folder} does not exist or is not a folder.")
    code = read_remote_code(folder) if source.trust_remote_code else None
    # The folder's own code may read any field, and any file that lies beside it.
    values, config_entry = read_config(folder, omitted=CONFIG_OMITTED if code is None else ())
    data = [] if code is None else read_data_files(folder)
    architecture = choose_architecture(values, code)
    weights = read_weights(folder)
    _refuse_other_contents(folder, weights.tensors)
    chosen = dtype or quantization.dtype or _checkpoint_dtype(values, weights.tensors)
    model = _build_model(architecture, weights.tensors, DTYPES[chosen])
    model.requires_grad_(requires_grad=False)
    names = sorted(weights.tensors)
    weights.tensors.clear()  # the model has them now: what quantization replaces must be free to go
    adapters = merge_adapters(model, source)
    applied = apply_quantization(model, quantization)
    return LoadedModel(
        model=model.to(device).eval(),
        config=model.config,
        architecture=architecture.name,
        dtype=chosen,
        vocab_size=_vocab_size(model),
        context_limit=_context_limit(architecture.config),
        files=sorted(
            [config_entry, *weights.files, *(code.files if code else []), *data], key=lambda entry: entry.path
        ),
        tensors=names,
        adapters=adapters,
        quantization=applied,
        reading=weights.reading,
    )


def read_config(folder: Path, *, omitted: Iterable[str] = CONFIG_OMITTED) -> tuple[dict[str, Any], LoadedFile]:
    content = read_bytes(folder / CONFIG_FILE)
    try:
        values = json.loads(content)
    except JSON_ERRORS as error:
        raise LoadError(f"{CONFIG_FILE} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise LoadError(f"{CONFIG_FILE} must hold one JSON object.")
    _refuse_quantized(folder, values)
    return values, hash_json_bytes(CONFIG_FILE, content, omitted)


def _refuse_quantized(folder: Path, values: dict[str, Any]) -> None:
    """A checkpoint with scales of its own, read as if it had none, is a wrong model that looks right."""
    inner = values.get("text_config")
    for name in _QUANTIZER_FIELDS:
        if declared := values.get(name) or (isinstance(inner, dict) and inner.get(name)):
            method = declared.get("quant_method") if isinstance(declared, dict) else None
            raise LoadError(
                f"{CONFIG_FILE} declares a quantized checkpoint ({name}{f': {method}' if method else ''}), which this "
                "engine cannot compute. Serve the unquantized one; quantization.method quantizes it while loading.",
                part="quantization",
            )
    if beside := [name for name in _QUANTIZER_FILES if (folder / name).exists()]:
        raise LoadError(
            f"The model folder has {beside[0]}: a quantized checkpoint, which this engine cannot compute.",
            part="quantization",
        )


def _refuse_other_contents(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    if (folder / ADAPTER_CONFIG_FILE).exists():
        raise LoadError(
            f"The model folder has {ADAPTER_CONFIG_FILE} beside its weights: whether that adapter is to be applied, or "
            "already is, cannot be seen. Declare it in model.adapters, in a folder of its own.",
            part="adapters",
        )
    integers = sorted(
        name for name, tensor in tensors.items() if name.endswith("weight") and not tensor.is_floating_point()
    )
    if integers:
        raise LoadError(
            f"The checkpoint holds {listed(integers)} as integers: quantized weights, which this engine cannot compute.",
            part="quantization",
        )


def _checkpoint_dtype(values: dict[str, Any], state: dict[str, torch.Tensor]) -> DType:
    """The dtype the checkpoint says it was saved in, else that of its first floating-point tensor."""
    declared = str(values.get("dtype") or values.get("torch_dtype") or "").removeprefix("torch.")
    by_name = {str(value).removeprefix("torch."): name for value, name in _DTYPE_NAMES.items()}
    if declared in by_name:
        return by_name[declared]
    if declared:
        raise LoadError(
            f"{CONFIG_FILE} says dtype {declared}; this engine computes in FP32, FP16 or BF16.", part="quantization"
        )
    floating = next((tensor.dtype for _, tensor in sorted(state.items()) if tensor.is_floating_point()), torch.float32)
    if floating not in _DTYPE_NAMES:
        raise LoadError(
            f"The checkpoint is saved as {floating}; name quantization.dtype FP32, FP16 or BF16.", part="quantization"
        )
    return _DTYPE_NAMES[floating]


def _build_model(architecture: Architecture, state: dict[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """Instantiate on the meta device and assign the tensors. The library reports what did not fit; any of it is
    an error."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, report = architecture.model_class.from_pretrained(
                None,
                config=architecture.config,
                state_dict=dict(state),
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that we can say which; it is refused below
                use_safetensors=True,
                local_files_only=True,
            )
    except Exception as error:
        raise LoadError(f"{architecture.name} could not be built from the checkpoint: {error}") from error
    _check_report(report, architecture.name)
    _check_placed(model)
    return model


def _check_report(report: dict[str, Any], architecture: str) -> None:
    mismatched = [
        f"{item[0]} (checkpoint {list(item[1])}, architecture {list(item[2])})" for item in report["mismatched_keys"]
    ]
    if mismatched:
        raise LoadError(f"Tensors have the wrong shape for {architecture}: {listed(sorted(mismatched))}.")
    if report["missing_keys"]:
        raise LoadError(f"The checkpoint lacks tensors of {architecture}: {listed(sorted(report['missing_keys']))}.")
    if report["unexpected_keys"]:
        raise LoadError(
            f"The checkpoint holds tensors that {architecture} has no place for: {listed(sorted(report['unexpected_keys']))}."
        )
    if report["error_msgs"]:
        raise LoadError(f"{architecture} could not take the checkpoint's tensors: {listed(report['error_msgs'])}.")


def _check_placed(model: PreTrainedModel) -> None:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    unplaced = sorted(name for name, tensor in tensors if tensor.is_meta)
    if unplaced:
        raise LoadError(f"Tensors were left without values: {listed(unplaced)}.")


def _vocab_size(model: PreTrainedModel) -> int:
    """Rows of the input embedding: an id beyond them would read outside the table."""
    return int(model.get_input_embeddings().weight.shape[0])


def _context_limit(config: PreTrainedConfig) -> int:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        raise LoadError(f"{CONFIG_FILE} names no max_position_embeddings; the context limit is unknown.")
    return limit
