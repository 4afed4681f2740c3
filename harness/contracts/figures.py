"""Figures: an estimate with its interval, the one type of every rate, score, ratio and prediction; and what a class of
figures publishes: its fields but the raw ones, and the properties that are figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from mixmark.harness.contracts.text import Reason

RAW: Mapping[str, bool] = {"raw": True}
"""The metadata of a field that is not published: other figures are computed from it."""
_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval. The ends are None if no interval is known."""

    estimate: float
    low: float | None = None
    high: float | None = None
    kind: Literal["interval", "window", "bracket"] = "interval"
    """`interval`: the 95 % confidence interval. `window`: of one window, and another run may differ by more.
    `bracket`: the window was too short for a point estimate; the value is between `low` and `high`, and the estimate is
    `low`."""
    reason: Reason | None = None
    """Why no interval is known, or what the interval leaves out."""

    @classmethod
    def within(cls, estimate: float, half_width: float | None) -> Estimate:
        """An estimate ± a fraction of itself; without an interval if the half-width is None."""
        if half_width is None:
            return cls(estimate)
        return cls(estimate, estimate * (1 - half_width), estimate * (1 + half_width))

    @property
    def is_bracket(self) -> bool:
        return self.kind == "bracket"

    @property
    def half_width(self) -> float | None:
        """The longer side of the interval as a fraction of the estimate: 0.02 is ± 2 %. None if no interval is known,
        or the estimate is 0, of which nothing is a fraction."""
        if self.low is None or self.high is None or self.is_bracket or not self.estimate:
            return None
        return max(self.high - self.estimate, self.estimate - self.low) / self.estimate

    @property
    def ends(self) -> tuple[float, float]:
        """The low and the high end. An unknown end is the estimate."""
        low = self.estimate if self.low is None else self.low
        high = self.estimate if self.high is None else self.high
        return low, high

    def is_vague(self, factor: float) -> bool:
        """Whether its interval reaches zero, or the ends are further apart than this factor."""
        low, high = self.ends
        return low <= 0 or high > factor * low

    def ratio(self, base: Estimate) -> Estimate:
        """This figure divided by an independent one that is not 0; without an interval if either figure has none.

        Logarithms are linear near the mean, so the half-widths add in squares.
        """
        middle = self.estimate / base.estimate
        if self.half_width is None or base.half_width is None:
            return Estimate(middle)
        return exponential(math.log(middle), math.hypot(self.half_width, base.half_width))


def exponential(middle: float, half: float) -> Estimate:
    """An estimate from the middle and half-width of its logarithm. The ends are limited to the range of a float."""
    low, high = (math.exp(min(max(end, -700), 700)) for end in (middle - half, middle + half))
    return Estimate(math.exp(middle), low, high)


def figure(method: _Method) -> _Method:
    """Marks the method of a property as a figure that is published beside the fields."""
    method.is_figure = True  # type: ignore[attr-defined]  # a callable has no such attribute
    return method


def published(dataclass: type) -> list[str]:
    """The names of the published fields and properties of a dataclass, in their order."""
    properties = [
        name for name, member in vars(dataclass).items() if hasattr(getattr(member, "fget", None), "is_figure")
    ]
    return [*(field.name for field in fields(dataclass) if not field.metadata.get("raw")), *properties]
