"""Where the sockets between the two processes lie."""

import sys
import tempfile
from pathlib import Path

import pytest

from pratique_contract.serving import ModelSource, ServingSpec
from pratique_server.engine import launcher
from pratique_server.engine.launcher import launch_core, make_private_directory
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


SPEC = ServingSpec(served_model_name="tiny", model=ModelSource(path="unused", uri="file://unused"))


async def test_no_temporary_folder_at_all_is_the_engines_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A read-only root, or a full /tmp: a verdict says so, where a traceback would only end the container again and again."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    monkeypatch.setattr(launcher, "SHORT_FOLDERS", (tmp_path / "absent",))
    with pytest.raises(EngineDeadError, match="no folder for its sockets"):
        await launch_core(SPEC, epoch=1)


async def test_a_process_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        monkeypatch.setattr(launcher, "temporary_folder", lambda: (Path(parent),))
        with pytest.raises(EngineDeadError, match="its process cannot be started"):
            await launch_core(SPEC, epoch=1)
        assert list(Path(parent).iterdir()) == []
