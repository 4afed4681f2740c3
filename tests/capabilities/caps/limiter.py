"""A limiter of another package. It reports its process."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mixmark.harness.capabilities.caps.facts import PowerLimit

PID = str(os.getpid())


class Limiter:
    name = "limiter"

    def limits(self, devices: Iterable[str]) -> Iterable[PowerLimit]:
        return [PowerLimit(id=f"limiter/{PID}", watts=100)]

    def read(self, id: str) -> float:
        return 100.0

    def write(self, id: str, watts: float) -> None:
        raise OSError(PID)
