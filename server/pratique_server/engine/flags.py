"""The engine part of a specification, checked and normalised: the flags that can change tokens or limits.

Out comes what the manifest's ``servingFlags`` holds (defaults filled in, order-free, nothing from the host) and
the values the engine uses. ``args`` are flags of one engine as ``--name=value``; each known one stands in
``KNOWN_ARGS`` with the values it may have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pratique_contract import ServingSpec
from pratique_contract.manifest import DType
from pratique_contract.serving import EngineSpec
from pratique_server.engine.adapters import check_declared
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.quantization import normalize_config

# First value: the default. ``packed-check`` says what to do when the model does not compute the same packed as alone.
KNOWN_ARGS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Torch": {"packed-check": ("refuse", "one-sequence")},
    "Naive": {},
}
# With the values that change nothing.
_NUMBER_FORMAT_VARIABLES: Final[dict[str, tuple[str, ...]]] = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "DNNL_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "NVIDIA_TF32_OVERRIDE": ("", "0"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("", "0"),
}
DEFAULT_TOKENS_PER_SEQUENCE: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an engine runs with. ``length_max`` bounds prompt plus output of one request."""

    length_max: int
    max_num_seqs: int
    max_batched_tokens: int
    block_size: int
    queued_max: int
    queued_tokens_max: int | None
    on_packed_mismatch: Literal["refuse", "one-sequence"]


def normalize_flags(
    engine: EngineSpec, *, context_limit: int | None = None, dtype: DType | None = None
) -> dict[str, Any]:
    """Return the flags of ``servingFlags``; raises ``LoadError`` for an argument this engine does not know. With the loaded model's
    context limit and dtype, a flag that only repeats the model's own value is the default it stands for."""
    value = engine.to_json_value()
    if engine.max_model_len == context_limit:
        value["maxModelLen"] = None
    if engine.kv_cache.dtype == dtype:
        value["kvCache"]["dtype"] = None
    del value["name"], value["imageDigest"]  # both belong to the manifest's engine part
    value["args"] = parse_args(engine)
    return value


def read_number_format(environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Variables that let the libraries compute in a coarser number format than the release declares: flags of the engine, whoever set
    them. Nothing where none is set to more than nothing."""
    values = {name: environment.get(name, "").strip().upper() for name in _NUMBER_FORMAT_VARIABLES}
    found = {name: value for name, value in values.items() if value not in _NUMBER_FORMAT_VARIABLES[name]}
    return {"environment": found} if found else {}


def parse_args(engine: EngineSpec) -> dict[str, str]:
    """Return every known argument with its value, the default where none was given."""
    known = KNOWN_ARGS[engine.name]
    values = {name: choices[0] for name, choices in known.items()}
    given: set[str] = set()
    for arg in engine.args:
        name, separator, value = arg.removeprefix("--").partition("=")
        if name not in known or not arg.startswith("--"):
            names = ", ".join(f"--{item}" for item in sorted(known)) or "none"
            raise LoadError(
                f"engine.args holds {arg!r}, which the {engine.name} engine does not know (known: {names}).",
                part="servingFlags",
            )
        if name in given:
            raise LoadError(f"engine.args gives --{name} twice.", part="servingFlags")
        if not separator or value not in known[name]:
            raise LoadError(
                f"engine.args holds {arg!r}; --{name} takes {' or '.join(known[name])}.", part="servingFlags"
            )
        given.add(name)
        values[name] = value
    return values


def check_supported(spec: ServingSpec) -> None:
    """Raise ``LoadError`` for what the built-in engines cannot do: nothing that was asked for is silently left out."""
    normalize_config(spec.quantization)
    check_declared(spec.model.adapters, engine=spec.engine.name)
    cache = spec.engine.kv_cache
    if cache.blocks is not None and cache.memory_bytes is not None:
        raise LoadError("engine.kvCache names both blocks and memoryBytes; give one.", part="servingFlags")


def make_settings(spec: ServingSpec, *, context_limit: int, dtype: DType) -> Settings:
    """Combine the specification with the loaded model's limits; raises ``LoadError`` when they contradict each other."""
    engine = spec.engine
    length_max = engine.max_model_len or context_limit
    if length_max > context_limit:
        raise LoadError(
            f"engine.maxModelLen is {length_max}, but the model's own limit is {context_limit} tokens.",
            part="servingFlags",
        )
    if engine.kv_cache.dtype not in (None, dtype):
        raise LoadError(
            f"engine.kvCache.dtype is {engine.kv_cache.dtype}, but the model computes in {dtype}; "
            "this engine keeps the K/V cache in the model's own type.",
            part="servingFlags",
        )
    on_mismatch = parse_args(engine).get("packed-check", "refuse")
    return Settings(
        length_max=length_max,
        max_num_seqs=engine.max_num_seqs,
        max_batched_tokens=engine.max_batched_tokens,
        block_size=engine.kv_cache.block_size,
        queued_max=spec.limits.max_queued,
        queued_tokens_max=spec.limits.max_queued_tokens,
        on_packed_mismatch="one-sequence" if on_mismatch == "one-sequence" else "refuse",
    )


def count_blocks(engine: EngineSpec, settings: Settings, *, bytes_per_token: int, overhead_tokens: int) -> int:
    """How many K/V blocks to account for. ``overhead_tokens`` is what the storage may hold beyond the blocks."""
    cache = engine.kv_cache
    if cache.blocks is not None:
        return cache.blocks
    if cache.memory_bytes is None:
        tokens = max(settings.length_max, DEFAULT_TOKENS_PER_SEQUENCE * settings.max_num_seqs)
        return -(-tokens // settings.block_size)
    blocks = (cache.memory_bytes // bytes_per_token - overhead_tokens) // settings.block_size
    if blocks < 1:
        needed = (overhead_tokens + settings.block_size) * bytes_per_token
        raise LoadError(
            f"engine.kvCache.memoryBytes is {cache.memory_bytes}; with maxNumSeqs {settings.max_num_seqs} "
            f"this model needs at least {needed}.",
            part="servingFlags",
        )
    return blocks
