"""Variables a user may not set: with them, code from a volume would run in the server before its gate does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pratique_operator.api.pod_types import RESERVED_ENV

PAYLOAD = "import sys; print('another program ran'); sys.stdout.flush()"
# Those of Python's own that name a folder or file; `python --help-env` lists all.
FOLDERS = ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX")


def runs_code(variable: str, folder: Path) -> bool:
    """Whether Python, started on some module as a pod starts it, runs what lies in the folder."""
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    for place in (folder, site):
        for name in ("usercustomize.py", "sitecustomize.py"):
            (place / name).write_text(PAYLOAD)
    # The interpreter outside any virtual environment, as in the image: within one there is no folder of the user's.
    command = [str(Path(sys.base_prefix) / "bin" / "python3"), "-m", "this"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", variable: str(folder)}
    output = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=True).stdout
    return "another program ran" in output


@pytest.mark.timeout(20)
@pytest.mark.parametrize("variable", FOLDERS)
def test_a_variable_that_makes_python_run_other_code_is_reserved(variable: str, tmp_path: Path) -> None:
    assert not runs_code(variable, tmp_path) or variable in RESERVED_ENV
