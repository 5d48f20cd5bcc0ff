"""Parts cover a file without gap; what an earlier attempt wrote down is believed only where it fits."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pratique_server.fetch.parts import PARTS_MAX, Part, load_parts, plan_parts, save_parts


@given(size=st.integers(0, 10**13), part_bytes=st.integers(1, 10**9))
def test_parts_cover_the_file_in_order_and_are_not_too_many(size: int, part_bytes: int) -> None:
    parts = plan_parts(size, part_bytes=part_bytes)
    assert parts[0].start == 0
    assert parts[-1].end == size
    assert all(one.end == other.start for one, other in itertools.pairwise(parts))
    assert len(parts) <= PARTS_MAX
    assert all(part.missing or size == 0 for part in parts)


def test_a_file_of_unknown_size_is_one_part_without_end() -> None:
    assert plan_parts(None) == [Part(0, None)]


def write(tmp_path: Path, size: int, parts: list[Part]) -> tuple[Path, Path]:
    state, data = tmp_path / "state.json", tmp_path / "data"
    data.write_bytes(bytes(size))
    save_parts(state, version="v1", size=size, parts=parts)
    return state, data


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    parts = [Part(0, 50, 50), Part(50, 100, 7)]
    state, data = write(tmp_path, 100, parts)
    assert load_parts(state, version="v1", size=100, data=data) == parts


def test_another_version_or_size_is_not_continued(tmp_path: Path) -> None:
    state, data = write(tmp_path, 100, [Part(0, 100, 7)])
    assert load_parts(state, version="v2", size=100, data=data) is None
    assert load_parts(state, version="v1", size=99, data=data) is None


def test_bytes_that_are_not_on_the_disk_are_not_believed(tmp_path: Path) -> None:
    """A node that lost power may have kept the state and not the data."""
    state, data = write(tmp_path, 100, [Part(0, 100, 90)])
    data.write_bytes(bytes(10))
    assert load_parts(state, version="v1", size=100, data=data) is None


@pytest.mark.parametrize(
    "parts",
    [[[0, 50, 0]], [[0, 50, 0], [60, 100, 0]], [[0, 100, 101]], [[0, 100, -1]], [[0, None, 0]], [["0", 100, 0]], [], 7],
)
def test_a_state_that_makes_no_sense_is_not_believed(tmp_path: Path, parts: Any) -> None:
    state, data = write(tmp_path, 100, [Part(0, 100)])
    state.write_text(json.dumps({"version": "v1", "size": 100, "parts": parts}))
    assert load_parts(state, version="v1", size=100, data=data) is None
