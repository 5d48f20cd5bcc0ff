"""Compare two manifests part by part. Pure: digests decide, fields explain."""

from typing import Any, Final

from pratique_contract.manifest import PARTS, ReleaseManifest
from pratique_contract.model import ContractModel
from pratique_contract.reasons import PART_REASONS, Reason

FIELD_DIFFERENCES_MAX: Final = 20


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


class FieldDifference(ContractModel):
    """One differing field: its path inside the part (``files[model.safetensors].sha256``) and both values as text."""

    path: str
    expected: str
    observed: str


class PartDifference(ContractModel):
    """One differing part with its reason, both digests and the first differing fields."""

    part: str
    reason: Reason
    expected: str
    observed: str
    fields: tuple[FieldDifference, ...]

    @property
    def message(self) -> str:
        """One sentence naming the part and its first difference."""
        if not self.fields:
            return f"{self.part}: {self.expected} was approved, {self.observed} is loaded"
        first = self.fields[0]
        more = f" (and {len(self.fields) - 1} more)" if len(self.fields) > 1 else ""
        sentence = f"{self.part}.{first.path}: {first.expected} was approved, {first.observed} is loaded{more}"
        if (self.part, first.path) == ("engine", "build"):
            return f"{sentence}; the record was made with another version of the server than the pod runs"
        return sentence


def compare_manifests(
    expected: ReleaseManifest, observed: ReleaseManifest, *, fields_max: int | None = FIELD_DIFFERENCES_MAX
) -> tuple[PartDifference, ...]:
    """Return the differing parts in ``PARTS`` order; empty when the fingerprints are equal. A part names its first ``fields_max``
    differing fields, all of them with None."""
    expected_value, observed_value = expected.to_json_value(), observed.to_json_value()
    return tuple(
        PartDifference(
            part=part,
            reason=PART_REASONS[part],
            expected=expected.digests[part],
            observed=observed.digests[part],
            fields=tuple(_field_differences(expected_value[part], observed_value[part]))[:fields_max],
        )
        for part in PARTS
        if expected.digests[part] != observed.digests[part]
    )


def _field_differences(expected: Any, observed: Any, path: str = "") -> list[FieldDifference]:
    if isinstance(expected, dict) and isinstance(observed, dict):
        # Files first: of all that a changed file moves, its name is what a person looks for.
        keys = sorted({*expected, *observed}, key=lambda key: (key != "files", key))
        return [
            difference
            for key in keys
            for difference in _field_differences(
                expected.get(key, ABSENT), observed.get(key, ABSENT), f"{path}.{key}" if path else str(key)
            )
        ]
    if isinstance(expected, list) and isinstance(observed, list):
        return _list_differences(expected, observed, path)
    if type(expected) is type(observed) and expected == observed:
        return []
    return [FieldDifference(path=path, expected=_as_text(expected), observed=_as_text(observed))]


def _list_differences(expected: list[Any], observed: list[Any], path: str) -> list[FieldDifference]:
    """Lists of named things (files, adapters) are matched by name, so that one added file is one difference."""
    key = _list_key(expected + observed)
    if key is not None:
        return [
            difference
            for name in sorted({item[key] for item in expected + observed})
            for difference in _field_differences(
                next((item for item in expected if item[key] == name), ABSENT),
                next((item for item in observed if item[key] == name), ABSENT),
                f"{path}[{name}]",
            )
        ] or _order_difference(expected, observed, path)
    if all(isinstance(item, str) for item in expected + observed):
        gone, new = sorted(set(expected) - set(observed)), sorted(set(observed) - set(expected))
        return [FieldDifference(path=f"{path}[{name}]", expected="present", observed="absent") for name in gone] + [
            FieldDifference(path=f"{path}[{name}]", expected="absent", observed="present") for name in new
        ]
    if expected == observed:
        return []
    return [FieldDifference(path=path, expected=_as_text(expected), observed=_as_text(observed))]


def _order_difference(expected: list[Any], observed: list[Any], path: str) -> list[FieldDifference]:
    if expected == observed:
        return []
    return [FieldDifference(path=path, expected=_as_text(expected), observed=_as_text(observed))]


def _list_key(items: list[Any]) -> str | None:
    for key in ("path", "name"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None


def _as_text(value: Any) -> str:
    if value is None:
        return "nothing"  # "None" is a quantization method
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
