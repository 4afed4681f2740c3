"""The suite ssm in the benchmarks of Mixmark itself."""

from bench.routes import RouteRow

PEER = "bench.capabilities.ssm.transformers"
ROWS = {
    "ssm-plain": RouteRow("ssm", "single-stream", "torch", "fp32", PEER, "fp32", 1.0),
    "ssm-bf16": RouteRow("ssm", "single-stream", "torch", "bf16", PEER, "bf16", 1.0),
    "ssm-onnxruntime": RouteRow("ssm", "single-stream", "onnxruntime", "fp32", PEER, "fp32", 1.0),
}
