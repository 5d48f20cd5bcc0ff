"""No skip is silent: however a test skips, its run fails and says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPING = {
    "in_a_test": "import pytest\n\ndef test_it():\n    pytest.skip('no cluster here')\n",
    "by_a_mark": "import pytest\n\n@pytest.mark.skip(reason='no cluster here')\ndef test_it():\n    pass\n",
    "of_a_file": "import pytest\n\npytest.skip('no cluster here', allow_module_level=True)\n",
}


def run(folder: Path, name: str, text: str) -> "subprocess.CompletedProcess[str]":
    hooks = "from tests.support.no_skips import pytest_make_collect_report, pytest_runtest_makereport\n"
    (folder / "conftest.py").write_text(hooks)
    (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", SKIPPING)
def test_a_skip_fails_the_run_and_says_why(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, name, SKIPPING[name])
    assert done.returncode not in (0, 5), done.stdout
    assert "no cluster here. No test may skip" in done.stdout


def test_every_suite_has_the_hooks() -> None:
    for conftest in ("tests/conftest.py", "e2e/conftest.py"):
        assert "from tests.support.no_skips import" in (ROOT / conftest).read_text()
