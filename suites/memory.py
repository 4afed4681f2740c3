"""Memory that is used again: a fresh page costs as much as the bytes that a feed writes into it."""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Array

UNUSED = (
    3  # references to an array that nobody holds: from the list, from the loop over it, and from the call that counts
)


class Reused:
    """Arrays of one shape and type. The memory of one is given out again once neither it nor a view of it is held."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._shape, self._dtype = shape, dtype
        self._lock = threading.Lock()
        self._arrays: list[Array] = []

    def __call__(self) -> Array:
        """An array that holds anything. It is a view, as all that is made from it: they hold the array in the list."""
        with self._lock:
            for array in self._arrays:
                if sys.getrefcount(array) == UNUSED:
                    return array[:]
            self._arrays.append(np.empty(self._shape, self._dtype))
            return self._arrays[-1][:]
