"""What a server must keep, by suite and tier.

server: the limits of MLPerf Inference v6.1 for the same work at the same percentile (llama3.1-8b: TTFT 2 s and TPOT
100 ms; stable-diffusion-xl: 20 s; dlrm-v2: 60 ms, as of v5.1; resnet50: 15 ms), the work being ours.
edge and smoke: nobody has published such limits for one person's machine, so these are our own, the limits of the
mixed run: what somebody who waits will bear. At p90, which 64 feeds carry, since a p99 would take 662.
"""

from __future__ import annotations

from harness.schema import LatencyLimits

MS = 1_000_000
SECOND = 1000 * MS
MLPERF = "MLPerf Inference v6.1, server scenario"
OWN = "Mixmark: what a person who waits will bear"


def _ours(**limits: int) -> LatencyLimits:
    return LatencyLimits(percentile=0.9, source=OWN, **limits)


def _theirs(**limits: int) -> LatencyLimits:
    return LatencyLimits(percentile=0.99, source=MLPERF, **limits)


EDGE = {
    "llm": _ours(first_ns=10 * SECOND, per_unit_ns=SECOND),
    "diffusion": _ours(total_ns=120 * SECOND),
    "dlrm": _ours(total_ns=2 * SECOND),
    "resnet50": _ours(total_ns=2 * SECOND),
}
LIMITS = {
    "smoke": EDGE,
    "edge": EDGE,
    "server": {
        "llm": _theirs(first_ns=2 * SECOND, per_unit_ns=100 * MS),
        "diffusion": _theirs(total_ns=20 * SECOND),
        "dlrm": _theirs(total_ns=60 * MS),
        "resnet50": _theirs(total_ns=15 * MS),
    },
}
