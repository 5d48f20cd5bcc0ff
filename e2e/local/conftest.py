"""Whole programs as people and pods start them, and the real model: on this machine, without the cluster.

What starts a program of ours or needs SmolLM2 is here; the integration suite runs the code in its own process, against real peers.
"""

import os
from pathlib import Path

import pytest

from tests.integration.server.fetch.conftest import place
from tests.support import models
from tests.unit.cli.conftest import pratique

__all__ = ["place", "pratique"]  # fixtures

# Before anything imports torch: its threads spin while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    return models.tiny_model()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    return models.smollm2()
