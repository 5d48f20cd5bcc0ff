"""From a specification to a loaded engine: the one place that knows which engine a name means."""

import logging
import time
from typing import Any, Final

import torch

from pratique_contract import ServingSpec
from pratique_server.engine.admission import Capacity
from pratique_server.engine.flags import Settings, check_supported, count_blocks, make_settings, normalize_flags
from pratique_server.engine.identity import choose_device, make_identity
from pratique_server.engine.loader import LoadedModel, load_model
from pratique_server.engine.naive import NaiveEngine
from pratique_server.engine.protocol import LoadError
from pratique_server.engine.step_engine import StepEngine
from pratique_server.engine.torch_engine.engine import TorchEngine
from pratique_server.engine.torch_engine.kv_manager import KvManager
from pratique_server.engine.torch_engine.kv_storage import SequenceKv, tile_overhead_tokens
from pratique_server.engine.torch_engine.model_runner import ModelRunner, RunItem
from pratique_server.engine.torch_engine.scheduler import Scheduler
from pratique_server.engine.torch_engine.self_check import (
    RELATIVE_ERROR_MAX,
    compare_packed,
    find_damaged,
    run_plain,
)
from pratique_server.engine.torch_engine.self_test import run_self_test

# One request at a time has no company to depend on.
_ALONE: Final = {"execution": "one-sequence", "selfTest": {"result": "notNeeded", "goldenRequests": "alone"}}

logger = logging.getLogger(__name__)


def build_engine(spec: ServingSpec, *, poison_freed: bool = False) -> StepEngine:
    """Load the model and make the engine the specification names; raises ``LoadError`` with a sentence."""
    check_supported(spec)
    normalize_flags(spec.engine)  # an unknown argument is refused before minutes of loading
    device, begun = choose_device(), time.monotonic()
    loaded = load_model(spec.model, quantization=spec.quantization, device=device)
    settings = make_settings(spec, context_limit=loaded.context_limit, dtype=loaded.dtype)
    facts: dict[str, Any] = {"loadSeconds": round(time.monotonic() - begun, 3)}
    if spec.engine.name == "Naive":
        return _build_naive(spec, loaded, settings, device=device, facts=facts)
    return _build_torch(spec, loaded, settings, device=device, facts=facts, poison_freed=poison_freed)


def _build_naive(
    spec: ServingSpec, loaded: LoadedModel, settings: Settings, *, device: str, facts: dict[str, Any]
) -> NaiveEngine:
    return NaiveEngine(
        model=loaded.model,
        capacity=_capacity(loaded, settings, tokens_max=settings.length_max),
        identity=make_identity(spec, loaded, device=device, facts={**facts, **_ALONE}),
    )


def _build_torch(
    spec: ServingSpec,
    loaded: LoadedModel,
    settings: Settings,
    *,
    device: str,
    facts: dict[str, Any],
    poison_freed: bool,
) -> StepEngine:
    runner = ModelRunner(loaded.model)
    checked = check_packed(loaded, runner)
    facts |= checked
    if checked["packedCheck"] != "passed":
        if damaged := find_damaged(loaded.model):
            # Infinities spread otherwise when requests are packed: the weights are to blame, not the engine.
            raise LoadError(f"{damaged} holds values that no trained model has: the weights are damaged.")
        if settings.on_packed_mismatch == "refuse":
            raise LoadError(
                f"{loaded.architecture} does not compute the same packed with other requests as alone "
                f"({checked['packedCheck']}). The engine argument --packed-check=one-sequence serves it one request at "
                "a time, slowly.",
                part="engine",
            )
        runner.use_plain_attention()
        return _build_naive(spec, loaded, settings, device=device, facts=facts)
    facts |= _test_itself(runner, loaded)
    bytes_per_token = _kv_bytes_per_token(runner)
    overhead = tile_overhead_tokens(max_num_seqs=settings.max_num_seqs, block_size=settings.block_size)
    blocks = count_blocks(spec.engine, settings, bytes_per_token=bytes_per_token, overhead_tokens=overhead)
    kv = KvManager(total_blocks=blocks, block_size=settings.block_size)
    tokens_max = min(settings.length_max, blocks * settings.block_size)
    facts |= {"execution": "packed", "kvBlocks": blocks, "kvBytesPerToken": bytes_per_token}
    return TorchEngine(
        runner=runner,
        kv=kv,
        scheduler=Scheduler(kv, max_num_seqs=settings.max_num_seqs, max_batched_tokens=settings.max_batched_tokens),
        capacity=_capacity(loaded, settings, tokens_max=tokens_max),
        identity=make_identity(spec, loaded, device=device, facts=facts),
        poison_freed=poison_freed,
    )


def _test_itself(runner: ModelRunner, loaded: LoadedModel) -> dict[str, Any]:
    test = run_self_test(runner, loaded.vocab_size)
    outcome = "Passed" if test.passed else "Failed"
    level = logging.INFO if test.passed else logging.WARNING
    remark = "" if test.passed else ": a near-tie may turn in company, nothing is refused"
    logger.log(
        level, "%s the self-test of batch and chunk invariance%s", outcome, remark, extra={"fields": test.describe()}
    )
    return {"selfTest": test.describe()}


def check_packed(loaded: LoadedModel, runner: ModelRunner) -> dict[str, Any]:
    """Switch the model to packed attention and prove it against its own plain forward pass. Returns runtime facts:
    ``packedCheck`` is ``passed`` or says what went wrong."""
    reference = run_plain(loaded.model, loaded.vocab_size)
    try:
        runner.use_packed_attention()
        error = compare_packed(runner, reference)
    except Exception as failure:  # noqa: BLE001 - an architecture may fail in any way; each means that it cannot be packed
        return {"packedCheck": f"{type(failure).__name__}: {failure}"}
    limit = RELATIVE_ERROR_MAX[loaded.dtype]
    # Written so that not-a-number fails.
    if not error <= limit:
        return {"packedCheck": f"relative error {error:.2g}, allowed {limit:g}"}
    return {"packedCheck": "passed", "packedRelativeError": error}


def _kv_bytes_per_token(runner: ModelRunner) -> int:
    probe = SequenceKv()
    runner.execute([RunItem(probe, [0], 0, samples=False)])
    return probe.bytes_per_token()


def _capacity(loaded: LoadedModel, settings: Settings, *, tokens_max: int) -> Capacity:
    return Capacity(
        vocab_size=loaded.vocab_size,
        tokens_max=tokens_max,
        queued_max=settings.queued_max,
        queued_tokens_max=settings.queued_tokens_max,
    )


def pin_threads() -> None:
    """Use exactly the threads the environment names: a number that changes with load would change rounding."""
    torch.set_num_threads(torch.get_num_threads())
    torch.set_num_interop_threads(1)
