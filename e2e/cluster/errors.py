"""Errors of the cluster tool.

ClusterError            something in the world is not as needed; the message says what to do (exit 1)
├── CommandError        a program exited with an error; carries the log's path and tail
└── PrivilegeError      a person with more rights has to run a command first (exit 2)
"""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Printed without a traceback."""

    exit_code = 1


class PrivilegeError(ClusterError):
    """Only a person with more rights can go on; the message holds the command."""

    exit_code = 2


class CommandError(ClusterError):
    """A program failed; `tail` is the end of what it printed."""

    def __init__(self, *, command: str, code: int, log: Path | None, tail: str) -> None:
        where = f"\nfull log: {log}" if log else ""
        super().__init__(f"{command} exited with {code}\n{tail.rstrip()}{where}")
        self.code = code
