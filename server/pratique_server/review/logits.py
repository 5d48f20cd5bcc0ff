"""LogitComparison: both releases' distributions at the same positions, the reference's greedy ids being given to both. Pure.

With P the reference's distribution at a position and Q the candidate's (softmax of float32 logits, summed in float64):

* ``klMean``, ``klP99`` (nat): Kullback and Leibler's divergence Σ P (ln P − ln Q), its mean over positions and the value that 99 % of
  them do not exceed. Zero means the same distribution; llama.cpp's perplexity tool reports quantizations by the same two figures.
* ``top1Agreement``: positions at which both have the same most likely id; ``top10Agreement``: mean share of the ten most likely they share.
* ``logprobDelta`` (nat): the largest difference of the given id's log-probability, the quantity whose tolerance the gate uses.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from pratique_server.review.capture import Answer
from pratique_server.review.parity import Figures

TOP: Final = 10
DIGITS: Final = 4


def measure_logits(reference: Sequence[Tensor], candidate: Sequence[Tensor], answers: Sequence[Answer]) -> Figures:
    """The figures of the module's docstring. Positions where either side is not a number are counted and left out."""
    kl: list[float] = []
    deltas: list[float] = []
    same_top1 = shared = bad = 0
    for left, right, chosen in _positions(reference, candidate, answers):
        if not (bool(torch.isfinite(left).all()) and bool(torch.isfinite(right).all())):
            bad += 1
            continue
        p, q = torch.log_softmax(left.double(), -1), torch.log_softmax(right.double(), -1)
        kl.append(max(0.0, float((p.exp() * (p - q)).sum())))
        deltas.append(abs(float(p[chosen] - q[chosen])))
        best, other = p.topk(TOP).indices.tolist(), q.topk(TOP).indices.tolist()
        same_top1 += best[0] == other[0]
        shared += len(set(best) & set(other))
    figures: Figures = {"positions": len(kl) + bad, "notFinite": bad}
    if not kl:
        return figures
    return figures | {
        "klMean": _significant(sum(kl) / len(kl)),
        "klP99": _significant(percentile(kl, 0.99)),
        "top1Agreement": round(same_top1 / len(kl), DIGITS),
        "top10Agreement": round(shared / (TOP * len(kl)), DIGITS),
        "logprobDelta": _significant(max(deltas)),
    }


def describe_logits(figures: Figures) -> str:
    """One sentence for the table."""
    if "klMean" not in figures:
        return f"none of {figures['positions']} positions has finite logits on both sides"
    return (
        f"KL {figures['klMean']:.2g} nat on average and {figures['klP99']:.2g} at the 99th percentile over {figures['positions']} "
        f"positions, top-1 agrees at {figures['top1Agreement']:.1%}"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _positions(
    reference: Sequence[Tensor], candidate: Sequence[Tensor], answers: Sequence[Answer]
) -> Iterator[tuple[Tensor, Tensor, int]]:
    for left, right, answer in zip(reference, candidate, answers, strict=True):
        yield from zip(left, right, answer.ids, strict=True)


def _significant(value: float) -> float:
    """Digits enough to judge by, few enough to be the same on another machine of this kind."""
    return float(f"{value:.{DIGITS}g}")
