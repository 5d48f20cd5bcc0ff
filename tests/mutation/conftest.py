"""The releases of the suite, made once, and the report: ``--mutation-report FOLDER`` writes ``mutation.json`` and ``mutation.md``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Nothing of the server here: a process that hands out tests reads this file too, and would import torch for nothing.
if TYPE_CHECKING:
    from tests.mutation.releases import Releases

PROPERTY = "mutation"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutation-report", type=Path, default=None, help="folder for mutation.json and mutation.md")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--mutation-report")
    if folder is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reporter(folder), "mutation-report")


class _Reporter:
    """Collects the rows of all workers, in the order in which the tests are listed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, dict[str, Any]] = {}
        self._begun = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, row in report.user_properties:
            if name == PROPERTY and row:
                self._rows[report.nodeid] = row  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        from tests.mutation.report import write_report

        rows = sorted(self._rows.values(), key=lambda row: row["number"])
        write_report(rows, self._folder, seconds=time.monotonic() - self._begun)


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> "Releases":
    from tests.mutation.releases import Releases

    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.fixture
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One row of the report; the test fills it with plain values."""
    value: dict[str, Any] = {}
    request.node.user_properties.append((PROPERTY, value))
    return value
