"""The two files of a review, read as far as they can be compared at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pratique_cli.errors import CliError
from pratique_cli.records import read_manifest, read_record, read_source
from pratique_contract.comparable import find_not_comparable, find_unreadable
from pratique_contract.compare import compare_manifests
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.record import ReleaseRecord


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both releases; a manifest is None when the document is of another contract version or lists a file without a digest, and
    ``not_comparable`` says so."""

    reference: ReleaseManifest | None
    candidate: ReleaseManifest | None
    reference_record: ReleaseRecord | None
    candidate_record: ReleaseRecord | None
    not_comparable: tuple[str, ...]

    @property
    def manifests(self) -> tuple[ReleaseManifest, ReleaseManifest] | None:
        """Both, or None when they cannot be compared at all."""
        return None if self.reference is None or self.candidate is None else (self.reference, self.candidate)

    @property
    def differing(self) -> list[str]:
        """The parts that differ, in the manifest's order."""
        return [d.part for d in compare_manifests(*self.manifests)] if self.manifests else []

    @property
    def proves_otherwise(self) -> bool:
        """Whether two records make pods prove different things; of the same release that is something to look at."""
        if self.reference_record is None or self.candidate_record is None:
            return False
        return self.reference_record.golden != self.candidate_record.golden


def read_sides(reference: Path, candidate: Path) -> Sides:
    """Raises ``CliError`` for a file that is neither record nor manifest of any version."""
    documents = {path: _parse(path) for path in (reference, candidate)}
    unreadable = {path: find_unreadable(value) for path, value in documents.items()}
    found = tuple(f"{finding} ({path.name})" for path, findings in unreadable.items() for finding in findings)
    if found:
        return Sides(reference=None, candidate=None, reference_record=None, candidate_record=None, not_comparable=found)
    left, right = read_manifest(reference), read_manifest(candidate)
    return Sides(
        reference=left,
        candidate=right,
        reference_record=_record(reference, documents[reference]),
        candidate_record=_record(candidate, documents[candidate]),
        not_comparable=find_not_comparable(left, right),
    )


def _parse(path: Path) -> Any:
    try:
        return json.loads(read_source(path).text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path} is not JSON: {error}") from error


def _record(path: Path, value: Any) -> ReleaseRecord | None:
    return read_record(path) if isinstance(value, dict) and "manifest" in value else None
