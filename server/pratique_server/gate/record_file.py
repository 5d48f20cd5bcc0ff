"""Read the release record this pod has to match: the approved one, mounted beside the serving document, or under TrustFirst the one
that the first pod made and the operator kept. Only the former makes a release approved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pratique_contract.constants import RECORD_FILE, RECORDED_DIR
from pratique_contract.record import RECORD_BYTES_MAX, RecordError, ReleaseRecord
from pratique_contract.serving import ReleaseSpec

RECORDED_PATH: Final = Path(RECORDED_DIR) / RECORD_FILE


@dataclass(frozen=True, kw_only=True)
class FoundRecord:
    """``problem`` says why a record that is there, or should be, cannot be used. Neither record nor problem: there is none."""

    record: ReleaseRecord | None = None
    problem: str | None = None
    approved: bool = True


def find_record(release: ReleaseSpec, recorded: Path = RECORDED_PATH) -> FoundRecord:
    """The declared record goes before a recorded one. Blocking."""
    if release.record_path is not None:
        record, problem = read_record(Path(release.record_path))
        return FoundRecord(record=record, problem=problem)
    if release.policy != "TrustFirst":
        return FoundRecord()
    if not recorded.exists():
        return FoundRecord(approved=False)
    record, problem = read_record(recorded)
    return FoundRecord(record=record, problem=problem, approved=False)


def read_record(path: Path) -> tuple[ReleaseRecord | None, str | None]:
    """The record and None, or None and the sentence that says why there is none."""
    try:
        with path.open("rb") as file:
            # One byte more than allowed is enough to be refused for its size.
            return ReleaseRecord.from_json(file.read(RECORD_BYTES_MAX + 1)), None
    except OSError as error:
        return None, f"The release record {path} cannot be read: {error.strerror or error}"
    except RecordError as error:
        return None, str(error)
