"""Flags as the manifest states them, and settings that contradict the model."""

from typing import Any

import pytest

from pratique_contract import ServingSpec
from pratique_contract.serving import EngineSpec, KvCacheSpec, ModelSource, QuantizationSpec
from pratique_server.engine.flags import (
    check_supported,
    count_blocks,
    make_settings,
    normalize_flags,
    read_number_format,
)
from pratique_server.engine.protocol import LoadError


def make_spec(**changes: Any) -> ServingSpec:
    values: dict[str, Any] = {"served_model_name": "m", "model": ModelSource(path="/m", uri="file:///m")}
    return ServingSpec(**(values | changes))


def with_adapters(*adapters: tuple[str, str, str]) -> dict[str, Any]:
    sources = [{"name": name, "path": path, "uri": "file:///x", "mode": mode} for name, path, mode in adapters]
    return {"model": ModelSource.from_json_value({"path": "/m", "uri": "file:///m", "adapters": sources})}


def test_defaults_are_filled_in_and_identity_of_other_parts_is_left_out() -> None:
    assert normalize_flags(EngineSpec()) == {
        "maxModelLen": None,
        "maxNumSeqs": 16,
        "maxBatchedTokens": 512,
        "kvCache": {"blocks": None, "memoryBytes": None, "blockSize": 16, "dtype": None},
        "args": {"packed-check": "refuse"},
    }


def test_a_default_written_out_is_the_same_release() -> None:
    assert normalize_flags(EngineSpec(args=("--packed-check=refuse",), max_num_seqs=16)) == normalize_flags(
        EngineSpec()
    )


def test_a_variable_that_coarsens_the_number_format_is_a_flag_and_no_other_is() -> None:
    """DNNL_DEFAULT_FPMATH_MODE=BF16 is what guides for ARM servers recommend: FP32 in the manifest, BF16 in the sums."""
    harmless = {"OMP_NUM_THREADS": "4", "ONEDNN_DEFAULT_FPMATH_MODE": "strict", "NVIDIA_TF32_OVERRIDE": "0"}
    assert read_number_format(harmless) == {}
    coarse = {**harmless, "DNNL_DEFAULT_FPMATH_MODE": " bf16", "NVIDIA_TF32_OVERRIDE": "1"}
    assert read_number_format(coarse) == {
        "environment": {"DNNL_DEFAULT_FPMATH_MODE": "BF16", "NVIDIA_TF32_OVERRIDE": "1"}
    }


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--no-such-flag=1",), "does not know"),
        (("packed-check=refuse",), "does not know"),
        (("--packed-check",), "takes refuse or one-sequence"),
        (("--packed-check=maybe",), "takes refuse or one-sequence"),
        (("--packed-check=refuse", "--packed-check=refuse"), "twice"),
    ],
)
def test_an_unknown_argument_is_refused(args: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        normalize_flags(EngineSpec(args=args))


@pytest.mark.parametrize(
    ("changes", "sentence", "part"),
    [
        ({"quantization": QuantizationSpec(method="AWQ")}, "method is AWQ", "quantization"),
        ({"quantization": QuantizationSpec(config={"bits": 4})}, "config is set", "quantization"),
        ({"engine": EngineSpec(kv_cache=KvCacheSpec(blocks=1, memory_bytes=1))}, "both blocks and", "servingFlags"),
        (
            {"quantization": QuantizationSpec(method="Int8WeightOnly", config={"bits": 4})},
            "always has 8",
            "quantization",
        ),
        ({"quantization": QuantizationSpec(method="Int8WeightOnly", config={"g": 1})}, "not a setting", "quantization"),
        (
            {"quantization": QuantizationSpec(method="Int8WeightOnly", config={"keep": "a"})},
            "not a list",
            "quantization",
        ),
        (
            with_adapters(("a", "/a", "Static")),
            "has mode Static; the Torch engine applies adapters as Merged",
            "adapters",
        ),
        (with_adapters(("a", "/a", "PerRequest")), "Adapter a has mode PerRequest", "adapters"),
        (with_adapters(("a", "/a", "Merged"), ("a", "/b", "Merged")), "Adapter a is declared twice", "adapters"),
        (with_adapters(("a", "/a", "Merged"), ("b", "/a/", "Merged")), "b is a again .* merged twice", "adapters"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_and_never_left_out(
    changes: dict[str, Any], sentence: str, part: str
) -> None:
    with pytest.raises(LoadError, match=sentence) as caught:
        check_supported(make_spec(**changes))
    assert caught.value.part == part


def test_the_shorter_of_flag_and_model_bounds_a_request() -> None:
    spec = make_spec(engine=EngineSpec(max_model_len=100))
    assert make_settings(spec, context_limit=512, dtype="FP32").length_max == 100
    assert make_settings(make_spec(), context_limit=512, dtype="FP32").length_max == 512
    with pytest.raises(LoadError, match="maxModelLen is 100, but the model's own limit is 64"):
        make_settings(spec, context_limit=64, dtype="FP32")


def test_another_kv_type_than_the_models_is_refused() -> None:
    spec = make_spec(engine=EngineSpec(kv_cache=KvCacheSpec(dtype="FP16")))
    with pytest.raises(LoadError, match=r"kvCache\.dtype is FP16"):
        make_settings(spec, context_limit=512, dtype="BF16")


@pytest.mark.parametrize(
    ("cache", "blocks"),
    [
        (KvCacheSpec(blocks=7), 7),
        (KvCacheSpec(), 16 * 1024 // 16),
        (KvCacheSpec(memory_bytes=100 * (1000 + 160)), 10),
    ],
)
def test_blocks_come_from_the_flag_the_memory_or_the_default(cache: KvCacheSpec, blocks: int) -> None:
    engine = EngineSpec(kv_cache=cache)
    settings = make_settings(make_spec(engine=engine), context_limit=512, dtype="FP32")
    assert count_blocks(engine, settings, bytes_per_token=100, overhead_tokens=1000) == blocks


def test_too_little_memory_says_how_much_is_needed() -> None:
    engine = EngineSpec(kv_cache=KvCacheSpec(memory_bytes=100))
    settings = make_settings(make_spec(engine=engine), context_limit=512, dtype="FP32")
    with pytest.raises(LoadError, match="needs at least 101600"):
        count_blocks(engine, settings, bytes_per_token=100, overhead_tokens=1000)


def test_a_flag_that_repeats_the_models_own_value_is_the_default_it_stands_for() -> None:
    named = EngineSpec(max_model_len=512, kv_cache=KvCacheSpec(dtype="FP32"))
    assert normalize_flags(named, context_limit=512, dtype="FP32") == normalize_flags(EngineSpec())
    assert normalize_flags(named, context_limit=1024, dtype="BF16") != normalize_flags(EngineSpec())
