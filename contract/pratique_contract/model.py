"""The base of every pydantic model that crosses a boundary: frozen, camelCase in JSON, unknown fields refused."""

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast
from pydantic.alias_generators import to_camel

_T = TypeVar("_T")

# A list in a document that others wrote: its first wrong item ends the reading. All errors of two hundred thousand take seconds.
Several = Annotated[tuple[_T, ...], FailFast()]


class ContractModel(BaseModel):
    """Frozen value with camelCase JSON names. An unknown field is an error: a field that one side sends and the other
    ignores is exactly the kind of silent disagreement this project exists to refuse."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        ser_json_inf_nan="constants",
        protected_namespaces=(),
    )

    def to_json_value(self) -> dict[str, Any]:
        """Return the value as plain JSON types under its camelCase names, every field present."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_json_value(cls, value: Any) -> Self:
        """Parse plain JSON types; raises ``pydantic.ValidationError`` naming each wrong field."""
        return cls.model_validate(value)
