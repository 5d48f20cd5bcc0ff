"""What each test's figures are held against, by the kind of numeric change. Pure data and one lookup.

A limit ``xMin`` or ``xMax`` bounds the figure ``x`` (the contract's ``ReviewTest`` checks it again when a record is read); other names are
parameters of the test. Every default may be replaced by the person who reviews, and what was used stands in the review.
"""

from collections.abc import Mapping
from typing import Final

from pratique_contract.golden import GOLDEN_STEPS_MIN, LOGPROB_TOLERANCE, MARGIN_IN_TOLERANCES
from pratique_contract.manifest import QuantizationPart, ReleaseManifest
from pratique_contract.review import TestKind
from pratique_server.review.errors import ReviewError

Limits = dict[str, float | int]

# Changes that keep the numeric format, and those between dtypes.
SAME_FORMAT: Final = "same"
OTHER_DTYPE: Final = "dtype"
# Methods that are compared as another one is; what is in no table is compared as four bits are.
_ALIKE: Final[dict[str, str]] = {"FP8": "Int8WeightOnly", "BitsAndBytes": "Int4WeightOnly"}
_COARSEST: Final = "Int4WeightOnly"

_LOGITS: Final[dict[str, Limits]] = {
    SAME_FORMAT: {
        "klMeanMax": 0.005,
        "klP99Max": 0.05,
        "top1AgreementMin": 0.97,
        "top10AgreementMin": 0.95,
        "logprobDeltaMax": 1.0,
    },
    OTHER_DTYPE: {
        "klMeanMax": 0.005,
        "klP99Max": 0.05,
        "top1AgreementMin": 0.97,
        "top10AgreementMin": 0.95,
        "logprobDeltaMax": 1.0,
    },
    "Int8WeightOnly": {
        "klMeanMax": 0.02,
        "klP99Max": 0.2,
        "top1AgreementMin": 0.95,
        "top10AgreementMin": 0.9,
        "logprobDeltaMax": 2.0,
    },
    "Int4WeightOnly": {
        "klMeanMax": 0.2,
        "klP99Max": 2.0,
        "top1AgreementMin": 0.85,
        "top10AgreementMin": 0.75,
        "logprobDeltaMax": 5.0,
    },
}
_PARITY: Final[dict[str, Limits]] = {
    SAME_FORMAT: {"exactMatchRateMin": 0.5, "tokenAgreementMin": 0.75, "clearDivergenceRateMax": 0.0},
    OTHER_DTYPE: {"exactMatchRateMin": 0.5, "tokenAgreementMin": 0.75, "clearDivergenceRateMax": 0.0},
    "Int8WeightOnly": {"exactMatchRateMin": 0.25, "tokenAgreementMin": 0.5, "clearDivergenceRateMax": 0.1},
    "Int4WeightOnly": {"exactMatchRateMin": 0.1, "tokenAgreementMin": 0.25, "clearDivergenceRateMax": 0.4},
}


def numeric_change(reference: QuantizationPart, candidate: QuantizationPart) -> str:
    """Which row of the tables applies: the coarser of two methods, or the dtype's change, or none."""
    if (reference.method, reference.config) != (candidate.method, candidate.config):
        method = candidate.method if candidate.method != "None" else reference.method
        method = _ALIKE.get(method, method)
        return method if method in _LOGITS else _COARSEST
    return SAME_FORMAT if reference.dtype == candidate.dtype else OTHER_DTYPE


def choose_limits(
    kind: TestKind, reference: ReleaseManifest, candidate: ReleaseManifest, overrides: Mapping[str, float]
) -> Limits:
    """The limits of one test; ``overrides`` by ``Kind.name``. Raises ``ReviewError`` for a name that this test does not have."""
    change = numeric_change(reference.quantization, candidate.quantization)
    limits = _defaults(kind, change, reference, candidate)
    for key, value in overrides.items():
        test, _, name = key.partition(".")
        if test != kind:
            continue
        if name not in limits:
            raise ReviewError(f"{kind} has no limit {name!r}; it has {', '.join(sorted(limits))}")
        limits[name] = value
    return limits


def _defaults(kind: TestKind, change: str, reference: ReleaseManifest, candidate: ReleaseManifest) -> Limits:
    if kind == "RenderedFixtures":
        return {"refusedMax": 0, "contentLostMax": 0, "doubledBosMax": 0, "unlikeRecordMax": 0, "unexplainedMax": 0}
    if kind == "LogitComparison":
        return {**_LOGITS[change], "notFiniteMax": 0}
    if kind == "SemanticParity":
        return {
            **_PARITY[change],
            "emptyAnswersMax": 0,
            "goldenMismatchesMax": 0,
            "goldenTokensMin": GOLDEN_STEPS_MIN,
            "clearMarginNats": clear_margin(reference.quantization.dtype, candidate.quantization.dtype),
        }
    raise ReviewError(f"{kind} is not a test of this module")


def clear_margin(*dtypes: str) -> float:
    """The lead (nat) above which no rounding in these dtypes turns a choice: the gate's rule for another device."""
    return MARGIN_IN_TOLERANCES * max(LOGPROB_TOLERANCE[dtype] for dtype in dtypes)
