"""Results side by side for machines. docs/json.md lists all fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mixmark.harness.contracts.schema import NoiseFloor
from mixmark.harness.judge.compare.machines import Machine, Quotient, Row, SideBySide, Uncompared
from mixmark.harness.judge.compare.solo import Comparison, Ratio, Verdict
from mixmark.reporters.json import written


@dataclass(frozen=True)
class Compared:
    """What `mixmark compare --json` prints. The first result is the baseline of all others."""

    comparable: bool
    """Whether anything at all was held against the baseline."""
    machines: tuple[Machine, ...]
    """One for each result, in the order of the command line."""
    mixes_per_s: tuple[Quotient | None, ...]
    """The TX of each result relative to the baseline's. None for the baseline, and where it is not compared."""
    mixes_per_kj: tuple[Quotient | None, ...]
    """The same for MX."""
    rows: tuple[Row, ...]
    """For each suite, scenario and weight class the best route of each result."""
    verdicts: Mapping[str, tuple[Tested, ...]]
    """The cells of each result but the baseline that were tested against the baseline's, by the result's label."""
    uncompared: tuple[Uncompared, ...]
    """What was held against nothing of the baseline."""


@dataclass(frozen=True)
class Tested:
    """One cell of a result and of the baseline, alike in all but what is tested."""

    cell: str
    """The route and the scenario."""
    measure: str
    """What was compared: throughput, highest rate or speed of response."""
    ratio: Ratio | None
    delta: float
    """δ: the verdict is faster or slower if the whole interval lies beyond ±δ. 0.01 is 1 %."""
    noise_floor: NoiseFloor | None
    """The noise floor that δ rests on. None: none of the cell's tier is known."""
    verdict: Verdict | None
    reason: str
    """A caveat, or how many runs would tell; empty where there is nothing to say."""
    runs: tuple[int, int]
    """The number of runs of the baseline and of the result."""


def report(found: SideBySide) -> str:
    """Keys sorted, unknown is null."""
    return written(
        Compared(
            comparable=found.comparable,
            machines=found.machines,
            mixes_per_s=found.mixes_per_s,
            mixes_per_kj=found.mixes_per_kj,
            rows=found.rows,
            verdicts={label: tuple(map(_tested, compared)) for label, compared in found.verdicts.items()},
            uncompared=found.uncompared,
        )
    )


def _tested(each: Comparison) -> Tested:
    return Tested(
        cell=each.label,
        measure=each.measure,
        ratio=each.ratio,
        delta=each.delta,
        noise_floor=each.floor,
        verdict=each.verdict,
        reason=each.reason,
        runs=(len(each.a), len(each.b)),
    )
