"""Fixtures every suite shares: the two models, built once and cached by content."""

import os
from pathlib import Path

import pytest

from tests.support import models

# Before anything imports torch: its threads spin while they wait, and on a busy machine a test of 0.1 s takes 10 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    return models.tiny_model()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    return models.smollm2()
