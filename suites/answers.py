"""Comparisons of answers with the fp32 reference, for the suites whose answers are numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.contracts import Array
from harness.errors import WrongAnswer


def checked(answer: Array, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Returns the answer; raises WrongAnswer where its shape or dtype differs or a value is not finite."""
    if answer.shape != shape or answer.dtype != np.dtype(dtype):
        raise WrongAnswer(f"the answer is {answer.dtype} {answer.shape}, but should be {dtype} {shape}")
    if not np.isfinite(answer).all():
        raise WrongAnswer(f"the answer holds {np.count_nonzero(~np.isfinite(answer))} values that are not finite")
    return answer


def unexplained(answer: Array, reference: Array, centre: Array | float) -> npt.NDArray[np.float64]:
    """The share of the reference's variance around `centre` that the answer does not explain, 1 − R²: [rows] float64.

    The reference itself has 0, an answer that is always `centre` about 1, the answer to another input about 2. The
    centre must be a mean over many inputs: otherwise a constant answer could score well.
    """
    rows = len(reference)
    off = (answer.astype(np.float64) - reference).reshape(rows, -1)
    spread = (reference.astype(np.float64) - centre).reshape(rows, -1)
    return np.asarray((off * off).mean(1) / (spread * spread).mean(1))
