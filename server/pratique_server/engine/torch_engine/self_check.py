"""At load time, prove on this very machine that packed execution computes the model, and say whether it is
deterministic.

``compare_packed`` runs a few made-up prompts packed, in chunks and decode steps, against the library's plain
forward pass of each alone: an architecture whose positions, masks or attention rules do not survive packing shows
a large error. ``check_determinism`` repeats one prompt in several batch sizes and chunkings and asks for bitwise
equal logits.
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
_PROMPT_LENGTHS: Final = (5, 9, 14)
_CHUNKS: Final = ((2, 3), (8, 1), (3, 10, 1))
# (batch size, chunks of the probe): each gives the logits of the same last position.
_PROBES: Final = (
    *((batch, chunks) for batch in (1, 2, 5) for chunks in ((14,), (13, 1), (3, 5, 6))),
    (2, (1,) * 14),
)


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
    packed, plain = (torch.stack(side) for side in zip(*pairs, strict=True))
    return float((packed - plain).norm() / plain.norm())


def check_determinism(runner: ModelRunner, reference: PlainReference) -> bool:
    """Whether one prompt's last logits are bitwise the same in every batch size and chunking tried."""
    prompt, neighbour = reference.prompts[-1], reference.prompts[0]
    results = [_last_logits(runner, prompt, chunks, [neighbour] * (batch - 1)) for batch, chunks in _PROBES]
    return all(torch.equal(result, results[0]) for result in results)


def _last_logits(runner: ModelRunner, prompt: list[int], chunks: tuple[int, ...], others: list[list[int]]) -> Tensor:
    """Logits of the prompt's last position, computed in ``chunks`` beside other prompts of which each step sees
    one token."""
    cache, start = SequenceKv(), 0
    neighbours = [SequenceKv() for _ in others]
    logits = torch.empty(0)
    for step, count in enumerate(chunks):
        items = [RunItem(cache, prompt[start : start + count], start, samples=True)]
        items += [
            RunItem(kv, [ids[step % len(ids)]], step, samples=True) for kv, ids in zip(neighbours, others, strict=True)
        ]
        logits, start = runner.execute(items)[0], start + count
    return logits
