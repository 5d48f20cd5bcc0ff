"""When a write is skipped: the observed object already holds the intent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_operator.apply import contains
from pratique_operator.schema import quantity_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_everything_contains_itself(value: Any) -> None:
    assert contains(value, value)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.text(min_size=4, max_size=6), JSON)
def test_fields_added_by_the_server_do_not_count(value: dict[str, Any], key: str, added: Any) -> None:
    assert contains({**value, key: added}, value)


@pytest.mark.parametrize(
    ("observed", "intent"),
    [
        ({}, {"a": None}),
        ({"a": 1}, {"a": 2}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": "x"}, {"a": {"b": 1}}),
        (None, {"a": 1}),
        ({"memory": "1Gi"}, {"memory": "2Gi"}),
        ({"a": "yes"}, {"a": "no"}),
    ],
)
def test_difference_is_seen(observed: Any, intent: Any) -> None:
    assert not contains(observed, intent)


@pytest.mark.parametrize(
    ("written", "stored"), [("1000m", "1"), ("1024Mi", "1Gi"), ("0.5", "500m"), ("1e3", "1k"), ("2Gi", "2Gi")]
)
def test_quantities_compare_by_value(written: str, stored: str) -> None:
    assert contains({"cpu": stored}, {"cpu": written})


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2Gi", 2**31), ("3", 3), ("1.5k", 1500), ("x", None), ("", None)]
)
def test_quantity_values(text: str, value: float | None) -> None:
    assert quantity_value(text) == value
