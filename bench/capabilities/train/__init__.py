"""The suite train in the benchmarks of Mixmark itself."""

from bench.routes import RouteRow

PEER = "bench.capabilities.train.torch"
ROWS = {"train-fp32": RouteRow("train", "single-stream", "torch", "fp32", PEER, "fp32", 0.9)}
