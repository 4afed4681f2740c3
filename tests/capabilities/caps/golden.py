from __future__ import annotations

from collections.abc import Iterator, Mapping

from mixmark.harness.contracts.schema import Result
from tests.capabilities.caps.test_frontier import capped
from tests.fakes.machine import one_run


def made() -> Mapping[str, Result]:
    return {"caps": capped(one_run(600.0), (0.8, 0.9, 400), (0.6, 0.5, 380))}


def reports() -> Iterator[tuple[str, Result]]:
    yield "caps", capped(one_run(600.0), (0.8, 1.0, 600), (0.6, 0.9, 400))
