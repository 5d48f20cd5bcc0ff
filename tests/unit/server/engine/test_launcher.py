"""Where the sockets between the two processes lie."""

from pathlib import Path

import pytest

from pratique_server.engine.launcher import make_private_directory
from pratique_server.engine.protocol import EngineDeadError


def test_sockets_move_to_a_short_folder_when_the_temporary_one_is_too_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    made = make_private_directory((deep, Path("/tmp")))
    try:
        assert made.parent == Path("/tmp")
        assert made.stat().st_mode & 0o777 == 0o700
        assert list(deep.iterdir()) == []
    finally:
        made.rmdir()


def test_no_usable_folder_is_said_with_each_cause(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with pytest.raises(EngineDeadError, match=r"too long a path.*absent: No such file"):
        make_private_directory((deep, tmp_path / "absent"))
