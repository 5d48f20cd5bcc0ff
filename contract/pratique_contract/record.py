"""The release record: a manifest and its golden record in one JSON document, as ``pratique release record`` writes
it, a ConfigMap carries it and a pod reads it."""

import json
from typing import Any, Final, Literal, Self

from pydantic import ValidationError, model_validator

from pratique_contract.canonical import JSON_ERRORS, canonical_json, digest_bytes
from pratique_contract.golden import GoldenRecord, find_gaps, find_repeated
from pratique_contract.manifest import ReleaseManifest
from pratique_contract.model import ContractModel
from pratique_contract.review import Review

RECORD_VERSION: Final = "pratique.dev/record/v1"

# A ConfigMap holds 1 MiB of data in all. The operator's own copy carries the serving document beside the record, so
# the record may fill all but 64 KiB of it.
CONFIGMAP_BYTES_MAX: Final = 1024 * 1024
RECORD_BYTES_MAX: Final = CONFIGMAP_BYTES_MAX - 64 * 1024


class RecordError(ValueError):
    """The text is not a release record; the message is a sentence a person can act on."""


class ReleaseRecord(ContractModel):
    """``chat_template`` repeats the template's text so that a mismatch can show the first differing character; it is
    checked against the manifest's digest when the record is read. ``review`` says against which release this one was reviewed."""

    version: Literal["pratique.dev/record/v1"] = RECORD_VERSION
    manifest: ReleaseManifest
    golden: GoldenRecord = GoldenRecord()
    chat_template: str | None = None
    review: Review | None = None

    @model_validator(mode="after")
    def _template_is_the_manifests(self) -> Self:
        if self.chat_template is not None:
            digest = digest_bytes(self.chat_template.encode())
            if digest != self.manifest.chat_template.sha256:
                raise ValueError("chatTemplate is not the text that manifest.chatTemplate.sha256 names")
        return self

    @model_validator(mode="after")
    def _review_is_of_this_release(self) -> Self:
        if self.review is not None and self.review.candidate != self.manifest.fingerprint:
            raise ValueError("review.candidate is not this release's fingerprint")
        return self

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    def find_gaps(self) -> tuple[str, ...]:
        """What keeps it from proving this release, as sentences' ends; empty when it is strong enough. Outputs of other builds and dtypes
        may stand beside this release's own, and allow more: alone they would prove less than it claims."""
        dtype, build = self.manifest.quantization.dtype, self.manifest.engine.build
        foreign = [
            case.name
            for case in self.golden.cases
            if not any((output.dtype, output.engine_build) == (dtype, build) for output in case.outputs)
        ]
        gap = f"its case {foreign[0]} has no output of its own build in {dtype}" if foreign else None
        return (*find_gaps(self.golden), *([gap] if gap is not None else []))

    def to_json(self) -> str:
        """Canonical JSON text: the same record is the same bytes on every machine. Raises ``RecordError`` when it would
        not fit a ConfigMap: found here, where it can still be cut, and not by the API server."""
        encoded = canonical_json(self.to_json_value())
        _require_size(len(encoded))
        return encoded.decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a record; raises ``RecordError`` with the first wrong field named."""
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        _require_size(len(data))
        try:
            value: Any = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        except JSON_ERRORS as error:
            raise RecordError(f"The release record is not JSON: {error}") from error
        try:
            record = cls.from_json_value(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "record"
            raise RecordError(f"The release record is not valid at {field}: {first['msg']}") from error
        try:
            # All of it, not the manifest alone: whoever holds the record will write or compare any part of it.
            # What it meets: 1e400, a number beyond 2⁵³, half a surrogate pair, a very deep list.
            encoded = canonical_json(record.to_json_value())
        except JSON_ERRORS as error:
            raise RecordError(f"The release record holds a value that no canonical JSON has: {error}") from error
        _require_size(len(encoded))  # a text without what has a default is shorter than what is written of it
        return record


def _require_size(size: int) -> None:
    if size > RECORD_BYTES_MAX:
        raise RecordError(
            f"The release record has {size} bytes; a ConfigMap leaves room for {RECORD_BYTES_MAX}: record fewer or shorter cases"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key given twice is one value to the person who approved the record and another to the pod that reads it."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError(f"the key {find_repeated(name for name, _ in pairs)!r} is given twice in one object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
