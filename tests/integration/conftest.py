"""The order of the suite: what takes long is started first, so that no worker is left alone with it at the end."""

from typing import Final

import pytest

# By measured time. Files that are not named follow in their usual order.
LONG_FILES: Final = (
    # with an engine
    "test_api_real_engine.py",
    "test_review.py",
    "test_engine_process.py",
    "test_gate_real_server.py",
    # without
    "test_ownership.py",
    "test_rollout.py",
    "test_steadiness.py",
    "test_told.py",
    "test_crashes.py",
    "test_trust.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return LONG_FILES.index(item.path.name) if item.path.name in LONG_FILES else len(LONG_FILES)

    items.sort(key=rank)
