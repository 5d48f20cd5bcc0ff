"""Choose the next token of each row, where the logits live. Rows never influence each other.

Order of the rules: repetition, presence and frequency penalties, logit bias, stop ids held back until
``min_tokens``; then greedy, or temperature, top-k, top-p, min-p and one uniform number. That number comes from
(seed, output position) alone, so batching, chunking, preemption and the torch version leave a seeded stream as it
is. Reported log-probabilities are of the model's own distribution, before any rule.
"""

import hashlib
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from pratique_server.engine.protocol import SamplingRules, TokenLogprobs
from pratique_server.engine.sequence import Sequence


@dataclass(frozen=True)
class Sampled:
    """``token_id`` None: the row's logits were not numbers, and nothing was chosen."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


@torch.inference_mode()
def sample(logits: Tensor, sequences: list[Sequence]) -> list[Sampled]:
    """Choose for ``logits [rows, vocabulary]`` (float32, not modified), row ``i`` by the rules of ``sequences[i]``."""
    assert len(logits) == len(sequences)
    if not sequences:
        return []
    sound = torch.isfinite(logits.amax(dim=-1)).tolist()
    adjusted = _adjust(logits, sequences)
    chosen = adjusted.argmax(dim=-1).tolist()
    for row, sequence in enumerate(sequences):
        if sound[row] and sequence.request.sampling.temperature > 0:
            chosen[row] = _draw(adjusted[row], sequence)
    return [
        Sampled(chosen[row], _logprobs(logits[row], chosen[row], sequence.request.sampling.logprobs))
        if sound[row]
        else Sampled(None)
        for row, sequence in enumerate(sequences)
    ]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    key = seed.to_bytes(16, "little", signed=True) + struct.pack("<Q", position)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") // 2**11 / 2**53


def _adjust(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """Apply the rules that change logits; the input is copied only when one does."""
    rows = [row for row, sequence in enumerate(sequences) if _changes_logits(sequence)]
    if not rows:
        return logits
    adjusted = logits.clone()
    for row in rows:
        _penalize(adjusted[row], sequences[row])
        _bias(adjusted[row], sequences[row])
    return adjusted


def _changes_logits(sequence: Sequence) -> bool:
    rules = sequence.request.sampling
    return (
        rules.repetition_penalty != 1.0
        or rules.presence_penalty != 0.0
        or rules.frequency_penalty != 0.0
        or bool(rules.logit_bias)
        or sequence.num_output < sequence.request.min_tokens
    )


def _penalize(row: Tensor, sequence: Sequence) -> None:
    """Repetition counts prompt and output (as in transformers); presence and frequency count the output only (as
    in OpenAI's API)."""
    rules = sequence.request.sampling
    if rules.repetition_penalty != 1.0:
        seen = torch.unique(torch.tensor(sequence.token_ids, device=row.device))
        scores = row[seen]
        row[seen] = torch.where(scores > 0, scores / rules.repetition_penalty, scores * rules.repetition_penalty)
    if (rules.presence_penalty or rules.frequency_penalty) and sequence.num_output:
        ids, counts = torch.unique(torch.tensor(sequence.output_ids, device=row.device), return_counts=True)
        row[ids] -= rules.presence_penalty + rules.frequency_penalty * counts


def _bias(row: Tensor, sequence: Sequence) -> None:
    bias = sequence.request.sampling.logit_bias
    if bias:
        row[torch.tensor(list(bias), device=row.device)] += torch.tensor(list(bias.values()), device=row.device)
    stops = [token_id for token_id in sequence.request.stop_token_ids if 0 <= token_id < len(row)]
    if sequence.num_output < sequence.request.min_tokens and stops:
        row[torch.tensor(stops, device=row.device)] = float("-inf")


def _draw(row: Tensor, sequence: Sequence) -> int:
    """Invert the cumulative distribution of the kept tokens, the most likely first."""
    rules = sequence.request.sampling
    probabilities = torch.softmax(((row - row.max()) / rules.temperature).double(), dim=-1)
    ordered, ids = probabilities.sort(descending=True, stable=True)
    ordered = _keep(ordered, rules)
    cumulative = ordered.cumsum(dim=-1)
    target = cumulative[-1] * uniform(sequence.seed, sequence.num_output)
    index = int(torch.searchsorted(cumulative, target, right=True))
    return int(ids[min(index, int((ordered > 0).sum()) - 1)])


def _keep(ordered: Tensor, rules: SamplingRules) -> Tensor:
    """Zero the probabilities that top-k, top-p and min-p exclude. The most likely token is always kept."""
    if 0 < rules.top_k < len(ordered):
        ordered = ordered.clone()
        ordered[rules.top_k :] = 0.0
    if rules.top_p < 1.0:
        before = ordered.cumsum(dim=-1) - ordered
        excluded = before >= rules.top_p * ordered.sum()
        excluded[0] = False
        ordered = ordered.masked_fill(excluded, 0.0)
    if rules.min_p > 0.0:
        ordered = ordered.masked_fill(ordered < rules.min_p * ordered[0], 0.0)
    return ordered


def _logprobs(row: Tensor, token_id: int, count: int | None) -> TokenLogprobs | None:
    if count is None:
        return None
    logprobs = torch.log_softmax(row, dim=-1)
    values, ids = logprobs.topk(min(count, len(row)))
    top = list(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(chosen=float(logprobs[token_id]), top=top)
