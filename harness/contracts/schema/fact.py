"""The base class of all facts, and the integers that they store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict


class Fact(BaseModel):
    """The base class of everything that is written to a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


Int64s = npt.NDArray[np.int64]
LARGEST = 1 << 60
"""The upper limit of any stored integer: 36 years in ns, so that sums and differences of times fit into int64."""
