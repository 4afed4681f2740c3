"""Our route by jax on the CPU beside our eager route by torch."""

from __future__ import annotations

from bench.routes import COMPILED, EAGER, RouteRow

ROWS = {
    "llm-jax": RouteRow("llm", "single-stream", "jax", "bf16", EAGER, "bf16", 0.1, COMPILED),
    "dlrm-jax": RouteRow("dlrm", "offline", "jax", "fp32", EAGER, "fp32", 1.0, COMPILED),
    "resnet50-jax": RouteRow("resnet50", "offline", "jax", "fp32", EAGER, "fp32", 0.2, COMPILED),
}
"""The goals follow a first measurement at smoke: XLA computes convolutions and bf16 slowly on a CPU."""
