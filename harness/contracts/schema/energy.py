"""Energy: the domains that a meter reads, and its raw samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, SkipValidation, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.schema.fact import LARGEST, Fact, Int64s

Boundary = Literal["wall", "node", "devices"]


class Domain(Fact):
    """A source of energy or power readings, and what it covers."""

    id: str = Field(pattern=r"^[A-Za-z0-9:._/-]+$")
    meter: str
    covers: tuple[str, ...] = Field(min_length=1)
    """The ids of devices, and names of other parts: `memory`, or `node` for the whole machine."""
    boundary: Boundary
    quantity: Literal["energy", "power"]
    """What the raw samples are: a counter in joules, or watts."""
    method: Literal["counter", "integrated", "external", "modelled"]
    wrap_joules: float | None = Field(default=None, gt=0)
    """The joules at which a counter starts again at zero. None: it does not wrap within any run."""
    averaging_ns: int | None = Field(default=None, ge=0)
    """The time over which a power reading is an average. None: the source does not say."""
    accuracy: float | None = Field(default=None, gt=0)
    """The accuracy that the maker declares: 0.01 is 1 %."""
    parent: str | None = None
    """The domain that contains this one."""
    source: str
    """The interface and its documentation."""

    @model_validator(mode="after")
    def _nothing_inside_sees_the_wall(self) -> Domain:
        if self.boundary == "wall" and self.method != "external":
            raise ValueError(f"domain {self.id} is read by {self.method} inside the machine, and claims the wall")
        return self


@dataclass(frozen=True, eq=False)
class Samples:
    """The raw readings of one domain, in order: columns of equal length.

    before_ns, after_ns: the times before and after each read, on the run's clock. Both are equal if the source has
    timestamps of its own.
    values: float64, joules of a counter, with its wraps and resets, or watts. Columns may be empty.
    """

    before_ns: Int64s
    after_ns: Int64s
    values: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, dtype in (("before_ns", np.int64), ("after_ns", np.int64), ("values", np.float64)):
            column = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            if column.ndim != 1 or len(column) != len(self.before_ns):
                raise ValueError("samples are columns of equal length")
            if not (np.abs(column.astype(np.float64)) < LARGEST).all():  # also false for NaN
                raise ValueError(f"{name} is beyond any run")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if (self.after_ns < self.before_ns).any() or (np.diff(self.before_ns) < 0).any():
            raise ValueError("time runs backwards between samples")


class Metering(Fact):
    """The samples of all meters during one phase."""

    phase: str = Field(pattern=r"^[a-z0-9.-]+$")
    """The name of the phase, and the stem of the raw file."""
    begin_ns: int
    end_ns: int
    cpu_ns: int = Field(ge=0)
    """CPU time of the sampling threads."""
    idle_ns: tuple[tuple[int, int], ...] = ()
    """The intervals without any worker: before the phase's workers were started, and after they had ended."""
    ready_ns: tuple[int, int] | None = None
    """The interval in which all suites of a phase of a mix were loaded and nothing was asked. None: there was none."""
    samples: Annotated[Mapping[str, Samples], SkipValidation, SkipJsonSchema(), Field(exclude=True)] = {}
    """The samples by domain. They are stored beside result.json as raw/<phase>.energy.npz."""
    lost: dict[str, str] = {}
    """The reasons why domains could not be read until the end of the phase."""
    reading_age_ns: dict[str, int] = {}
    """The least age of a source's own timestamp when its reading was seen, by domain."""
