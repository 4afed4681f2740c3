"""What all tests have in common: a lock of their own, so that the runs of several test processes do not refuse each
other, and a place of their own for logs that are kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

os.environ["MIXMARK_LOCK"] = str(Path(tempfile.gettempdir()) / f"mixmark-tests-{os.getpid()}.lock")
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / f"mixmark-tests-{os.getpid()}.state")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: a test process that is left alone with one of them at the end would wait."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
