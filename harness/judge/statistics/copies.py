"""Copies: series of timestamps or samples with the same steps. No two windows of a machine have the same steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mixmark.harness.judge.statistics.timestamps import Floats

Holder = TypeVar("Holder")
BILLION = 1_000_000_000
ALIKE = 1_000  # billionths by which a step of a copy may differ: a microsecond, a microjoule or a microwatt
DIFFERENT_STEPS = 16  # which two series do not share by chance
FIRST_STEPS = 64 * DIFFERENT_STEPS  # of each series are compared


def fingerprint(values: npt.NDArray[Any]) -> Floats | None:
    """[steps], the first steps between values, which a shift of all values does not change: the nanoseconds between
    timestamps, which are integers, or billionths of the unit of samples. None if too few steps differ to tell."""
    steps = np.diff(values[: FIRST_STEPS + 1]) * (1 if np.issubdtype(values.dtype, np.integer) else BILLION)
    return steps.astype(np.float64) if len(np.unique(steps // ALIKE)) >= DIFFERENT_STEPS else None


def copies(series: Iterable[tuple[Holder, Floats]]) -> Iterator[tuple[Holder, Holder]]:
    """The holders (earlier, later) of each two fingerprints whose steps are alike, as far as the shorter one goes."""
    known: dict[float, list[tuple[Holder, Floats]]] = defaultdict(list)
    for holder, steps in series:
        place = float(steps[0] // ALIKE)
        for earlier, others in (each for near in (-1, 0, 1) for each in known.get(place + near, ())):
            length = min(len(steps), len(others))
            if (np.abs(steps[:length] - others[:length]) <= ALIKE).all():
                yield earlier, holder
        known[place].append((holder, steps))
