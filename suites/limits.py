"""What a suite's outputs must keep to: their form, the gate of their quality, and the latency limits of a server.

The server tier has the latency limits of MLPerf Inference v6.1 for the same work, at the same percentile. MLPerf
publishes no limits for a personal machine, so the edge and smoke tiers have Mixmark's limits of the mixed run, at p90:
a p90 needs 64 feeds, a p99 would need 662.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import LatencyLimits, weight_class

MS = 1_000_000
SECOND = 1000 * MS
MLPERF = "MLPerf Inference v6.1, server scenario"
OWN = "Mixmark: what a person who waits will bear"

FP32 = 1e-6
"""The bound of every gate for fp32, which excludes fewer bits. Engines in fp32 reach 2e-10 at smoke and edge; fp16,
whose mantissa is as long as TF32's, reaches 8e-6 or more on resnet50, dlrm and diffusion."""


def gate_bound(at_most: Mapping[str, float], precision: str, trained: float | None = None, fp32: float = FP32) -> float:
    """A gate's bound for a declared precision. at_most: the bounds of `16 bits`, `fp8`, `int8` and `int4`. trained: the
    bound with a checkpoint, whose values are not exact in few bits. They are in fp32, so its bound stays as it is.

    bf16 and fp16 share a bound. fp8 has a separate bound: its activations have three bits of mantissa, so their
    rounding errors are several times larger than in int8.
    """
    if precision == "fp32":
        return fp32
    return trained or at_most["16 bits" if weight_class(precision) == 16 else precision]


def check_output(output: Array, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Returns the output; raises WrongOutput if its shape or dtype differs or a value is not finite."""
    if output.shape != shape or output.dtype != np.dtype(dtype):
        raise WrongOutput(f"the output is {output.dtype} {output.shape}, but should be {dtype} {shape}")
    if not np.isfinite(output).all():
        raise WrongOutput(f"the output has {np.count_nonzero(~np.isfinite(output))} values that are not finite")
    return output


def unexplained_variance(output: Array, reference: Array, centre: Array | float) -> npt.NDArray[np.float64]:
    """1 − R² of each row: the reference's variance around `centre` that the output does not explain. [rows] float64.

    The reference has 0, an output that is always `centre` about 1, the output for another input about 2. The centre
    must be a mean over many inputs: otherwise a constant output could score well.
    """
    rows = len(reference)
    error = (output.astype(np.float64) - reference).reshape(rows, -1)
    spread = (reference.astype(np.float64) - centre).reshape(rows, -1)
    return np.asarray((error * error).mean(1) / (spread * spread).mean(1))


own_limits = partial(LatencyLimits, percentile=0.9, source=OWN)
"""Mixmark's limits, at p90; the keywords are the fields of LatencyLimits, in ns."""
mlperf_limits = partial(LatencyLimits, percentile=0.99, source=MLPERF)
"""MLPerf Inference's limits, at p99; the keywords are the fields of LatencyLimits, in ns."""


def tier_limits(edge: LatencyLimits, server: LatencyLimits) -> Mapping[str, LatencyLimits]:
    """The limits by the tier: smoke has those of edge."""
    return {"smoke": edge, "edge": edge, "server": server}
