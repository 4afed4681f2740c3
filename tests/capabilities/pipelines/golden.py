from __future__ import annotations

from collections.abc import Mapping

from mixmark.harness.contracts.schema import Result
from tests.capabilities.pipelines.test_figures import both, result


def reported() -> Mapping[str, Result]:
    return {"pipeline": result(*both())}
