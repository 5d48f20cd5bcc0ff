"""Two people who record the same files, far apart, get the same bytes: no home, folder, clock, language or hash seed gets in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pratique_contract.record import ReleaseRecord
from tests.support.adapters import make_adapter
from tests.support.mutations import copy_of

ROOT = Path(__file__).parents[3]


def start(place: Path, model: Path, **environment: str) -> "subprocess.Popen[bytes]":
    """Record a copy of the model in a process that shares nothing with this one but the interpreter and the code."""
    home, temporary, cwd = (place / name for name in ("home", "tmp", "cwd"))
    for folder in (home, temporary, cwd):
        folder.mkdir(parents=True)
    copy = copy_of(model, place / "models" / place.name)
    adapter = make_adapter(place / "adapters" / "a", model, targets=["q_proj"])
    command = [
        sys.executable, "-m", "pratique_cli", "release", "record", "--model", str(copy), "--adapter", f"a={adapter}",
        "--quantization", "Int8WeightOnly", "--output", str(place / "record.json"),
    ]  # fmt: skip
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=cwd, env={**given, **environment}, stderr=subprocess.PIPE)


@pytest.mark.timeout(180)
def test_two_records_made_apart_are_byte_identical(tiny_model_dir: Path, tmp_path: Path) -> None:
    processes = [
        start(tmp_path / "genoa", tiny_model_dir, PYTHONHASHSEED="0", LC_ALL="C.UTF-8", TZ="UTC"),
        start(
            tmp_path / "a far harbour", tiny_model_dir, PYTHONHASHSEED="4242", LC_ALL="C", LANG="tr_TR.UTF-8",
            TZ="Pacific/Kiritimati", PYTHONDONTWRITEBYTECODE="1", COLUMNS="40",
        ),
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=170)
        assert process.returncode == 0, errors.decode()
    first, second = (tmp_path / name / "record.json" for name in ("genoa", "a far harbour"))
    assert first.read_bytes() == second.read_bytes()
    record = ReleaseRecord.from_json(first.read_bytes())
    assert record.golden.cases
    assert [adapter.name for adapter in record.manifest.adapters.adapters] == ["a"]
    assert str(tmp_path).encode() not in first.read_bytes()
    # Nothing was left behind in a home: the next run finds what this one found.
    assert [list((tmp_path / name / "home").iterdir()) for name in ("genoa", "a far harbour")] == [[], []]
