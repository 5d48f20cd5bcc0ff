"""Builders of manifests and records for tests that need a release but no model."""

from typing import Any

from pratique_contract.canonical import digest_bytes
from pratique_contract.golden import FIXTURE_KINDS, GoldenCase, GoldenOutput, GoldenRecord, RenderFixture, Usage
from pratique_contract.manifest import (
    AdapterEntry,
    AdaptersPart,
    ChatTemplatePart,
    EnginePart,
    FileEntry,
    ModelPart,
    QuantizationPart,
    ReleaseManifest,
    RuntimeSection,
    ServingFlagsPart,
    SpecialTokensPart,
    TokenizerPart,
)
from pratique_contract.record import ReleaseRecord

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def make_digest(text: str) -> str:
    return digest_bytes(text.encode())


def make_file(path: str, content: str = "x") -> FileEntry:
    return FileEntry(path=path, size=len(content), sha256=make_digest(content))


def make_manifest(**parts: Any) -> ReleaseManifest:
    """A full manifest; keyword arguments replace whole parts."""
    defaults: dict[str, Any] = {
        "model": ModelPart(
            source="hf://example/tiny",
            revision="1" * 40,
            architecture="LlamaForCausalLM",
            files=(make_file("config.json"), make_file("model.safetensors")),
        ),
        "adapters": AdaptersPart(
            adapters=(
                AdapterEntry(
                    name="harbour",
                    source=None,
                    revision="2" * 40,
                    mode="Merged",
                    files=(make_file("adapter.safetensors"),),
                ),
            )
        ),
        "tokenizer": TokenizerPart(
            source=None,
            revision="3" * 40,
            files=(make_file("tokenizer.json"),),
            compiled=make_digest("compiled"),
            vocab_size=640,
        ),
        "chat_template": ChatTemplatePart(sha256=make_digest(TEMPLATE), length=len(TEMPLATE)),
        "special_tokens": SpecialTokensPart(
            bos_id=1,
            eos_ids=(2,),
            pad_id=2,
            unk_id=0,
            stop_ids=(2,),
            adds_bos=False,
            tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
            generation_defaults={"temperature": 1.0, "top_p": 1.0},
            context_limit=512,
        ),
        "quantization": QuantizationPart(method="None", dtype="FP32"),
        "engine": EnginePart(name="Torch", version="0.1.0", build=make_digest("build"), libraries={"torch": "2.13.0"}),
        "serving_flags": ServingFlagsPart(flags={"maxModelLen": 512, "maxNumSeqs": 16}),
        "runtime": RuntimeSection(device_class="cpu", facts={"threads": 1}),
    }
    return ReleaseManifest(**{**defaults, **parts})


def make_output(**fields: Any) -> GoldenOutput:
    defaults: dict[str, Any] = {
        "dtype": "FP32",
        "device_class": "cpu",
        "engine_build": make_digest("build"),
        "ids": (10, 11, 2),
        "text": "ab",
        "finish_reason": "stop",
        "logprobs": (-0.1, -0.2, -0.3),
        "margins": (1.0, 1.0, 1.0),
        "usage": Usage(prompt_tokens=2, completion_tokens=3),
    }
    return GoldenOutput(**{**defaults, **fields})


def make_case(**fields: Any) -> GoldenCase:
    defaults: dict[str, Any] = {
        "name": "greeting",
        "messages": ({"role": "user", "content": "Ahoy"},),
        "max_tokens": 8,
        "text": "Ahoy",
        "prompt_ids": (5, 6),
        "outputs": (make_output(),),
    }
    return GoldenCase(**{**defaults, **fields})


def make_golden(*cases: GoldenCase, **fields: Any) -> GoldenRecord:
    """A record strong enough to prove something: every kind of fixture, and the given cases with enough others."""
    others = (
        make_case(
            name="greeting-in-two", messages=({"role": "user", "content": "A"}, {"role": "user", "content": "hoy"})
        ),
        make_case(
            name="greeting-again", messages=({"role": "user", "content": "Ah"}, {"role": "user", "content": "oy"})
        ),
    )
    messages = ({"role": "user", "content": "Ahoy"},)
    defaults: dict[str, Any] = {
        "fixtures": tuple(
            RenderFixture(name=kind, messages=messages, text="Ahoy", ids=(5, 6)) for kind in FIXTURE_KINDS
        ),
        "cases": (*(cases or (make_case(),)), *others),
    }
    return GoldenRecord(**{**defaults, **fields})


def make_record(**fields: Any) -> ReleaseRecord:
    """A record whose golden outputs are in its own number format, as a recorder's are."""
    manifest: ReleaseManifest = fields.get("manifest") or make_manifest()
    defaults: dict[str, Any] = {
        "manifest": manifest,
        "golden": in_dtype(make_golden(), manifest.quantization.dtype),
        "chat_template": TEMPLATE,
    }
    return ReleaseRecord(**{**defaults, **fields})


def in_dtype(golden: GoldenRecord, dtype: str) -> GoldenRecord:
    """The same outputs, said to have been computed in another number format."""

    def convert(case: GoldenCase) -> GoldenCase:
        outputs = tuple(output.model_copy(update={"dtype": dtype}) for output in case.outputs)
        return case.model_copy(update={"outputs": outputs})

    return golden.model_copy(update={"cases": tuple(convert(case) for case in golden.cases)})
