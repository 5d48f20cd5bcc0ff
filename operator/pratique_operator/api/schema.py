"""Small vocabulary for the API types: strings with limits, CEL rules, quantities.

Every string and list in the CRD has a limit, because the API server prices a CEL rule by the largest value it could meet.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

VALIDATIONS: Final = "x-kubernetes-validations"

QUANTITY_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def cel(rule: str, message: str, **more: str) -> dict[str, str]:
    """One CEL rule as the CRD holds it."""
    return {"rule": rule, "message": message, **more}


def rules(*validations: dict[str, str]) -> dict[str, Any]:
    """``json_schema_extra`` that carries CEL rules."""
    return {VALIDATIONS: list(validations)}


@dataclass(frozen=True)
class Shape:
    """How a text must look, with the sentence for one that does not: the API server would show a bare regular expression."""

    pattern: str
    sentence: str
    max_length: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.str_schema(pattern=self.pattern, min_length=1, max_length=self.max_length)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        rule = cel(f"self.matches({self.pattern!r})", self.sentence)
        return {"type": "string", "maxLength": self.max_length, **rules(rule)}


ObjectName = Annotated[
    str,
    Shape(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "an object's name has lower-case letters, digits, - and . only", 253),
]
DataKey = Annotated[str, Shape(r"^[-._a-zA-Z0-9]+$", "a key has letters, digits, -, _ and . only", 253)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=512)]


def _to_quantity(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# An object of the core API that the operator hands on as it is; the API server checks it when the Deployment is applied.
PassThrough = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]

_FACTORS: Final[dict[str, float]] = {
    "": 1,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
    **{s: 10 ** (3 * (i + 1)) for i, s in enumerate(["k", "M", "G", "T", "P", "E"])},
    **{s: 2 ** (10 * (i + 1)) for i, s in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])},
}
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})")


def quantity_value(text: str) -> float | None:
    """The number a quantity stands for (``500m`` → 0.5, ``2Gi`` → 2147483648), or None when it is not a quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _FACTORS:
        return None
    try:
        return float(match[1]) * _FACTORS[match[2]]
    except ValueError:
        return None


def _require_size(text: str) -> str:
    value = quantity_value(text)
    if value is None or not 1 <= value < SIZE_MAX_BYTES:
        raise ValueError(f"{text} is no size: {_SIZE_SENTENCE}")
    return text


def _quantity_schema(rule: str, sentence: str) -> WithJsonSchema:
    return WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 64, **rules(cel(rule, sentence))})


SIZE_MAX_BYTES: Final = 1e18
_SIZE_SENTENCE: Final = "a size is a number of bytes of at least 1, or a text such as 512Mi or 20Gi"
_QUANTITY_TEXT = StringConstraints(pattern=QUANTITY_PATTERN, max_length=64)

# A number or a string such as 500m or 2Gi, exactly as Kubernetes takes it.
Quantity = Annotated[
    str,
    BeforeValidator(_to_quantity),
    _QUANTITY_TEXT,
    _quantity_schema(
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
        "a quantity is a number of at least 0, or a text such as 500m or 2Gi",
    ),
]
# An amount of memory or disk that has to hold something.
Size = Annotated[
    str,
    BeforeValidator(_to_quantity),
    _QUANTITY_TEXT,
    AfterValidator(_require_size),
    _quantity_schema(
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('1'))"
        " && quantity(string(self)).isLessThan(quantity('1E'))",
        _SIZE_SENTENCE,
    ),
]

INTEGER_MAX: Final = 2**31 - 1
PositiveInt = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
