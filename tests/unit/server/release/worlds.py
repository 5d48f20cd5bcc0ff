"""A small release in memory, written to a folder and described by the code a pod runs; only the matrices' arithmetic is left out."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pratique_contract.canonical import digest_json
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.serving import ServingSpec
from pratique_server.artifacts.files import (
    SPECIAL_TOKEN_FIELDS,
)
from pratique_server.artifacts.tokenizer_files import read_tokenizer_files
from pratique_server.engine import identity
from pratique_server.engine.adapters import read_adapter
from pratique_server.engine.identity import make_identity
from pratique_server.engine.loader import read_config
from pratique_server.engine.quantization import AppliedQuantization, normalize_config
from pratique_server.engine.weights import read_weights
from pratique_server.release.builder import build_manifest
from pratique_server.text.template import load_chat_template

COMMIT = "1" * 40


@dataclass
class World:
    """Everything a release is made of, and what merely surrounds it."""

    config: dict[str, Any] = field(
        default_factory=lambda: {
            "model_type": "llama",
            "hidden_size": 4,
            "rope_parameters": {"rope_theta": 1e4},
            "max_position_embeddings": 64,
            "dtype": "float32",
        }
    )
    generation: dict[str, Any] = field(default_factory=lambda: {"eos_token_id": [2, 3], "temperature": 0.5})
    tokenizer: dict[str, Any] = field(
        default_factory=lambda: {"model": {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]}, "added_tokens": []}
    )
    tokenizer_config: dict[str, Any] = field(default_factory=lambda: {"model_max_length": 64, "eos_token": "b"})
    template: str = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    weights: dict[str, bytes] = field(default_factory=lambda: {"a.weight": bytes(range(16)), "b.weight": b"\1" * 8})
    adapters: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {
                "name": name,
                "config": {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["q"]},
                "weights": name.encode() * 8,
                "uri": f"hf://org/{name}",
                "revision": COMMIT,
            }
            for name in ("first", "second")
        ]
    )
    spec: dict[str, Any] = field(
        default_factory=lambda: {"model": {"uri": "hf://org/model", "revision": COMMIT}, "engine": {}, "limits": {}}
    )
    libraries: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0", "transformers": "5.24.0"})
    build: str = "sha256:" + "b" * 64
    # Not inputs: the host, and how the files are written down.
    facts: dict[str, Any] = field(default_factory=dict)
    write: Callable[[Any], str] = json.dumps
    unread: dict[str, bytes] = field(default_factory=dict)


def manifest_of(world: World) -> ReleaseManifest:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        write_folder(world, folder)
        return build_in(world, folder)


def build_in(world: World, folder: Path) -> ReleaseManifest:
    spec = ServingSpec.from_json_value({
        "servedModelName": "m",
        **world.spec,
        "model": {
            **world.spec["model"],
            "path": str(folder),
            "adapters": [
                {"name": item["name"], "path": str(folder / item["name"]), "uri": item["uri"],
                 "revision": item["revision"]}
                for item in world.adapters
            ],
        },
    })  # fmt: skip
    values, config_entry = read_config(folder)
    weights = read_weights(folder)
    applied = normalize_config(spec.quantization)
    quantized = [name for name in weights.tensors if applied]
    loaded = SimpleNamespace(
        architecture="LlamaForCausalLM",
        dtype=spec.quantization.dtype or "FP32",
        vocab_size=10,
        context_limit=values["max_position_embeddings"],
        files=[config_entry, *weights.files],
        tensors=sorted(weights.tensors),
        adapters=[read_adapter(adapter).describe() for adapter in spec.model.adapters],
        quantization=AppliedQuantization(method=spec.quantization.method, config=applied, quantized=quantized),
        reading=weights.reading,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "library_versions", lambda: world.libraries)
        patch.setattr(identity, "engine_build", lambda: world.build)
        made = make_identity(spec, loaded, device="cpu", facts=world.facts)  # type: ignore[arg-type]
    return build_manifest(spec, made, _tokenizer(world, folder), load_chat_template(spec))


def _tokenizer(world: World, folder: Path) -> Any:
    files = read_tokenizer_files(folder)
    vocab = world.tokenizer["model"]["vocab"]
    special = {role: world.tokenizer_config[role] for role in SPECIAL_TOKEN_FIELDS if role in world.tokenizer_config}
    ids = {f"{role.removesuffix('_token')}_id": vocab.get(special.get(role)) for role in SPECIAL_TOKEN_FIELDS}
    return SimpleNamespace(
        files=files.files, compiled=digest_json(world.tokenizer), vocab_size=len(vocab), adds_bos=files.adds_bos,
        adds_eos=files.adds_eos, special_tokens=special, **ids,
    )  # fmt: skip


def write_folder(world: World, folder: Path) -> None:
    folder.mkdir()
    documents = {
        "config.json": world.config,
        "generation_config.json": world.generation,
        "tokenizer.json": world.tokenizer,
        "tokenizer_config.json": world.tokenizer_config,
    }
    for name, value in documents.items():
        (folder / name).write_text(world.write(value), encoding="utf-8")
    (folder / "chat_template.jinja").write_bytes(world.template.encode())
    shards = {f"model-{n}.safetensors": name for n, name in enumerate(sorted(world.weights))}
    for shard, name in shards.items():
        _write_tensor(folder / shard, name, world.weights[name])
    index = {"weight_map": {name: shard for shard, name in shards.items()}}
    (folder / "model.safetensors.index.json").write_text(world.write(index))
    for adapter in world.adapters:
        (folder / adapter["name"]).mkdir()
        (folder / adapter["name"] / "adapter_config.json").write_text(world.write(adapter["config"]))
        _write_tensor(folder / adapter["name"] / "adapter_model.safetensors", "x", adapter["weights"])
    for name, content in world.unread.items():
        (folder / name).write_bytes(content)


def _write_tensor(path: Path, name: str, content: bytes) -> None:
    save_file({name: torch.frombuffer(bytearray(content), dtype=torch.float16)}, path)
