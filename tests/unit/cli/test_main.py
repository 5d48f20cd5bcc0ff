"""The entry point: quick, quiet about tracebacks, and at home in kubectl."""

import subprocess
import sys
import time

from tests.unit.cli.conftest import Run

HEAVY = ("torch", "transformers", "kopf", "kubernetes", "pydantic", "yaml", "rich", "httpx")


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
sys.argv = ["pratique", "--help"]
from pratique_cli.__main__ import main
try:
    main()
except SystemExit:
    pass
print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
    assert "release" in result.stdout


def test_help_is_quick() -> None:
    """The budget is 0.3 s of processor time; the clock on the wall depends on who else runs."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "pratique_cli", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert min(spent, time.monotonic() - started) < 0.3


def test_kubectl_shows_its_own_name(pratique: Run) -> None:
    assert "Usage: kubectl pratique" in pratique("--help", program="/usr/local/bin/kubectl-pratique").out
    assert "Usage: pratique" in pratique("--help").out


def test_an_installation_without_the_cli_extra_says_what_to_install() -> None:
    program = """
import sys
sys.modules["typer"] = None
from pratique_cli.__main__ import main
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.strip().endswith("pip install 'pratique[cli]'")
    assert "Traceback" not in result.stderr


def test_a_closed_reader_is_no_error() -> None:
    command = f"{sys.executable} -m pratique_cli --help | true"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
