"""Quantize a loaded model's linear layers, from the checkpoint's own weights, the same way on every host.

``Int8WeightOnly``: for each output channel of a linear layer ``scale = max|w| / 127`` and ``q = round(w / scale)`` (half to even), both
in float32; the layer computes ``x · (q · scale)ᵀ`` with the product rounded to the activations' type. Activations, embeddings, norms
and the language head stay as they are. Each weight is expanded when it is used, by the very matrix product an unquantized
layer would run, so what holds for that product (batch invariance) holds here. It halves the memory of bfloat16 linear
layers and costs time; it is not a kernel for speed.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from pratique_contract.serving import KEEP_PATTERN, QUANTIZATION_METHODS, QuantizationSpec
from pratique_server.engine.protocol import LoadError

_LEVELS: Final = 127
# What ``Int8WeightOnly`` is, spelt out for the manifest. A user may write any of it down, but not otherwise.
_FIXED: Final[dict[str, Any]] = {
    "bits": 8,
    "symmetric": True,
    "axis": "output",
    "groupSize": None,
    "scaleDtype": "FP32",
}


@dataclass(frozen=True, kw_only=True)
class AppliedQuantization:
    """What was done: the manifest's ``quantization`` part without the dtype. Tensors by the model's own names, sorted."""

    method: str = "None"
    config: dict[str, Any] = field(default_factory=dict)
    quantized: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class _Scratch:
    """Memory for one expanded weight, used by one layer after the other: a model computes one layer at a time, and fresh
    memory for each (which mixed-type arithmetic also takes) would cost more than the expansion."""

    def __init__(self) -> None:
        self._exact, self._rounded = torch.empty(0), torch.empty(0)

    def reserve(self, like: Tensor) -> None:
        if like.numel() > self._exact.numel():
            self._exact = torch.empty(like.numel())
            self._rounded = self._exact if like.dtype is torch.float32 else torch.empty(like.numel(), dtype=like.dtype)

    def expand(self, levels: Tensor, scale: Tensor) -> Tensor:
        """``levels · scale``, multiplied in float32, in the layers' type; valid until the next call."""
        if self._exact.device != levels.device:
            self._exact, self._rounded = self._exact.to(levels.device), self._rounded.to(levels.device)
        exact = self._exact[: levels.numel()].view(levels.shape)
        exact.copy_(levels).mul_(scale[:, None])
        if self._rounded.dtype is torch.float32:
            return exact
        return self._rounded[: levels.numel()].view(levels.shape).copy_(exact)


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8 with one float32 scale for each output channel."""

    weight_int8: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, scratch: _Scratch) -> None:
        super().__init__()
        scratch.reserve(linear.weight)
        self._scratch = scratch
        self.in_features, self.out_features = linear.in_features, linear.out_features
        quantized, scale = quantize_rows(linear.weight.detach())
        self.register_buffer("weight_int8", quantized)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def expanded(self) -> Tensor:
        """A copy of the weight this layer computes with."""
        return self._scratch.expand(self.weight_int8, self.scale).clone()

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self._scratch.expand(self.weight_int8, self.scale), self.bias)


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[rows, columns]`` to int8 and float32 scales ``[rows]``. A row of zeros has the scale 1."""
    exact = weight.float()
    largest = exact.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / _LEVELS, torch.ones_like(largest))
    levels = torch.round(exact / scale[:, None]).clamp_(-_LEVELS, _LEVELS)
    return levels.to(torch.int8), scale


def normalize_config(spec: QuantizationSpec) -> dict[str, Any]:
    """The method's settings with defaults filled in; raises ``LoadError`` for a method or setting the engine does not have."""
    if spec.method not in QUANTIZATION_METHODS:
        raise LoadError(
            f"quantization.method is {spec.method}, which the built-in engines cannot compute "
            f"(they have {', '.join(QUANTIZATION_METHODS)}).",
            part="quantization",
        )
    if spec.method == "None":
        if spec.config:
            raise LoadError("quantization.config is set, but quantization.method is None.", part="quantization")
        return {}
    for name, value in spec.config.items():
        if name in _FIXED and (value != _FIXED[name] or type(value) is not type(_FIXED[name])):
            raise LoadError(
                f"quantization.config.{name} is {value!r}; {spec.method} always has {_FIXED[name]!r}.",
                part="quantization",
            )
        if name not in (*_FIXED, "keep"):
            known = ", ".join(sorted((*_FIXED, "keep")))
            raise LoadError(
                f"quantization.config.{name} is not a setting of {spec.method} (it has {known}).", part="quantization"
            )
    return {**_FIXED, "keep": _patterns(spec.config.get("keep", []))}


def _patterns(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, str) and re.fullmatch(KEEP_PATTERN, item) for item in value
    ):
        raise LoadError(
            f"quantization.config.keep is {value!r}, not a list of layer names (with * and ?).", part="quantization"
        )
    return sorted(set(value))


@torch.no_grad()
def apply_quantization(model: PreTrainedModel, spec: QuantizationSpec) -> AppliedQuantization:
    """Replace the model's linear layers in place, one after the other, and say which tensors that were."""
    config = normalize_config(spec)
    if spec.method == "None":
        return AppliedQuantization()
    layers = dict(_linear_layers(model))
    config["keep"] = _effective(config["keep"], layers, _kept_anyway(model, layers))
    chosen = [name for name in layers if not any(_names(pattern, name) for pattern in config["keep"])]
    if not chosen:
        raise LoadError(_explain_nothing(spec.method, config["keep"]), part="quantization")
    scratch = _Scratch()
    for name in chosen:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, Int8Linear(layers.pop(name), scratch))
    # The tensors of a file share one piece of memory, which would stay whole for those that are kept.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return AppliedQuantization(
        method=spec.method,
        config=config,
        quantized=sorted(f"{name}.weight" for name in chosen),
        kept=sorted(name for name, _ in model.named_parameters()),
    )


def _effective(patterns: Iterable[str], layers: Collection[str], anyway: Collection[str]) -> list[str]:
    """The patterns that keep a layer which would be quantized without them. One that names only what is kept ``anyway`` says nothing
    and is left out; one that names nothing at all is a mistake."""
    kept = []
    for pattern in patterns:
        if any(_names(pattern, name) for name in layers):
            kept.append(pattern)
        elif not any(_names(pattern, name) for name in anyway):
            below = any(fnmatchcase(name, f"{pattern}.*") for name in layers)
            hint = f"write {pattern}.* for all below it" if below else f"the model has {_examples(layers)}"
            raise LoadError(
                f"quantization.config.keep names {pattern!r}, which no linear layer matches ({hint}).",
                part="quantization",
            )
    return kept


def _kept_anyway(model: PreTrainedModel, layers: Collection[str]) -> set[str]:
    """What has weights and is never quantized: the language head (also one that is the embedding), embeddings, norms."""
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
    return owners - set(layers)


def _names(pattern: str, layer: str) -> bool:
    """Whether the pattern names the layer, or its weight as the manifest lists it."""
    return fnmatchcase(layer, pattern) or fnmatchcase(f"{layer}.weight", pattern)


def _examples(layers: Iterable[str]) -> str:
    """One layer of each kind, with the number of its block as ``*``: a handful in every architecture."""
    return ", ".join(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in layers))


def _explain_nothing(method: str, keep: list[str]) -> str:
    if keep:
        named = ", ".join(map(repr, keep))
        return f"quantization.config.keep ({named}) keeps every linear layer: {method} finds none to quantize."
    return f"{method} finds no linear layer to quantize in this model."


def _linear_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """Every linear layer but the language head, by name, in the model's order."""
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            yield name, module
