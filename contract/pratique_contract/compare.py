"""Compare two manifests part by part, and what two records of one release prove. Pure: digests decide, fields explain."""

import re
from collections.abc import Sequence
from typing import Any, Final

from pratique_contract.canonical import short_digest
from pratique_contract.golden import GoldenOutput, GoldenRecord
from pratique_contract.manifest import PARTS, ReleaseManifest
from pratique_contract.model import ContractModel
from pratique_contract.reasons import PART_REASONS, Reason

FIELD_DIFFERENCES_MAX: Final = 20


_CAUSES: Final = ("files", "method")


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
        """One sentence naming the part and its first difference; digests are shortened, ``fields`` has them whole."""
        if not self.fields:
            return f"{self.part}: {shorten(self.expected)} was recorded, {shorten(self.observed)} is loaded"
        if self.part == "engine":
            return _explain_engine(self, compiled=False)
        first, *others = self.fields
        return f"{self.part}.{first.path}: {_recorded_and_loaded(first)}{_also(others)}"


_LONG_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}")


def shorten(value: str) -> str:
    """A value for a sentence: of a digest its first digits."""
    return _LONG_DIGEST.sub(r"\1…", value)


def _recorded_and_loaded(field: "FieldDifference") -> str:
    words = {"absent": "nothing"}
    expected, observed = (words.get(value, shorten(value)) for value in (field.expected, field.observed))
    return f"{expected} was recorded, {observed} is loaded"


def _also(others: "Sequence[FieldDifference]") -> str:
    """What else moved, by name: often the digests that follow from the first."""
    if not others:
        return ""
    names = [field.path for field in others[:3]]
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f" (also {', '.join(names)}{more})"


def find_cause(differences: Sequence[PartDifference]) -> tuple[PartDifference, str]:
    """Of several differing parts the one to blame, with the sentence for it; ``differences`` is not empty.

    The first in order, but for one case: files that are the same bytes and yet came out as another tokenizer were read by another
    program. Then the engine is to blame: a library, or the server's own version.
    """
    first = differences[0]
    engine = next((difference for difference in differences if difference.part == "engine"), None)
    derived = first.part == "tokenizer" and all(field.path == "compiled" for field in first.fields)
    if engine is not None and engine.fields and derived:
        return engine, _explain_engine(engine, compiled=True)
    return first, first.message


def _explain_engine(engine: PartDifference, *, compiled: bool) -> str:
    """Name what a person changed: the library, not the digests that moved with it."""
    libraries = [field for field in engine.fields if field.path.startswith("libraries")]
    causes = libraries or [field for field in engine.fields if field.path == "build"] or list(engine.fields[:1])
    named = "; ".join(f"engine.{cause.path}: {_recorded_and_loaded(cause)}" for cause in causes[:3])
    more = _also([field for field in engine.fields if field not in causes[:3]])
    effect = ", which makes another tokenizer of the same files" if compiled else ""
    whose = (
        "; the record was made with another version of the server than the pod runs"
        if any(field.path == "build" for field in causes)
        else ""
    )
    return f"{named}{more}{effect}{whose}"


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


def compare_golden(expected: GoldenRecord, observed: GoldenRecord) -> tuple[FieldDifference, ...]:
    """How the proofs of two records differ. No fingerprint covers them: a record of the approved release whose cases somebody thinned
    out or rewrote has every digest right, and lets pods pass for less."""
    return tuple(_field_differences(_by_name(expected), _by_name(observed), "golden"))


def _by_name(golden: GoldenRecord) -> dict[str, Any]:
    """The golden record as a value in which the outputs of a case have names too, so that an added device is one difference."""
    value = golden.to_json_value()
    for case, shown in zip(golden.cases, value["cases"], strict=True):
        shown["outputs"] = [{"name": _name_output(o), **v} for o, v in zip(case.outputs, shown["outputs"], strict=True)]
    return value


def _name_output(output: GoldenOutput) -> str:
    return f"{output.dtype} {output.device_class} {short_digest(output.engine_build)}"


def _field_differences(expected: Any, observed: Any, path: str = "") -> list[FieldDifference]:
    if isinstance(expected, dict) and isinstance(observed, dict):
        # Causes first: of all that a changed file or another method moves, its name is what a person looks for.
        keys = sorted({*expected, *observed}, key=lambda key: (key not in _CAUSES, key))
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
    return [_difference(path, expected, observed)]


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
        found = [FieldDifference(path=f"{path}[{name}]", expected="present", observed="absent") for name in gone]
        found += [FieldDifference(path=f"{path}[{name}]", expected="absent", observed="present") for name in new]
        return found or _order_difference(expected, observed, path)
    return _order_difference(expected, observed, path)


def _order_difference(expected: list[Any], observed: list[Any], path: str) -> list[FieldDifference]:
    if expected == observed:
        return []
    return [_difference(path, expected, observed)]


def _difference(path: str, expected: Any, observed: Any) -> FieldDifference:
    """Both values as text; of long ones that look alike the place where they part, since their ends are cut off."""
    shown, other = _as_text(expected), _as_text(observed)
    if shown == other and type(expected) is type(observed) and isinstance(expected, str | list):
        index = next((i for i, (a, b) in enumerate(zip(expected, observed, strict=False)) if a != b), None)
        index = min(len(expected), len(observed)) if index is None else index
        path = f"{path}[{index}]"
        shown, other = (_as_text(value[index]) if index < len(value) else "absent" for value in (expected, observed))
    return FieldDifference(path=path, expected=shown, observed=other)


def _list_key(items: list[Any]) -> str | None:
    for key in ("path", "name"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None


def _as_text(value: Any) -> str:
    if value is None:
        return "nothing"  # "None" is a quantization method
    if isinstance(value, dict) and {"size", "sha256"} <= set(value):
        return f"{value['size']} bytes, {value['sha256']}"
    if isinstance(value, dict) and {"name", "revision"} <= set(value):
        return f"{value['name']} at {value['revision']}"
    if isinstance(value, dict) and "name" in value:
        return "present"
    if isinstance(value, list) and _list_key(value) is not None:
        return " before ".join(map(_as_text, value))  # the order is what differs, and matters
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
