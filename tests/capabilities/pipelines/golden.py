from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.contracts.schema import Result
from tests.capabilities.pipelines.test_figures import both, result


def reports() -> Iterator[tuple[str, Result]]:
    yield "pipeline", result(*both())
