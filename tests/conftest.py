"""Fixtures every suite shares: the two models, built once and cached by content."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import models
from tests.support.no_skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

# Before anything imports torch: its threads spin while they wait, and on a busy machine a test of 0.1 s takes 10 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long one example takes says how busy the machine is; pytest's own timeout is what ends a test that hangs.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# Until all tests are collected: see ``pratique_server.imports``. It is half of what a worker costs before its first test.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    return models.tiny_model()
