"""Compare what a stream said with what the golden case recorded. Pure.

Exact ids when the record has this very (dtype, device class, engine build), and log-probabilities that no rounding explains are
still a fault. Otherwise rounding may differ: log-probabilities within the dtype's tolerance, and equal ids wherever the recorded
margin exceeds four tolerances; after a difference that rounding may explain the two texts are different continuations, and
nothing further can be compared.
"""

from collections.abc import Callable, Sequence

from pratique_contract.golden import LOGPROB_TOLERANCE, MARGIN_IN_TOLERANCES, GoldenCase, GoldenOutput
from pratique_contract.reasons import Reason
from pratique_contract.verdict import Evidence
from pratique_server.gate.differences import first_difference, show_ids, show_text
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.stream import StreamReport

Decode = Callable[[Sequence[int]], str]


def check_answer(report: StreamReport, *, prompt_tokens: int, name: str, decode: Decode) -> None:
    """The answer must agree with itself: usage counts the ids, the text is the ids' text, and no text ran ahead of its ids."""
    _require_count(name, "usage.prompt_tokens", expected=prompt_tokens, observed=report.usage.prompt_tokens)
    _require_count(name, "usage.completion_tokens", expected=len(report.ids), observed=report.usage.completion_tokens)
    _require_count(name, "logprobs", expected=len(report.ids), observed=len(report.logprobs))
    shown = ""
    for number, piece in enumerate(report.pieces, start=1):
        shown += piece.text
        text = decode(report.ids[: piece.ids_seen])
        if not text.startswith(shown):
            index = first_difference(text, shown) or 0
            raise CheckFailedError(
                Reason.STREAM_BROKEN,
                f"Case {name}: content chunk {number} is not the text of its ids",
                expected=text,
                observed=shown,
                evidence=(Evidence(subject="text", expected=show_text(text, index), observed=show_text(shown, index)),),
            )
    # A stop token is counted and not shown; a character cut off by the token limit is not shown either.
    shown_ids = report.ids[:-1] if report.finish_reason == "stop" else report.ids
    whole = decode(shown_ids).rstrip("\N{REPLACEMENT CHARACTER}")
    if whole != shown:
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"Case {name}: the stream's text is not the whole text of its ids",
            expected=whole,
            observed=shown,
        )


def _require_count(name: str, what: str, *, expected: int, observed: int) -> None:
    if expected != observed:
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"Case {name}: {what} is {observed}, counted {expected}",
            expected=str(expected),
            observed=str(observed),
        )


def check_golden(report: StreamReport, case: GoldenCase, *, dtype: str, device_class: str, engine_build: str) -> None:
    """Raises ``CheckFailedError`` when the answer is not the recorded one."""
    if report.prompt_ids != case.prompt_ids:
        index = first_difference(case.prompt_ids, report.prompt_ids) or 0
        raise CheckFailedError(
            Reason.TOKENIZER_MISMATCH,
            f"Case {case.name}: prompt id {index} differs in the server's own request path",
            part="tokenizer",
            expected=show_ids(case.prompt_ids, index),
            observed=show_ids(report.prompt_ids, index),
        )
    exact = case.exact_output(dtype=dtype, device_class=device_class, engine_build=engine_build)
    output = exact or nearest_output(case, dtype=dtype, device_class=device_class)
    tolerance = max(LOGPROB_TOLERANCE[output.dtype], LOGPROB_TOLERANCE[dtype])
    compared = len(output.ids) if exact else _comparable_length(report, output, tolerance)
    if not compared:
        raise CheckFailedError(
            Reason.OUTPUT_MISMATCH,
            f"Case {case.name}: the first id already differs from the one recorded in {output.dtype} on {output.device_class}; rounding "
            f"may explain it, but then the case proves nothing here: record the release on {device_class} in {dtype} as well",
            expected=show_ids(output.ids, 0),
            observed=show_ids(report.ids, 0),
        )
    _check_ids(report, output, case, compared)
    # Where ids are exact, another thread count may still move a logit by a unit; only more than a margin allows is wrong.
    _check_logprobs(report, output, case, tolerance * MARGIN_IN_TOLERANCES if exact else tolerance, compared)
    if compared == len(output.ids):
        _check_end(report, output, case)


def nearest_output(case: GoldenCase, *, dtype: str, device_class: str) -> GoldenOutput:
    """The recorded output most like this pod's: same device class and dtype, then same dtype, then the most precise one."""
    return min(
        case.outputs,
        key=lambda o: (o.dtype != dtype, o.device_class != device_class, LOGPROB_TOLERANCE[o.dtype]),
    )


def _comparable_length(report: StreamReport, output: GoldenOutput, tolerance: float) -> int:
    """Recorded steps up to the first difference that rounding explains (its margin is within four tolerances)."""
    index = first_difference(output.ids, report.ids)
    if index is None or index >= len(output.ids):
        return len(output.ids)
    return index if output.margins[index] <= MARGIN_IN_TOLERANCES * tolerance else len(output.ids)


def _check_ids(report: StreamReport, output: GoldenOutput, case: GoldenCase, compared: int) -> None:
    expected = output.ids[:compared]
    observed = report.ids if compared == len(output.ids) else report.ids[:compared]
    index = first_difference(expected, observed)
    if index is None:
        return
    raise CheckFailedError(
        Reason.OUTPUT_MISMATCH,
        f"Case {case.name}: output id {index} is {_at(observed, index)}, {_at(expected, index)} was approved",
        expected=show_ids(output.ids, index),
        observed=show_ids(report.ids, index),
        evidence=(
            Evidence(subject="output ids", expected=str(list(output.ids)), observed=str(list(report.ids))),
            Evidence(subject="output text", expected=repr(output.text), observed=repr(report.text)),
        ),
    )


def _check_logprobs(
    report: StreamReport, output: GoldenOutput, case: GoldenCase, tolerance: float, compared: int
) -> None:
    pairs = zip(output.logprobs[:compared], report.logprobs, strict=False)
    for index, (expected, observed) in enumerate(pairs):
        # Written so that NaN fails.
        if not abs(expected - observed) <= tolerance:
            raise CheckFailedError(
                Reason.OUTPUT_MISMATCH,
                f"Case {case.name}: the log-probability of output id {index} is {observed:.4f}, {expected:.4f} was "
                f"approved (tolerance {tolerance})",
                expected=f"{expected:.4f}",
                observed=f"{observed:.4f}",
            )


def _check_end(report: StreamReport, output: GoldenOutput, case: GoldenCase) -> None:
    pairs = (
        (Reason.OUTPUT_MISMATCH, "output text", output.text, report.text),
        (Reason.OUTPUT_MISMATCH, "finish reason", output.finish_reason, report.finish_reason),
        (Reason.STREAM_BROKEN, "event order", " → ".join(output.event_order), " → ".join(report.events)),
    )
    for reason, what, expected, observed in pairs:
        if expected == observed:
            continue
        index = first_difference(expected, observed) or 0
        raise CheckFailedError(
            reason,
            f"Case {case.name}: the {what} differs at character {index}: {show_text(expected, index)} was approved, "
            f"{show_text(observed, index)} was streamed",
            expected=expected,
            observed=observed,
        )


def _at(ids: Sequence[int], index: int) -> str:
    return str(ids[index]) if index < len(ids) else "the end"
