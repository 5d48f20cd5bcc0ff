"""The approved releases that faults depart from: small, but with everything a real one has, and recorded once per run.

``tiny`` is a random Llama with a context of 2048 tokens, so that a golden prompt crosses the step budget, K/V blocks and key tiles.
The others are the same weights: in three shards, with adapters, quantized, and with more of what ``generation_config.json`` can say.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pratique_contract.record import ReleaseRecord
from pratique_server.offline.loading import record_release
from tests.integration.server.running import make_spec
from tests.support.adapters import make_adapter
from tests.support.models import tiny_model
from tests.support.mutations import copy_of, edit_json, replace

CONTEXT_TOKENS: Final = 2048


@dataclass
class Base:
    """An approved release: its folder, what the serving document says beyond it, and its record."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)

    def model_source(self) -> dict[str, Any]:
        return {"path": str(self.folder), "uri": f"file://{self.folder}"}

    @cached_property
    def record(self) -> ReleaseRecord:
        model = {**self.model_source(), **self.changes.get("model", {})}
        return asyncio.run(record_release(make_spec(self.folder, **{**self.changes, "model": model})))


class Releases:
    """Makes each base when a fault first needs it."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self._made: dict[str, Base] = {}

    def get(self, name: str) -> Base:
        if name not in self._made:
            self._made[name] = BASES[name](self._room / name)
        return self._made[name]


def _tiny(room: Path) -> Base:
    folder = copy_of(tiny_model(), room / "model")
    _train(folder)
    edit_json(folder / "config.json", lambda config: config.update(max_position_embeddings=CONTEXT_TOKENS))
    return Base(folder)


def _train(folder: Path) -> None:
    """What training would have done: norms are not all ones (two that changed places must be a change), and some answers end by
    themselves (the record must hold both kinds of ending)."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    for name in sorted(tensors):
        if "norm" in name:
            tensors[name] = 1 + 0.1 * torch.randn(tensors[name].shape, generator=generator)
    tensors["lm_head.weight"][2] *= 1.4
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _sharded(room: Path) -> Base:
    """Layer 0, layer 1, and the rest."""
    from safetensors.torch import load_file, save_file

    folder = _tiny(room).folder
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number, marker in enumerate((".layers.0.", ".layers.1.", ""), start=1):
        shard = f"model-0000{number}-of-00003.safetensors"
        names = [name for name in sorted(tensors) if name not in weight_map and marker in name]
        save_file({name: tensors[name] for name in names}, folder / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, shard)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    replace(folder / "model.safetensors.index.json", json.dumps(index).encode())
    return Base(folder)


def _adapted(room: Path) -> Base:
    """Two adapters, merged in this order."""
    folder = _tiny(room).folder
    adapters = [
        adapter_source("harbour", make_adapter(room / "harbour", folder, seed=1)),
        adapter_source("pilot", make_adapter(room / "pilot", folder, seed=2, targets=("q_proj", "down_proj"))),
    ]
    return Base(folder, {"model": {"uri": BASE_MODEL_URI, "adapters": adapters}})


BASE_MODEL_URI: Final = "hf://example/tiny"


def adapter_source(name: str, folder: Path) -> dict[str, Any]:
    return {"name": name, "path": str(folder), "uri": f"file://{folder}", "mode": "Merged"}


def _int8(room: Path) -> Base:
    return Base(_tiny(room).folder, {"quantization": {"method": "Int8WeightOnly"}})


def _kept(room: Path) -> Base:
    """Quantized but for some layers."""
    keep = ["*.down_proj", "model.layers.0.*"]
    return Base(_tiny(room).folder, {"quantization": {"method": "Int8WeightOnly", "config": {"keep": keep}}})


def _imaged(room: Path) -> Base:
    """The image is named by its digest."""
    return Base(_tiny(room).folder, {"engine": {"image_digest": "sha256:" + "a" * 64}})


def _talkative(room: Path) -> Base:
    """More than one stop id, sampling defaults, a pad token of its own."""
    folder = _tiny(room).folder
    edit_json(
        folder / "generation_config.json",
        lambda config: config.update(eos_token_id=[2, 0], temperature=0.6, top_p=0.9, top_k=40, do_sample=True),
    )
    return Base(folder)


BASES: Final[dict[str, Callable[[Path], Base]]] = {
    "tiny": _tiny,
    "sharded": _sharded,
    "adapted": _adapted,
    "int8": _int8,
    "kept": _kept,
    "imaged": _imaged,
    "talkative": _talkative,
}
