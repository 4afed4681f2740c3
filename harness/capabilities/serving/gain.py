"""What one way to run a mix gains over another."""

from __future__ import annotations

from collections.abc import Sequence

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge.statistics.intervals import over_runs


def gain(ratios: Sequence[float], slowdowns: Sequence[float]) -> Estimate | None:
    """The gain of one way to run over another, from the ratios of pairs of runs and how many times slower the machine
    was in the run by the other way.

    The machine may have been slower by chance, or by the other way's own doing. So the interval holds both: that of the
    ratios, and that of the ratios at one speed. None if there are no ratios.
    """
    measured, at_one_speed = over_runs(ratios), over_runs([r / s for r, s in zip(ratios, slowdowns, strict=True)])
    if measured is None or at_one_speed is None or None in (measured.low, at_one_speed.low):
        return measured and Estimate(measured.estimate)
    ends = measured.ends, at_one_speed.ends
    return Estimate(measured.estimate, min(low for low, _ in ends), max(high for _, high in ends))
