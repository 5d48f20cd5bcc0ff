"""Variables a user may not set: with them, code from a volume would run in the server before its gate does."""

import os
import py_compile
import subprocess
import sys
import this
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
    prepared = folder / this.__file__.lstrip("/")
    prepared.parent.mkdir(parents=True)
    cached = prepared.with_name(f"this.{sys.implementation.cache_tag}.pyc")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(site / "sitecustomize.py"), str(cached), invalidation_mode=mode)
    # The interpreter outside any virtual environment, as in the image: within one there is no folder of the user's.
    command = [str(Path(sys.base_prefix) / "bin" / "python3"), "-m", "this"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", variable: str(folder)}
    output = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=True).stdout
    return "another program ran" in output


@pytest.mark.timeout(20)
@pytest.mark.parametrize("variable", FOLDERS)
def test_a_variable_that_makes_python_run_other_code_is_reserved(variable: str, tmp_path: Path) -> None:
    assert not runs_code(variable, tmp_path) or variable in RESERVED_ENV


def test_probe_runs_the_images_python_whatever_a_volume_holds(tmp_path: Path) -> None:
    """Probes name their program without a folder, as an image of the user's may its own: PATH says which one it is."""
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho another program ran\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["/usr/bin/env", "python3", "-c", ""]
    output = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=True).stdout
    assert "another program ran" not in output or "PATH" in RESERVED_ENV


def test_variables_by_which_openssl_loads_other_code_are_reserved(tmp_path: Path) -> None:
    """Its configuration names libraries, which run in whatever imports ``ssl``."""
    settings = tmp_path / "openssl.cnf"
    library = tmp_path / "other.so"
    settings.write_text(
        f"openssl_conf = first\n[first]\nproviders = all\n[all]\nother = other\n[other]\nmodule = {library}\nactivate = 1\n"
    )
    library.write_bytes(b"")
    # The loader says what it opens.
    environment = {"PATH": os.environ["PATH"], "LD_DEBUG": "files", "OPENSSL_CONF": str(settings)}
    command = [sys.executable, "-c", "import ssl"]
    told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=False).stderr
    assert f"file={library}" in told  # else this proves nothing
    assert {"OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES"} <= set(RESERVED_ENV)
