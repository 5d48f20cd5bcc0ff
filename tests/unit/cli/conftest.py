"""Runs the command line as a person does, in this process: arguments in, exit code and both streams out."""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pratique_cli.__main__ import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def pratique(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    handlers, level = logging.root.handlers[:], logging.root.level

    def run(*arguments: object, program: str = "pratique") -> Result:
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        assert isinstance(code, int | None)
        return Result(code=code or 0, out=captured.out, err=captured.err)

    yield run
    # A command configures the logs of its process: later tests would write into this test's closed stream.
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
