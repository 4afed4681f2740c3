"""How an answer is compared with the fp32 reference: shared by the suites whose answers are numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.contracts import Array
from harness.errors import WrongAnswer


def checked(answer: Array, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """The answer, where it has the shape and dtype and is finite. Raises WrongAnswer with what it has instead."""
    if answer.shape != shape or answer.dtype != np.dtype(dtype):
        raise WrongAnswer(f"the answer is {answer.dtype} {answer.shape}, and should be {dtype} {shape}")
    if not np.isfinite(answer).all():
        raise WrongAnswer(f"the answer holds {np.count_nonzero(~np.isfinite(answer))} values that are not finite")
    return answer


def unexplained(answer: Array, reference: Array, centre: Array | float) -> npt.NDArray[np.float64]:
    """[rows], the share of the reference's variance around `centre` that the answer does not explain, 1 − R².

    0 for the reference itself, about 1 for `centre` whatever the input, about 2 for another input's answer. The
    centre is of all inputs, else an answer that never changes would look good.
    """
    rows = len(reference)
    off = (answer.astype(np.float64) - reference).reshape(rows, -1)
    spread = (reference.astype(np.float64) - centre).reshape(rows, -1)
    return np.asarray((off * off).mean(1) / (spread * spread).mean(1))
