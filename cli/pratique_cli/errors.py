"""What a command ends with. Exit codes are an interface: scripts branch on them.

0  done, and the answer is yes
1  done, and the answer is no: releases differ, a check failed, the service is not ready
2  wrong usage: an unknown option, a missing argument, options that exclude each other
3  could not be done: a file that is not there or not what it should be, a server that does not answer
4  (release review) a field cannot be compared: the release is not reproducible
5  (release review) a test was run and failed
130  interrupted by Ctrl-C
"""

from typing import Final

EXIT_OK: Final = 0
EXIT_NO: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 3
EXIT_NOT_REPRODUCIBLE: Final = 4
EXIT_FAILED_TEST: Final = 5
EXIT_INTERRUPTED: Final = 130


class CliError(Exception):
    """Ends the command with one sentence on the error stream."""

    def __init__(self, message: str, *, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


def missing_extra(extra: str, error: ImportError) -> CliError:
    """A command whose dependencies were left out of this installation."""
    return CliError(f"This command needs more than is installed ({error}): pip install 'pratique[{extra}]'")
