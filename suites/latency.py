"""Latency limits that a suite's server scenario keeps at each tier; each suite states its own.

Limits from MLPerf Inference v6.1 are those of the same work at the same percentile. MLPerf publishes none for one
person's machine, so the edge and smoke tiers have Mixmark's own, the limits of the mixed run, at p90: 64 feeds suffice
for a p90, and a p99 would need 662.
"""

from __future__ import annotations

from mixmark.harness.contracts.schema import LatencyLimits

MS = 1_000_000
SECOND = 1000 * MS
MLPERF = "MLPerf Inference v6.1, server scenario"
OWN = "Mixmark: what a person who waits will bear"


def ours(**limits: int) -> LatencyLimits:
    """Mixmark's own limits, at p90; the keywords are the fields of LatencyLimits, in ns."""
    return LatencyLimits(percentile=0.9, source=OWN, **limits)


def mlperf(**limits: int) -> LatencyLimits:
    """MLPerf Inference's limits, at p99; the keywords are the fields of LatencyLimits, in ns."""
    return LatencyLimits(percentile=0.99, source=MLPERF, **limits)
