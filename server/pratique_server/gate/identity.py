"""Compare what is approved with what is loaded, before anything runs. Pure.

Which reason for which gap: no record, or one without cases → ``GoldenMissing`` (nothing to prove the release with); a record
of another release than the approved fingerprint → ``RecordMissing`` (the record *of the approved release* is what is missing: the
loaded parts cannot be blamed before it is there); otherwise the first differing part's own reason.
"""

from pratique_contract.canonical import short_digest
from pratique_contract.compare import PartDifference, compare_manifests
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ReleaseSpec
from pratique_contract.verdict import Evidence
from pratique_server.gate.differences import describe_character, first_difference, show_text
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
            f"Release {short_digest(release.fingerprint)} is approved, but the record given is of release "
            f"{short_digest(record.fingerprint)}",
            expected=release.fingerprint,
            observed=record.fingerprint,
        )
    if not record.golden.cases:
        raise CheckFailedError(
            Reason.GOLDEN_MISSING, "The release record has no golden case, so there is no output this pod could prove"
        )
    return record


def check_manifest(approved: ReleaseRecord, observed: ReleaseManifest, *, template: str | None) -> str:
    """Raises ``CheckFailedError`` with the first differing part's reason; every differing field is evidence. ``template`` is
    the loaded chat template's text, to show where it parts from the approved one."""
    differences = compare_manifests(approved.manifest, observed)
    if not differences:
        return f"8 parts equal, fingerprint {observed.fingerprint}"
    first, *others = differences
    also = (
        f"; {', '.join(other.part for other in others)} also differ{'s' if len(others) == 1 else ''}" if others else ""
    )
    raise CheckFailedError(
        first.reason,
        f"{_sentence(first, approved.chat_template, template)}{also}",
        part=first.part,
        expected=first.expected,
        observed=first.observed,
        evidence=tuple(
            Evidence(subject=f"{part.part}.{field.path}", expected=field.expected, observed=field.observed)
            for part in differences
            for field in part.fields
        ),
    )


def _sentence(first: PartDifference, approved: str | None, loaded: str | None) -> str:
    """A template's digest and length tell nobody what to mend; its first differing character does."""
    if first.reason is not Reason.TEMPLATE_MISMATCH or approved is None or loaded is None:
        return first.message
    index = first_difference(approved, loaded) or 0
    return (
        f"chatTemplate: character {index} is {describe_character(loaded, index)} in {show_text(loaded, index)}, "
        f"{describe_character(approved, index)} in {show_text(approved, index)} was approved"
    )


def check_trusted_fingerprint(release: ReleaseSpec, observed: ReleaseManifest) -> None:
    """Without a record, a declared fingerprint still has to be the loaded one."""
    if release.fingerprint not in (None, observed.fingerprint):
        raise CheckFailedError(
            Reason.RECORD_MISSING,
            f"Release {short_digest(str(release.fingerprint))} is approved, {short_digest(observed.fingerprint)} is loaded, and "
            "no record says which part differs",
            expected=release.fingerprint,
            observed=observed.fingerprint,
        )
