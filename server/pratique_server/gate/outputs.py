"""Compare what a stream said with what the golden case recorded. Pure.

Exact ids when the record has this very (dtype, device class, engine build), and log-probabilities that no rounding explains are
still a fault. Otherwise rounding may differ: log-probabilities within the dtype's tolerance, and equal ids wherever the recorded
margin exceeds four tolerances; after a difference that rounding may explain (the token chosen instead was nearly as likely) the
two texts are different continuations, and nothing further can be compared. Over all cases enough has to be left to prove something.
"""

from collections.abc import Callable, Sequence

from pratique_contract.golden import (
    GOLDEN_STEPS_MIN,
    LOGPROB_TOLERANCE,
    MARGIN_IN_TOLERANCES,
    GoldenCase,
    GoldenOutput,
)
from pratique_contract.reasons import Reason
from pratique_contract.verdict import Evidence
from pratique_server.gate.differences import (
    describe_context,
    describe_text_difference,
    describe_token,
    first_difference,
    show_ids,
    show_text,
)
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.stream import REPLACEMENT, StreamReport

Decode = Callable[[Sequence[int]], str]


def check_answer(report: StreamReport, *, prompt_tokens: int, name: str, decode: Decode) -> None:
    """The answer must agree with itself: usage counts the ids, the text is the ids' text, and no text ran ahead of its ids."""
    _require_count(name, "usage.prompt_tokens", expected=prompt_tokens, observed=report.usage.prompt_tokens)
    _require_count(name, "usage.completion_tokens", expected=len(report.ids), observed=report.usage.completion_tokens)
    _require_count(name, "logprobs", expected=len(report.ids), observed=len(report.logprobs))
    _check_characters(report, name, decode)
    shown = ""
    for number, piece in enumerate(report.pieces, start=1):
        shown += piece.text
        text = decode(report.ids[: piece.ids_seen])
        if not text.startswith(shown):
            index = first_difference(text, shown) or 0
            raise CheckFailedError(
                Reason.STREAM_BROKEN,
                f"Case {name}: content chunk {number} is not the text of its ids: {show_text(shown, index)} was streamed, the ids "
                f"say {show_text(text, index)}",
                expected=text,
                observed=shown,
                evidence=(Evidence(subject="text", expected=show_text(text, index), observed=show_text(shown, index)),),
            )
    # A stop token is counted and not shown; a character cut off by the token limit is not shown either.
    shown_ids = report.ids[:-1] if report.finish_reason == "stop" else report.ids
    whole = decode(shown_ids).rstrip(REPLACEMENT)
    if whole != shown:
        index = first_difference(whole, shown) or 0
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"Case {name}: the stream's text is not the whole text of its ids: {show_text(shown, index)} was streamed, the ids say "
            f"{show_text(whole, index)}",
            expected=whole,
            observed=shown,
        )


def _check_characters(report: StreamReport, name: str, decode: Decode) -> None:
    """U+FFFD stands for bytes that are no character. Where the ids themselves say no such bytes, the stream has cut one in two."""
    if REPLACEMENT in report.text and REPLACEMENT not in decode(report.ids):
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"Case {name}: the text has U+FFFD: part of a character was sent",
            expected="whole characters",
            observed=report.text,
        )


def _require_count(name: str, what: str, *, expected: int, observed: int) -> None:
    if expected != observed:
        raise CheckFailedError(
            Reason.STREAM_BROKEN,
            f"Case {name}: {what} says {observed}, counted are {expected}",
            expected=str(expected),
            observed=str(observed),
        )


def check_golden(
    report: StreamReport,
    case: GoldenCase,
    *,
    decode: Decode,
    dtype: str,
    device_class: str,
    engine_build: str,
    exact: bool = True,
) -> int:
    """Raises ``CheckFailedError`` when the answer is not the recorded one; else how many recorded steps it proved. ``exact`` False
    allows what rounding may do also where the record is of this very device."""
    _check_prompt(report, case, decode)
    own = case.exact_output(dtype=dtype, device_class=device_class, engine_build=engine_build)
    output = own or nearest_output(case, dtype=dtype, device_class=device_class, engine_build=engine_build)
    tolerance = max(LOGPROB_TOLERANCE[output.dtype], LOGPROB_TOLERANCE[dtype])
    compared = len(output.ids) if own and exact else _comparable_length(report, output, tolerance)
    _check_ids(report, output, case, compared, decode)
    # Where ids are exact, another thread count may still move a logit by a unit; only more than a margin allows is wrong.
    _check_logprobs(report, output, case, tolerance * MARGIN_IN_TOLERANCES if own else tolerance, compared)
    if compared == len(output.ids):
        _check_end(report, output, case)
    else:
        _check_turn(report, output, case, tolerance, compared, decode)
    return compared


def check_recorded(output: GoldenOutput, case: GoldenCase, decode: Decode) -> int:
    """The same comparison for an output that is about to be recorded beside those of other devices."""
    report = StreamReport(
        text=output.text,
        pieces=(),
        ids=output.ids,
        prompt_ids=case.prompt_ids,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        usage=output.usage,
        events=output.event_order,
        system_fingerprint=None,
        model="",
    )
    return check_golden(
        report,
        case,
        decode=decode,
        dtype=output.dtype,
        device_class=output.device_class,
        engine_build=output.engine_build,
    )


def require_enough(compared: int, *, dtype: str, device_class: str) -> None:
    """On another device a case may end early at a choice that rounding turned: what is left over all cases has to prove something."""
    if compared < GOLDEN_STEPS_MIN:
        raise CheckFailedError(
            Reason.OUTPUT_MISMATCH,
            f"Only {compared} recorded output tokens could be compared on {device_class} in {dtype}: rounding may explain the "
            "rest, but that proves nothing here. Record the release on this device as well (pratique release record --add-output)",
            expected=f"at least {GOLDEN_STEPS_MIN} tokens compared",
            observed=str(compared),
        )


def _check_prompt(report: StreamReport, case: GoldenCase, decode: Decode) -> None:
    """What the request path made of the messages. A server that tells its text lets template and tokenizer be told apart."""
    if report.prompt_text not in (None, case.text):
        index = first_difference(case.text, str(report.prompt_text)) or 0
        raise CheckFailedError(
            Reason.TEMPLATE_MISMATCH,
            f"Case {case.name}: in the server's own request path, "
            f"{describe_text_difference(case.text, str(report.prompt_text), index)}",
            part="chatTemplate",
            expected=show_text(case.text, index),
            observed=show_text(str(report.prompt_text), index),
        )
    index_of_id = first_difference(case.prompt_ids, report.prompt_ids)
    if index_of_id is None:
        return
    raise CheckFailedError(
        Reason.TOKENIZER_MISMATCH,
        f"Case {case.name}: prompt token {index_of_id} is {describe_token(report.prompt_ids, index_of_id, decode)} in the server's own "
        f"request path, {describe_token(case.prompt_ids, index_of_id, decode)} was recorded, "
        f"{describe_context(case.prompt_ids, index_of_id, decode)}",
        part="tokenizer",
        expected=show_ids(case.prompt_ids, index_of_id),
        observed=show_ids(report.prompt_ids, index_of_id),
    )


def nearest_output(case: GoldenCase, *, dtype: str, device_class: str, engine_build: str) -> GoldenOutput:
    """The recorded output most like this pod's: same dtype, then same device class, then same build, then the most precise one."""
    return min(
        case.outputs,
        key=lambda o: (
            o.dtype != dtype,
            o.device_class != device_class,
            o.engine_build != engine_build,
            LOGPROB_TOLERANCE[o.dtype],
        ),
    )


def _comparable_length(report: StreamReport, output: GoldenOutput, tolerance: float) -> int:
    """Recorded steps up to the first difference that rounding explains (its margin is within four tolerances)."""
    index = first_difference(output.ids, report.ids)
    if index is None or index >= min(len(output.ids), len(report.ids)):
        return len(output.ids)
    return index if output.margins[index] <= MARGIN_IN_TOLERANCES * tolerance else len(output.ids)


def _check_ids(report: StreamReport, output: GoldenOutput, case: GoldenCase, compared: int, decode: Decode) -> None:
    expected = output.ids[:compared]
    observed = report.ids if compared == len(output.ids) else report.ids[:compared]
    index = first_difference(expected, observed)
    if index is None:
        return
    raise CheckFailedError(
        Reason.OUTPUT_MISMATCH,
        f"Case {case.name}: output token {index} is {describe_token(report.ids, index, decode)}, "
        f"{describe_token(output.ids, index, decode)} was recorded, {describe_context(output.ids, index, decode)}",
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
                f"Case {case.name}: the log-probability of output token {index} is {observed:.4f}, {expected:.4f} was "
                f"recorded (in {output.dtype} on {output.device_class}, tolerance {tolerance:g} nat)",
                expected=f"{expected:.4f}",
                observed=f"{observed:.4f}",
                evidence=(
                    Evidence(
                        subject="log-probabilities",
                        expected=" ".join(f"{value:.3f}" for value in output.logprobs),
                        observed=" ".join(f"{value:.3f}" for value in report.logprobs),
                    ),
                ),
            )


def _check_turn(
    report: StreamReport, output: GoldenOutput, case: GoldenCase, tolerance: float, index: int, decode: Decode
) -> None:
    """Where rounding turned a choice, both were nearly as likely: the other token's log-probability has to say so."""
    expected, observed = output.logprobs[index], report.logprobs[index]
    if not abs(expected - observed) <= tolerance * MARGIN_IN_TOLERANCES:
        raise CheckFailedError(
            Reason.OUTPUT_MISMATCH,
            f"Case {case.name}: output token {index} is {describe_token(report.ids, index, decode)} at {observed:.4f}, "
            f"{describe_token(output.ids, index, decode)} at {expected:.4f} was recorded; rounding does not turn a choice that far",
            expected=f"{expected:.4f}",
            observed=f"{observed:.4f}",
        )


def _check_end(report: StreamReport, output: GoldenOutput, case: GoldenCase) -> None:
    if report.text != output.text:
        index = first_difference(output.text, report.text) or 0
        raise CheckFailedError(
            Reason.OUTPUT_MISMATCH,
            f"Case {case.name}: the ids are the recorded ones and the text is not: "
            f"{describe_text_difference(output.text, report.text, index)}",
            expected=output.text,
            observed=report.text,
        )
    pairs = (
        (Reason.OUTPUT_MISMATCH, "finish reason", output.finish_reason, report.finish_reason),
        (Reason.STREAM_BROKEN, "event order", " → ".join(output.event_order), " → ".join(report.events)),
    )
    for reason, what, expected, observed in pairs:
        if expected != observed:
            raise CheckFailedError(
                reason,
                f"Case {case.name}: the {what} is {observed}, {expected} was recorded",
                expected=expected,
                observed=observed,
            )
