"""A test that skips itself proves nothing and looks green, so here it fails, in CI as on a desk. Imported by the suites' conftests."""

from collections.abc import Generator

import pytest


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{why}. No test may skip: what it needs has to be there, or the run has failed."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip inside a test or a fixture, and a skip mark."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A skip of a whole file: ``importorskip``, ``skip(allow_module_level=True)``."""
    report = yield
    _refuse(report)
    return report
