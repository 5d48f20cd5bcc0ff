"""The entry point: quick, quiet about tracebacks, and at home in kubectl."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

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


def test_a_cluster_that_does_not_answer_is_named_with_the_cause(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    # In a process of its own: the client reads the variable when it is imported.
    run = subprocess.run(
        [sys.executable, "-m", "pratique_cli", "status", "smollm2", "-n", "demo"],
        capture_output=True,
        text=True,
        env={"PATH": os.defpath, "KUBECONFIG": str(kubeconfig)},
    )
    assert run.returncode == 3
    assert "The cluster at https://127.0.0.1:1 does not answer: " in run.stderr
    assert run.stderr.strip().endswith("Connection refused")
