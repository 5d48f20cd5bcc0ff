"""Wrong adapters, quantization, engine and serving flags: what a serving document, an image or an upgrade changes around the same files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pratique_contract.reasons import Reason
from pratique_server.engine import identity
from tests.mutation.fault import Arrange, Fault, declared, files, patched
from tests.mutation.faults.weights import config, flip_bit
from tests.mutation.releases import BASE_MODEL_URI, adapter_source
from tests.mutation.scene import Scene
from tests.support.adapters import make_adapter
from tests.support.mutations import replace

DIGEST: Final = "sha256:" + "a" * 64
_TARGETS: Final = ("q_proj", "down_proj")


def _adapters(change: Callable[[Scene, list[dict[str, Any]]], list[dict[str, Any]]]) -> Arrange:
    """Another list of adapters. ``change`` gets copies of the approved two, harbour and pilot."""

    def arrange(scene: Scene) -> None:
        approved = scene.base.changes["model"]["adapters"]
        scene.declare(model={"adapters": change(scene, [dict(adapter) for adapter in approved])})

    return arrange


def _remade(name: str, **options: Any) -> Arrange:
    """One adapter from another training run or with another configuration."""
    seeds = {"harbour": {"seed": 1}, "pilot": {"seed": 2, "targets": _TARGETS}}

    def change(scene: Scene, adapters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        folder = make_adapter(scene.room / name, scene.base.folder, **{**seeds[name], **options})
        return [adapter_source(name, folder) if adapter["name"] == name else adapter for adapter in adapters]

    return _adapters(change)


def _again(scene: Scene, adapters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same matrices under another name and in another folder."""
    folder = make_adapter(scene.room / "again", scene.base.folder, seed=1)
    return [*adapters, adapter_source("again", folder)]


def _already_merged(scene: Scene) -> None:
    """The folder holds weights into which harbour was merged before; it is merged once more."""
    import torch
    from safetensors.torch import load_file, save_file

    weights, adapter = scene.folder / "model.safetensors", Path(scene.base.changes["model"]["adapters"][0]["path"])
    tensors, matrices = dict(load_file(weights)), load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name in [name for name in matrices if ".lora_A." in name]:
            base = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            tensors[base] = tensors[base] + 2.0 * matrices[name.replace("lora_A", "lora_B")] @ matrices[name]
    weights.unlink()
    save_file(tensors, weights, metadata={"format": "pt"})
    scene.declare(model={"uri": BASE_MODEL_URI})


def _other_base(scene: Scene) -> None:
    scene.declare(model={"uri": "hf://example/other"})


def _adapter(name: str, arrange: Arrange, *, bug: str = "", reason: Reason = Reason.ADAPTER_MISMATCH) -> Fault:
    part = "adapters" if reason is Reason.ADAPTER_MISMATCH else "model"
    return Fault(part=part, name=name, reason=reason, arrange=arrange, bug=bug, base="adapted")


_ADAPTERS: Final = (
    _adapter("an adapter missing", _adapters(lambda scene, adapters: adapters[:1])),
    _adapter("no adapter at all", _adapters(lambda scene, adapters: [])),
    _adapter("an adapter more", _adapters(lambda scene, adapters: [
        *adapters, adapter_source("third", make_adapter(scene.room / "third", scene.base.folder, seed=3))])),
    _adapter("another adapter under the same name", _remade("harbour", seed=9), bug="LLMKube#1767"),
    _adapter("the other order", _adapters(lambda scene, adapters: adapters[::-1])),
    _adapter("the same adapter declared twice", _adapters(lambda scene, adapters: [*adapters, adapters[0]])),
    _adapter("the same matrices merged twice under two names", _adapters(_again)),
    _adapter("another name for the same adapter", _adapters(lambda scene, adapters: [
        {**adapters[0], "name": "haven"}, adapters[1]])),
    _adapter("another scale", _remade("harbour", alpha=16)),
    _adapter("rank-stabilized scale", _remade("harbour", use_rslora=True)),
    _adapter("other layers", _remade("pilot", targets=("q_proj",))),
    _adapter("one matrix zeroed", _remade("harbour", edit=lambda matrices: next(
        matrix for name, matrix in matrices.items() if "lora_B" in name).zero_())),
    _adapter("one matrix missing", _remade("harbour", edit=lambda matrices: matrices.pop(next(iter(matrices))))),
    _adapter("trained on another base", _remade("harbour", base_model_name_or_path="example/other")),
    _adapter("served on another base", _other_base),
    _adapter("applied per request instead of merged", _adapters(lambda scene, adapters: [
        {**adapters[0], "mode": "PerRequest"}, adapters[1]])),
    _adapter("an adapter's folder is empty", _adapters(lambda scene, adapters: [
        adapter_source("harbour", _empty(scene.room / "harbour")), adapters[1]])),
    _adapter("the base holds the adapter already", _already_merged, reason=Reason.MODEL_MISMATCH),
    Fault(part="adapters", name="an adapter where none was approved", reason=Reason.ADAPTER_MISMATCH,
          arrange=lambda scene: scene.declare(model={"adapters": [
              adapter_source("harbour", make_adapter(scene.room / "harbour", scene.base.folder, seed=1))]})),
    Fault(part="adapters", name="an adapter beside the weights in one folder", reason=Reason.ADAPTER_MISMATCH,
          arrange=files(lambda folder: replace(folder / "adapter_config.json", json.dumps({"peft_type": "LORA"}).encode()))),
)  # fmt: skip


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _quantization(name: str, arrange: Arrange, *, bug: str = "", base: str = "tiny") -> Fault:
    return Fault(
        part="quantization", name=name, reason=Reason.QUANTIZATION_MISMATCH, arrange=arrange, bug=bug, base=base
    )


_FP8: Final = {"quant_method": "fp8", "activation_scheme": "dynamic"}

_QUANTIZATION: Final = (
    _quantization("computed in bfloat16", declared(quantization={"dtype": "BF16"})),
    _quantization("computed in float16", declared(quantization={"dtype": "FP16"})),
    _quantization("the checkpoint says bfloat16", files(config(dtype="bfloat16"))),
    _quantization("the checkpoint says bfloat16 in the older field", files(config(dtype=None, torch_dtype="bfloat16"))),
    _quantization("the checkpoint says a type nobody computes in", files(config(dtype="float8_e4m3fn"))),
    _quantization("quantized where it was not approved", declared(quantization={"method": "Int8WeightOnly"})),
    _quantization("a method the engine does not have", declared(quantization={"method": "FP8"})),
    _quantization("settings without a method", declared(quantization={"config": {"bits": 4}})),
    _quantization("the checkpoint declares fp8 scales", files(config(quantization_config=_FP8))),
    _quantization("a quantizer's file beside the weights", files(lambda folder: replace(
        folder / "quantize_config.json", json.dumps({"bits": 4, "group_size": 128}).encode()))),
    _quantization("not quantized where it was approved", declared(quantization={"method": "None"}), base="int8"),
    _quantization("one layer kept that was approved quantized", declared(
        quantization={"config": {"keep": ["*.0.self_attn.q_proj"]}}), base="int8"),
    _quantization("one pattern of the keep list missing", declared(
        quantization={"config": {"keep": ["*.down_proj"]}}), base="kept"),
    _quantization("another layer kept", declared(
        quantization={"config": {"keep": ["*.down_proj", "model.layers.1.*"]}}), base="kept"),
    _quantization("a keep list of which a name matches nothing", declared(
        quantization={"config": {"keep": ["*.down_proj", "model.layers.0.*", "model.layers.7.*"]}}), base="kept"),
    _quantization("quantized, computed in bfloat16", declared(quantization={"dtype": "BF16"}), base="int8"),
    Fault(part="model", name="quantized from weights with one wrong bit", reason=Reason.MODEL_MISMATCH, base="int8",
          arrange=files(flip_bit("model.layers.0.self_attn.q_proj.weight", 0))),
)  # fmt: skip


def _libraries(**versions: str) -> Arrange:
    known = identity.library_versions()
    assert not set(versions) - set(known)
    return patched("pratique_server.engine.identity.library_versions", lambda: {**known, **versions})


def _engine(name: str, arrange: Arrange, *, bug: str = "") -> Fault:
    return Fault(part="engine", name=name, reason=Reason.ENGINE_MISMATCH, arrange=arrange, bug=bug)


_ENGINE: Final = (
    _engine("an image digest where none was approved", declared(engine={"image_digest": DIGEST})),
    Fault(part="engine", name="another image digest", reason=Reason.ENGINE_MISMATCH, base="imaged",
          arrange=declared(engine={"image_digest": "sha256:" + "b" * 64})),
    Fault(part="engine", name="an image by tag where a digest was approved", reason=Reason.ENGINE_MISMATCH, base="imaged",
          arrange=declared(engine={"image_digest": None})),
    _engine("another build of the server", patched("pratique_server.engine.identity.engine_build", lambda: DIGEST)),
    _engine("another torch", _libraries(torch="2.12.1")),
    _engine("another transformers", _libraries(transformers="5.19.0")),
    _engine("another tokenizers", _libraries(tokenizers="0.20.0")),
    _engine("another safetensors", _libraries(safetensors="0.4.0")),
    _engine("another jinja2", _libraries(jinja2="3.0.3")),
    _engine("another version of the server", patched("pratique_server.engine.identity.metadata.version", lambda _: "0.0.9")),
    _engine("the naive engine", declared(engine={"name": "Naive"})),
)  # fmt: skip


def _flags(name: str, arrange: Arrange, *, bug: str = "") -> Fault:
    return Fault(part="servingFlags", name=name, reason=Reason.FLAGS_MISMATCH, arrange=arrange, bug=bug)


_SERVING_FLAGS: Final = (
    _flags("shorter context", declared(engine={"max_model_len": 1024}), bug="ollama#2208"),
    _flags("context beyond the model's", declared(engine={"max_model_len": 4096}), bug="vllm#40302"),
    _flags("fewer sequences at once", declared(engine={"max_num_seqs": 8})),
    _flags("another step budget", declared(engine={"max_batched_tokens": 256}), bug="production-stack L957"),
    _flags("another K/V block size", declared(engine={"kv_cache": {"block_size": 32}})),
    _flags("a K/V cache of another size", declared(engine={"kv_cache": {"blocks": 400}})),
    _flags("a K/V cache in another type", declared(engine={"kv_cache": {"dtype": "BF16"}})),
    _flags("one sequence at a time allowed", declared(engine={"args": ["--packed-check=one-sequence"]})),
    _flags("a flag the engine does not know", declared(engine={"args": ["--enforce-eager=true"]})),
    _flags("a flag given twice", declared(engine={"args": ["--packed-check=refuse", "--packed-check=refuse"]})),
    _flags("a limit on prompts", declared(limits={"max_prompt_tokens": 256})),
    _flags("a limit on answers", declared(limits={"max_output_tokens": 64}), bug="vllm#6707"),
)  # fmt: skip

FAULTS: Final = (*_ADAPTERS, *_QUANTIZATION, *_ENGINE, *_SERVING_FLAGS)
