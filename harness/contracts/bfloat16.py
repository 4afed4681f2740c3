"""Rounds float32 values to bf16, the upper half of a float32, for which numpy has no type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CHUNK = 1 << 18  # values rounded at a time: 1 MiB, which stays in a core's cache


def round_to_bf16(values: npt.NDArray[np.float32], into: npt.NDArray[np.uint16]) -> None:
    """Writes the bits of the nearest bf16 of each value, ties to even, into an array of the same shape."""
    bits, out = values.reshape(-1).view(np.uint32), into.reshape(-1)
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK]
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        rounded >>= 16
        out[start : start + CHUNK] = rounded
