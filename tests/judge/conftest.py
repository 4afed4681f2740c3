from __future__ import annotations

import pytest

from mixmark.harness.plan import mixes
from tests.fakes.machine import EDGE


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mix of the fake machine counts as a published one."""
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
