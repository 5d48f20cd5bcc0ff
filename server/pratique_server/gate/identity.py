"""Compare what is recorded with what is loaded, before anything runs. Pure.

Which reason for which gap: no record, or one that proves too little → ``GoldenMissing`` (nothing to prove the release with); a record
of another release than the one this pod has to be → ``RecordMissing`` (the record *of that release* is what is missing: the
loaded parts cannot be blamed before it is there); otherwise the first differing part's own reason.
"""

from pratique_contract.canonical import short_digest
from pratique_contract.compare import compare_manifests, find_cause
from pratique_contract.golden import GoldenRecord
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ReleaseSpec
from pratique_contract.verdict import Evidence
from pratique_server.gate.differences import describe_text_difference, first_difference
from pratique_server.gate.errors import CheckFailedError


def require_record(release: ReleaseSpec, record: ReleaseRecord | None, problem: str | None) -> ReleaseRecord:
    """The record to prove, or ``CheckFailedError``. ``problem`` says why a record that should be there could not be read."""
    if record is None:
        raise CheckFailedError(
            Reason.GOLDEN_MISSING,
            problem
            or "No release record was given (spec.release.recordRef, or --record), so there is nothing this pod could prove",
            expected=release.fingerprint,
        )
    if release.fingerprint is not None and record.fingerprint != release.fingerprint:
        raise CheckFailedError(
            Reason.RECORD_MISSING,
            f"This pod has to be release {short_digest(release.fingerprint)}, but the record given is of release "
            f"{short_digest(record.fingerprint)}",
            expected=release.fingerprint,
            observed=record.fingerprint,
        )
    gaps = record.find_gaps()
    if gaps:
        raise CheckFailedError(
            Reason.GOLDEN_MISSING,
            f"The release record proves too little: {'; '.join(gaps)}. Record the release again (pratique release record)",
            expected=record.fingerprint,
        )
    return record


def describe_golden(golden: GoldenRecord) -> str:
    """What a record proves, in a few words."""
    refused = f" ({len(golden.refused)} refused by the template)" if golden.refused else ""
    return f"{len(golden.fixtures) + len(golden.refused)} fixtures{refused}, {len(golden.cases)} golden cases"


def check_manifest(record: ReleaseRecord, observed: ReleaseManifest, *, template: str | None) -> str:
    """Raises ``CheckFailedError`` with the first differing part's reason; every differing field is evidence. ``template`` is
    the loaded chat template's text, to show where it parts from the recorded one."""
    differences = compare_manifests(record.manifest, observed)
    if not differences:
        return f"8 parts equal, fingerprint {observed.fingerprint}"
    cause, sentence = find_cause(differences)
    others = [difference.part for difference in differences if difference is not cause]
    also = f"; {', '.join(others)} also differ{'s' if len(others) == 1 else ''}" if others else ""
    if cause.reason is Reason.TEMPLATE_MISMATCH:
        sentence = _where_it_parts(record.chat_template, template) or sentence
    raise CheckFailedError(
        cause.reason,
        f"{sentence}{also}",
        part=cause.part,
        expected=cause.expected,
        observed=cause.observed,
        evidence=tuple(
            Evidence(subject=f"{part.part}.{field.path}", expected=field.expected, observed=field.observed)
            for part in (cause, *(difference for difference in differences if difference is not cause))
            for field in part.fields
        ),
    )


def _where_it_parts(recorded: str | None, loaded: str | None) -> str | None:
    """A template's digest and length tell nobody what to mend; its first differing character does."""
    if recorded is None or loaded is None:
        return None
    index = first_difference(recorded, loaded)
    if index is None:
        return None
    line = recorded.count("\n", 0, index) + 1
    return f"chatTemplate: line {line}, {describe_text_difference(recorded, loaded, index)}"


def check_trusted_fingerprint(release: ReleaseSpec, observed: ReleaseManifest) -> None:
    """Without a record, a declared fingerprint still has to be the loaded one."""
    if release.fingerprint not in (None, observed.fingerprint):
        raise CheckFailedError(
            Reason.RECORD_MISSING,
            f"This pod has to be release {short_digest(str(release.fingerprint))}, {short_digest(observed.fingerprint)} is loaded, and "
            "no record says which part differs: put back that release, or leave spec.release.fingerprint out to have this recorded",
            expected=release.fingerprint,
            observed=observed.fingerprint,
        )
