from __future__ import annotations

from collections.abc import Iterator, Mapping

from mixmark.harness.contracts.schema import Result
from tests.capabilities.ladder.test_levels import LEVELS, level_of, with_ladder
from tests.fakes.machine import one_run


def ladder() -> Result:
    """The mix at three levels."""
    base = one_run(600.0)
    return with_ladder(base, *(level_of(base, level) for level in LEVELS))


def made() -> Mapping[str, Result]:
    return {"ladder": ladder()}


def reports() -> Iterator[tuple[str, Result]]:
    yield "load", ladder()
