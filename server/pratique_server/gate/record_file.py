"""Read the release record that is mounted beside the serving document."""

from pathlib import Path

from pratique_contract.record import RECORD_BYTES_MAX, RecordError, ReleaseRecord
from pratique_contract.serving import ReleaseSpec


def read_record(release: ReleaseSpec) -> tuple[ReleaseRecord | None, str | None]:
    """The record and None, or None and the sentence that says why there is none."""
    if release.record_path is None:
        return None, None
    try:
        with Path(release.record_path).open("rb") as file:
            # One byte more than allowed is enough to be refused for its size.
            return ReleaseRecord.from_json(file.read(RECORD_BYTES_MAX + 1)), None
    except OSError as error:
        return None, f"The release record {release.record_path} cannot be read: {error.strerror or error}"
    except RecordError as error:
        return None, str(error)
