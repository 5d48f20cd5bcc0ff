"""The servers that a review starts end with it, however it ends."""

import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import sys, time
from pratique_cli.review.serving import start_tied
child = start_tied(["-c", "import time; print('up', flush=True); time.sleep(60)"], sys.stdout.buffer)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_review_leaves_no_server_behind() -> None:
    """A test of ours was once ended by its timeout, and two servers went on for half an hour."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    assert "up" in lines
    child = int((lines - {"up"}).pop())
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < end, "the server outlived the review"
        time.sleep(0.02)
    parent.stdout.close()


def _runs(pid: int) -> bool:
    """A zombie that nobody reaps has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
