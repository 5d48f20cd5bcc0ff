"""Numbers that others wrote."""

import pytest

from pratique_server.fetch.numbers import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("00000012", 12),
        ("", None),
        ("²", None),
        ("٣", None),
        ("-1", None),
        ("1_0", None),
        (" 1", None),
        ("9" * 20, None),
        ("9" * 5000, None),
    ],
)
def test_only_what_is_a_size_is_a_number(text: str, number: int | None) -> None:
    """``"²".isdigit()`` holds and ``int("²")`` fails; so does ``int`` of some thousand digits."""
    assert whole_number(text) == number
