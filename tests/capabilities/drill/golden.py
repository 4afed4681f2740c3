from __future__ import annotations

from collections.abc import Mapping

from mixmark.harness.contracts.schema import Result
from tests.capabilities.drill.test_drill import drilled, with_drill


def made() -> Mapping[str, Result]:
    return {"drill": with_drill(drilled())}
