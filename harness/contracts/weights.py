"""Reads a tensor of a suite's weights, rounds it to bf16, finds values that are not finite, and names a checkpoint.

bf16 is the upper half of a float32; numpy has no type for it.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.protocols import Weights
from mixmark.harness.contracts.text import plain

CHUNK = 1 << 18  # values rounded at a time: 1 MiB, which stays in a core's cache


def read_weight(weights: Weights, name: str) -> npt.NDArray[np.float32]:
    """A tensor of the weights, as a new array."""
    tensor = np.empty(tuple(map(int, weights.spec(name).shape)), np.float32)
    weights.read(name, tensor)
    return tensor


def checked(weights: Weights, path: str) -> str:
    """Reads every weight of a checkpoint once. Returns its label: the name of its file or folder, and a hash of the
    names, shapes and values that were read. Raises UsageError if a value is NaN or infinite."""
    digest = hashlib.sha256()
    shapes = {name: tuple(map(int, weights.spec(name).shape)) for name in weights.names()}
    buffer = np.empty(max(map(math.prod, shapes.values()), default=0), np.float32)
    for name, shape in shapes.items():
        tensor = buffer[: math.prod(shape)].reshape(shape)
        weights.read(name, tensor)
        digest.update(f"{name} {shape}\n".encode())
        digest.update(tensor.data)
        with np.errstate(all="ignore"):
            total = tensor.sum()  # one pass, without a second array
        if not np.isfinite(total) and (wrong := int(np.count_nonzero(~np.isfinite(tensor)))):
            raise UsageError(
                f"{name} has {counted(wrong, 'value')} that {'is' if wrong == 1 else 'are'} NaN or infinite",
                "give another copy of the checkpoint",
            )
    return f"{plain(Path(path).name)} sha256:{digest.hexdigest()[:16]}"


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
