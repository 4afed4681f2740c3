"""Builds the latency limits of the server scenario from each suite's numbers.

The server tier has the limits of MLPerf Inference v6.1 for the same work, at the same percentile. MLPerf publishes no
limits for a personal machine, so the edge and smoke tiers have Mixmark's limits of the mixed run, at p90: a p90 needs
64 feeds, a p99 would need 662.
"""

from __future__ import annotations

from mixmark.harness.contracts.schema import LatencyLimits

MS = 1_000_000
SECOND = 1000 * MS
MLPERF = "MLPerf Inference v6.1, server scenario"
OWN = "Mixmark: what a person who waits will bear"


def own_limits(**limits: int) -> LatencyLimits:
    """Mixmark's limits, at p90; the keywords are the fields of LatencyLimits, in ns."""
    return LatencyLimits(percentile=0.9, source=OWN, **limits)


def mlperf_limits(**limits: int) -> LatencyLimits:
    """MLPerf Inference's limits, at p99; the keywords are the fields of LatencyLimits, in ns."""
    return LatencyLimits(percentile=0.99, source=MLPERF, **limits)
