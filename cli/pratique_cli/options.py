"""Options that several commands take: each group is declared once, as a frozen dataclass whose annotated fields are the options.

A command names the group as one parameter. typer reads a function's signature, so the signature is made of the group's fields; what was
typed arrives as one object.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, get_args, get_origin

Command = Callable[..., None]


def takes_options(group: type[Any], *names: str, prefixed: bool = False) -> Callable[[Command], Command]:
    """Replace each parameter ``<name>`` (a ``group``) by the options of the group's fields: ``--model``, or, ``prefixed``,
    ``--reference-model`` for the name ``reference``. A group with a field ``prefix`` is told its own (``reference-``)."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command)
        made = {name: _parameters(group, _prefix(name, prefixed)) for name in names}
        merged = [new for old in own.parameters.values() for new in made.get(old.name, [old])]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            groups = {name: _collect(group, _prefix(name, prefixed), values) for name in names}
            command(**values, **groups)

        # Every parameter goes by name, so that one without a default may follow one that has it.
        merged = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in merged]
        run.__signature__ = own.replace(parameters=merged)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
        return run

    return decorate


def option_names(group: type[Any]) -> list[str]:
    """The group's fields that are options."""
    return [field.name for field in _options(group)]


def _options(group: type[Any]) -> "list[Field[Any]]":
    return [field for field in fields(group) if get_origin(field.type) is Annotated]


def _parameters(group: type[Any], prefix: str) -> list[inspect.Parameter]:
    return [_parameter(field, f"{prefix}{field.name}") for field in _options(group)]


def _parameter(field: "Field[Any]", name: str) -> inspect.Parameter:
    assert field.default is not MISSING, "an option that must be given is no option"
    kind, declared = get_args(field.type)
    option = copy.copy(declared)
    option.param_decls = (f"--{name}".replace("_", "-"),)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[kind, option]
    )


def _collect(group: type[Any], prefix: str, values: dict[str, Any]) -> Any:
    given = {name: values.pop(f"{prefix}{name}") for name in option_names(group)}
    if any(field.name == "prefix" for field in fields(group)):
        given["prefix"] = prefix.replace("_", "-")
    return group(**given)


def _prefix(name: str, prefixed: bool) -> str:
    return f"{name}_" if prefixed else ""
