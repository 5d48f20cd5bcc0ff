"""At load time, prove on this very machine that packed execution computes the model.

``compare_packed`` runs a few made-up prompts packed, in chunks and decode steps, against the library's plain
forward pass of each alone: an architecture whose positions, masks or attention rules do not survive packing shows
a large error. Whether the numbers also keep to the last bit in any company is ``self_test``'s question.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pratique_contract.manifest import DType
from pratique_server.engine.torch_engine.kv_storage import SequenceKv
from pratique_server.engine.torch_engine.model_runner import ModelRunner, RunItem

# Largest root-mean-square difference of logits, relative to their own. Rounding stays well below; a wrong mask is near 1.
RELATIVE_ERROR_MAX: Final[dict[DType, float]] = {"FP32": 1e-4, "FP16": 0.02, "BF16": 0.05}
# The largest number of float16. No trained weight comes near it; one flipped bit of an exponent goes far beyond.
WEIGHT_MAX: Final = 65504.0
_PROMPT_LENGTHS: Final = (5, 9, 14)
_CHUNKS: Final = ((2, 3), (8, 1), (3, 10, 1))


@dataclass(frozen=True)
class PlainReference:
    """Prompts and the logits ``[length, vocabulary]`` (float32) of the library's own forward pass, one prompt at
    a time."""

    prompts: list[list[int]]
    logits: list[Tensor]


@torch.inference_mode()
def run_plain(model: PreTrainedModel, vocab_size: int) -> PlainReference:
    """Make the reference; must run before the model is switched to packed attention."""
    device = model.get_input_embeddings().weight.device
    prompts = [[(7 * length + 13 * i) % vocab_size for i in range(length)] for length in _PROMPT_LENGTHS]
    logits = [
        model(input_ids=torch.tensor([prompt], device=device), use_cache=False).logits[0].float() for prompt in prompts
    ]
    return PlainReference(prompts, logits)


@torch.inference_mode()
def find_damaged(model: PreTrainedModel) -> str | None:
    """The first tensor that holds what no trained model does: not a number, or a magnitude beyond ``WEIGHT_MAX``."""
    for name, tensor in model.state_dict().items():
        # Written so that not-a-number counts.
        if tensor.is_floating_point() and tensor.numel() and not float(tensor.abs().amax()) <= WEIGHT_MAX:
            return str(name)
    return None


def compare_packed(runner: ModelRunner, reference: PlainReference) -> float:
    """Relative error of packed, chunked execution against the reference. Raises what the model raises when it cannot."""
    caches = [SequenceKv() for _ in reference.prompts]
    done = [0] * len(caches)
    pairs: list[tuple[Tensor, Tensor]] = []
    for step in range(max(map(len, _CHUNKS))):
        live = [index for index, chunks in enumerate(_CHUNKS) if step < len(chunks)]
        items = []
        for index in live:
            end = done[index] + _CHUNKS[index][step]
            items.append(RunItem(caches[index], reference.prompts[index][done[index] : end], done[index], samples=True))
            done[index] = end
        logits = runner.execute(items)
        pairs += [(logits[row], reference.logits[index][done[index] - 1]) for row, index in enumerate(live)]
    # In float64: the squares of large logits are beyond float32, and a damaged weight would be blamed on the packing.
    packed, plain = (torch.stack(side).double() for side in zip(*pairs, strict=True))
    return float((packed - plain).norm() / plain.norm())
