"""SemanticParity: greedy answers of both releases, side by side. Pure.

* ``exactMatchRate``: answers whose ids are all equal, of all answers.
* ``tokenAgreement``: ids before the first difference, of all ids of the reference (1 when every answer is equal).
* ``clearDivergenceRate``: answers that part where the reference led its runner-up by more than ``clearMarginNats``. A near-tie may be
  turned by rounding alone; a clear choice may not, so these are the ones that mean something.
* ``emptyAnswers``: answers that became empty.

Releases with different tokenizers are compared by text (characters for ids); leads are not looked at then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pratique_server.gate.differences import first_difference
from pratique_server.review.capture import Answer
from pratique_server.review.limits import Limits

Figures = dict[str, float | int | str]
DECIMALS = 4


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where two answers part: at which id (from 0; a character when compared by text), and the reference's lead there (nat)."""

    name: str
    index: int
    margin: float | None
    clear: bool
    reference: str
    candidate: str


def find_divergences(
    reference: Sequence[Answer], candidate: Sequence[Answer], *, clear_margin: float, by_text: bool
) -> list[Divergence]:
    """The answers that differ, in order."""
    found = []
    for left, right in zip(reference, candidate, strict=True):
        index = first_difference(_compared(left, by_text), _compared(right, by_text))
        if index is None:
            continue
        # Past the reference's last id there is no lead to speak of: one went on where the other had ended.
        margin = None if by_text or index >= len(left.margins) else left.margins[index]
        found.append(
            Divergence(
                name=left.name,
                index=index,
                margin=margin,
                clear=not by_text and (margin is None or margin > clear_margin),
                reference=left.text,
                candidate=right.text,
            )
        )
    return found


def measure_parity(
    reference: Sequence[Answer], candidate: Sequence[Answer], divergences: Sequence[Divergence], *, by_text: bool
) -> Figures:
    """The figures of the module's docstring."""
    total = sum(len(_compared(answer, by_text)) for answer in reference)
    at = {divergence.name: divergence.index for divergence in divergences}
    agreed = sum(min(at.get(answer.name, 2**31), len(_compared(answer, by_text))) for answer in reference)
    empty = sum(bool(left.text) and not right.text for left, right in zip(reference, candidate, strict=True))
    figures: Figures = {
        "prompts": len(reference),
        "comparedBy": "text" if by_text else "ids",
        "exactMatchRate": round(1 - len(divergences) / len(reference), DECIMALS),
        "tokenAgreement": round(agreed / total, DECIMALS) if total else 1.0,
        "clearDivergenceRate": round(sum(d.clear for d in divergences) / len(reference), DECIMALS),
        "emptyAnswers": empty,
    }
    if divergences:
        figures["firstDivergenceMedian"] = float(median(at.values()))
    return figures


def describe_parity(figures: Figures, divergences: Sequence[Divergence], limits: Limits) -> str:
    """One sentence for the table."""
    clear = [divergence.name for divergence in divergences if divergence.clear]
    more = f"; {', '.join(clear[:5])} part at a lead above {limits['clearMarginNats']:g} nat" if clear else ""
    parted = f"{len(divergences)} of {figures['prompts']} answers part" if divergences else "every answer is equal"
    return f"{parted}, {figures['tokenAgreement']:.1%} of the {figures['comparedBy']} agree before that{more}"


def _compared(answer: Answer, by_text: bool) -> Sequence[object]:
    return answer.text if by_text else answer.ids
