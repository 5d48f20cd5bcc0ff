"""Merge adapters into a loaded model: ``W + Σ scale·B·A``, summed in float32 in the declared order, rounded once.

In: folders in PEFT's layout (``adapter_config.json``, ``adapter_model.safetensors``), the model with its base weights. Out: the changed
model and one ``LoadedAdapter`` each. The rule: every layer an adapter declares has both matrices of the right shape, every matrix
has a declared layer, and the same adapter is never applied twice. A pickled adapter is never opened.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pratique_contract.serving import AdapterSource, ModelSource
from pratique_server.artifacts.files import LoadedFile
from pratique_server.engine.lora_config import CONFIG_FILE, LoraConfig, parse_config
from pratique_server.engine.protocol import LoadedAdapter, LoadError
from pratique_server.engine.safetensors_file import read_safetensors
from pratique_server.engine.weights import is_pickled_weights, listed, read_bytes

WEIGHTS_FILE: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
# PEFT adds the base weight of a language head it adapts; it must be the one this model has.
_BASE: Final = ".base_layer.weight"


@dataclass(frozen=True)
class _Factors:
    """One layer's change: ``scale · b @ a``, in the layer's ``[out, in]`` order."""

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True)
class Adapter:
    source: AdapterSource
    config: LoraConfig
    tensors: dict[str, Tensor]
    files: list[LoadedFile]

    def describe(self) -> LoadedAdapter:
        modules = [name.removeprefix(_PREFIX).removesuffix(_A) for name in sorted(self.tensors) if name.endswith(_A)]
        lineage = {**self.config.lineage(), **self.config.decided_by_order(modules)}
        return LoadedAdapter(name=self.source.name, mode=self.source.mode, files=self.files, lineage=lineage)


def check_declared(adapters: Sequence[AdapterSource], *, engine: str) -> None:
    """Refuse what can be refused before anything is read; raises ``LoadError``."""
    for index, adapter in enumerate(adapters):
        if adapter.mode != "Merged":
            raise _error(adapter, f"has mode {adapter.mode}; the {engine} engine applies adapters as Merged only.")
        for other in adapters[:index]:
            if adapter.name == other.name:
                raise _error(adapter, "is declared twice.")
            if Path(adapter.path) == Path(other.path):
                raise _error(adapter, f"is {other.name} again (the same folder): it would be merged twice.")


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, source: ModelSource) -> list[LoadedAdapter]:
    """Change the model's weights in place. Raises ``LoadError`` that names the adapter; the model is then of no use."""
    layers = dict(_linear_layers(model))
    adapters: list[Adapter] = []
    for declared in source.adapters:
        try:
            adapter = read_adapter(declared)
            adapter.config.check_base(source.uri, source.revision)
            _check_targets(adapter, model, layers)
        except LoadError as error:
            raise _error(declared, str(error), separator=": ") from error
        if twin := next((other for other in adapters if _same_bytes(other, adapter)), None):
            raise _error(declared, f"holds the same weights as {twin.source.name}: they would be merged twice.")
        adapters.append(adapter)
    for name, layer in layers.items():
        changes = [factors for adapter in adapters if (factors := _factors(adapter, name)) is not None]
        if changes:
            _merge(layer, changes)
    return [adapter.describe() for adapter in adapters]


def _merge(layer: nn.Module, changes: list[_Factors]) -> None:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    merged = weight.float()
    for change in changes:
        delta = (change.b.float() @ change.a.float()) * change.scale
        merged = merged + (delta.T if isinstance(layer, Conv1D) else delta)
    weight.copy_(merged)


def read_adapter(source: AdapterSource) -> Adapter:
    folder = Path(source.path)
    if not folder.is_dir():
        raise LoadError(f"the folder {folder} does not exist or is not a folder.")
    if not (folder / CONFIG_FILE).is_file():
        raise LoadError(f"its folder has no {CONFIG_FILE}.")
    if not (folder / WEIGHTS_FILE).is_file():
        pickles = sorted(file.name for file in folder.iterdir() if is_pickled_weights(file.name))
        if pickles:
            raise LoadError(
                f"its weights are only there as {listed(pickles)}; files that can run code when read are refused. "
                f"Save it as {WEIGHTS_FILE}."
            )
        raise LoadError(f"its folder has no {WEIGHTS_FILE}.")
    config, config_entry = parse_config(read_bytes(folder / CONFIG_FILE))
    tensors, entry = read_safetensors(folder / WEIGHTS_FILE)
    return Adapter(source, config, tensors, [config_entry, entry])


def _check_targets(adapter: Adapter, model: PreTrainedModel, layers: dict[str, nn.Module]) -> None:
    config, head = adapter.config, _head_name(model)
    wanted = {name for name in layers if config.is_target(name)}
    if config.targets == "all-linear":
        wanted.discard(head)
    if unknown := config.unmatched_targets(list(layers)):
        raise LoadError(f"{CONFIG_FILE} targets {listed(sorted(unknown))}, which is no linear layer of this model.")
    held = {_module_of(name) for name in adapter.tensors if not _is_base_copy(name, adapter, layers)}
    if extra := sorted(held - wanted):
        raise LoadError(f"{WEIGHTS_FILE} holds matrices for {listed(extra)}, which {CONFIG_FILE} does not target.")
    if missing := sorted(wanted - held):
        raise LoadError(f"{WEIGHTS_FILE} lacks matrices for {listed(missing)}, which {CONFIG_FILE} targets.")
    if not wanted:
        raise LoadError(f"{CONFIG_FILE} targets no layer of this model.")
    for name in sorted(wanted):
        _check_shapes(adapter, name, layers[name])
    if head in wanted and _is_tied(model):
        raise LoadError(f"it targets {head}, whose weight is also the input embedding of this model.")


def _check_shapes(adapter: Adapter, name: str, layer: nn.Module) -> None:
    a, b = (adapter.tensors.get(f"{_PREFIX}{name}{end}") for end in (_A, _B))
    if a is None or b is None:
        raise LoadError(f"{WEIGHTS_FILE} lacks {name}{_A if a is None else _B}.")
    if not (a.is_floating_point() and b.is_floating_point()):
        raise LoadError(f"{WEIGHTS_FILE} holds integers for {name}: a quantized adapter cannot be merged.")
    rank = adapter.config.rank_of(name)
    outputs, inputs = _shape(layer)
    if (tuple(a.shape), tuple(b.shape)) != ((rank, inputs), (outputs, rank)):
        raise LoadError(
            f"{name} is {outputs}×{inputs} in this model and its rank is {rank}, but the adapter holds "
            f"A {list(a.shape)} and B {list(b.shape)}: it belongs to another model or configuration."
        )
    if not math.isfinite(adapter.config.scale_of(name)):
        raise LoadError(f"the scale of {name} is not a number.")


def _factors(adapter: Adapter, name: str) -> _Factors | None:
    a = adapter.tensors.get(f"{_PREFIX}{name}{_A}")
    if a is None:
        return None
    return _Factors(a, adapter.tensors[f"{_PREFIX}{name}{_B}"], adapter.config.scale_of(name))


def _is_base_copy(name: str, adapter: Adapter, layers: dict[str, nn.Module]) -> bool:
    """Whether the tensor is a copy of a weight that this model has; raises when it is another one's."""
    module = name.removeprefix(_PREFIX).removesuffix(_BASE)
    if not name.endswith(_BASE) or module not in layers:
        return False
    weight: Tensor = layers[module].weight  # type: ignore[assignment]
    if not torch.equal(adapter.tensors[name].to(weight.dtype), weight):
        raise LoadError(f"{WEIGHTS_FILE} holds another {module}.weight than this model: it belongs to another model.")
    return True


def _module_of(tensor: str) -> str:
    """The layer that a tensor's name belongs to; raises for a tensor that is no LoRA matrix."""
    end = next((end for end in (_A, _B) if tensor.endswith(end)), None)
    if end is None or not tensor.startswith(_PREFIX):
        raise LoadError(f"{WEIGHTS_FILE} holds {tensor}, which is no LoRA matrix of a linear layer.")
    return tensor.removeprefix(_PREFIX).removesuffix(end)


def _linear_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            yield name, module


def _shape(layer: nn.Module) -> tuple[int, int]:
    """Outputs and inputs; GPT-2's ``Conv1D`` stores them the other way round."""
    first, second = layer.weight.shape  # type: ignore[misc]
    return (int(second), int(first)) if isinstance(layer, Conv1D) else (int(first), int(second))


def _head_name(model: PreTrainedModel) -> str:
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), "")


def _is_tied(model: PreTrainedModel) -> bool:
    head = model.get_output_embeddings()
    return bool(head is not None and head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr())


def _same_bytes(one: Adapter, other: Adapter) -> bool:
    """Another configuration over the same matrices is the same adapter once more."""
    return one.files[-1].sha256 == other.files[-1].sha256


def _error(adapter: AdapterSource, sentence: str, *, separator: str = " ") -> LoadError:
    return LoadError(f"Adapter {adapter.name}{separator}{sentence}", part="adapters")
