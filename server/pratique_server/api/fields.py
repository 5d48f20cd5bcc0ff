"""Readers for single request fields: one value in, the checked value out, or ``InvalidRequestError`` with ``param``. Messages
state what is allowed and never repeat what was sent."""

from collections.abc import Callable
from typing import Any, Final

from pratique_server.errors import InvalidRequestError

Reader = Callable[[str, Any], Any]

SEED_MIN: Final = -(2**63)
SEED_MAX: Final = 2**64 - 1


def fail(param: str, rule: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {rule}", param=param)


def boolean(param: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise fail(param, "must be true or false")
    return value


def text(*, length_max: int, empty: bool = False) -> Reader:
    def read(param: str, value: Any) -> str:
        if not isinstance(value, str):
            raise fail(param, "must be a string")
        if not value and not empty:
            raise fail(param, "must not be empty")
        if len(value) > length_max:
            raise fail(param, f"must have at most {length_max} characters")
        return value

    return read


def integer(low: int, high: int) -> Reader:
    def read(param: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise fail(param, "must be a whole number")
        if not low <= value <= high:
            raise fail(param, f"must be between {low} and {high}")
        return value

    return read


def number(low: float, high: float, *, above_low: bool = False) -> Reader:
    """A finite number in [low, high], or in (low, high] with ``above_low``."""

    def read(param: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise fail(param, "must be a number")
        if not low <= value <= high or (above_low and value <= low):
            raise fail(param, f"must be {'above' if above_low else 'at least'} {low:g} and at most {high:g}")
        return float(value)

    return read


def seed(param: str, value: Any) -> int:
    """Any signed or unsigned 64-bit number; negative ones are taken modulo 2⁶⁴."""
    return int(integer(SEED_MIN, SEED_MAX)(param, value)) % 2**64


def top_k(param: str, value: Any) -> int:
    """Both 0 and −1 switch it off."""
    return max(int(integer(-1, 2**31 - 1)(param, value)), 0)


def token_ids(*, vocab_size: int, count_max: int, empty: bool = True) -> Reader:
    def read(param: str, value: Any) -> list[int]:
        if not isinstance(value, list):
            raise fail(param, "must be a list of token ids")
        if not value and not empty:
            raise fail(param, "must not be empty")
        if len(value) > count_max:
            raise fail(param, f"must have at most {count_max} entries")
        if not all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocab_size for item in value):
            raise fail(param, f"must hold token ids between 0 and {vocab_size - 1}")
        return value

    return read


def stop_strings(*, count_max: int, length_max: int) -> Reader:
    entry = text(length_max=length_max)

    def read(param: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            return (entry(param, value),)
        if not isinstance(value, list):
            raise fail(param, "must be a string or a list of strings")
        if len(value) > count_max:
            raise fail(param, f"must have at most {count_max} entries")
        return tuple(entry(f"{param}[{index}]", item) for index, item in enumerate(value))

    return read


def logit_bias(*, vocab_size: int, count_max: int) -> Reader:
    bias = number(-100, 100)

    def read(param: str, value: Any) -> dict[int, float]:
        if not isinstance(value, dict):
            raise fail(param, "must map token ids to numbers")
        if len(value) > count_max:
            raise fail(param, f"must have at most {count_max} entries")
        return {_bias_id(param, key, vocab_size): bias(param, item) for key, item in value.items()}

    return read


def _bias_id(param: str, key: str, vocab_size: int) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
        raise fail(param, f"must have token ids between 0 and {vocab_size - 1} as keys")
    return int(key)
