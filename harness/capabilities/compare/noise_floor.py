"""The noise floor of a machine: how far two measurements of the same thing differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from mixmark.harness.capabilities.compare.solo import label_of, measurements, value_of
from mixmark.harness.contracts.numbers import counted, percent
from mixmark.harness.contracts.protocols import Check
from mixmark.harness.contracts.schema import NoiseFloor
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.statistics.intervals import logarithms
from mixmark.harness.machine import noise_floor as stored

LEAST_PAIRS = 6
OLD_DAYS = 30  # updates of the system, dust and seasons change what a machine repeats


def noise_floor(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The noise floor from pairs of measurements of the same thing: the 95 % quantile of their relative difference.

    With up to 20 pairs it is the widest difference. None for fewer than six pairs: even their widest says little.
    """
    if len(pairs) < LEAST_PAIRS:
        return None
    apart = np.abs(np.diff(logarithms([value for pair in pairs for value in pair]).reshape(-1, 2)))
    return float(math.expm1(np.quantile(apart, 0.95, method="higher")))


def noise_floors(assessment: Assessment) -> dict[str, float | None]:
    """The noise floor of each solo measurement, by its label: runs 1 and 2 are a pair, runs 3 and 4 are, and so on."""
    found = {}
    for of_one in measurements([assessment]):
        if runs := {run.solo.run: value for run in of_one if isinstance(value := value_of(run), float)}:
            pairs = [(runs[run], runs[run + 1]) for run in runs if run % 2 and run + 1 in runs]
            found[label_of(of_one)] = noise_floor(pairs)
    return found


def machine_noise_floor(assessment: Assessment) -> NoiseFloor | None:
    """The largest of the floors; None if no solo measurement has one."""
    known = [floor for floor in noise_floors(assessment).values() if floor is not None]
    result = assessment.result
    return NoiseFloor(fraction=max(known), tier=result.tier, created_utc=result.created_utc) if known else None


def checks(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Iterator[Check]:
    """Whether this machine has a noise floor at the edge or server tier, and whether each stored one is recent."""
    floors, now_utc = stored.floors(), now().isoformat(timespec="seconds")
    if floors.keys().isdisjoint(("edge", "server")):
        message = "none was measured, so a comparison of single runs cannot tell a difference from noise"
        yield Check("noise floor", "warn", message, "mixmark selftest")
    for tier, floor in floors.items():
        days = days_between(floor.created_utc, now_utc)
        age = "on an unknown day" if days is None else f"{counted(days, 'day')} ago"
        message = f"{percent(floor.fraction)}, measured {age} ({plain(floor.created_utc, 40)})"
        if days is not None and days <= OLD_DAYS:
            yield Check(f"noise floor {tier}", "ok", message)
        else:
            old = f"{message}: too old (limit {OLD_DAYS} days)"
            yield Check(f"noise floor {tier}", "warn", old, f"mixmark selftest --tier {tier}")


def days_between(earlier: str, later: str) -> int | None:
    """The whole days between two times in ISO 8601. None if one is not a time, or only one has a time zone."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).days
    except (ValueError, TypeError):
        return None
