"""Canonical JSON: one value, one spelling."""

import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from pratique_contract.canonical import canonical_json, digest_json, is_digest, short_digest

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(min_value=-1e15, max_value=1e15)
    | st.text(st.characters(codec="utf-8"), max_size=12)
)
_KEYS = st.text(st.characters(codec="utf-8"), max_size=6)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


def _reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed_keys(value[key]) for key in reversed(list(value))}
    return [_reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(_VALUES)
def test_key_order_and_white_space_do_not_change_the_digest(value: Any) -> None:
    respelled = json.loads(json.dumps(_reversed_keys(value), indent=3, ensure_ascii=True))
    assert digest_json(respelled) == digest_json(value)


@given(_VALUES)
def test_canonical_form_is_its_own_canonical_form(value: Any) -> None:
    encoded = canonical_json(value)
    assert canonical_json(json.loads(encoded)) == encoded


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**53, -(2**53)])
def test_numbers_other_programs_would_read_differently_are_refused(value: float) -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        canonical_json({"limit": value})


def test_object_keys_are_sorted_by_utf16_code_units() -> None:
    # RFC 8785 section 3.2.3: U+1F600 (a surrogate pair) sorts before U+FB33, unlike sorting by code point.
    assert canonical_json({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


def test_digests_are_recognised_and_shortened() -> None:
    digest = digest_json({})
    assert is_digest(digest)
    assert short_digest(digest) == digest[7:19]
    assert not any(is_digest(text) for text in (digest[:-1], digest.upper(), f"{digest}\n", digest[7:]))
