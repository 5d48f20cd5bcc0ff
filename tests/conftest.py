"""Fixtures every suite shares: the two models, built once and cached by content."""

from pathlib import Path

import pytest

from tests.support import models


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    return models.tiny_model()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    return models.smollm2()
