"""Joules per byte of copies on a path: a regression over windows that copies take to different parts.

    E_i = P t_i + e b_i + residual     E joules of the machine, t seconds, b bytes copied, by least squares

P is the power without copies and e the joules per byte, both of the boundary that the meters cover.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mixmark.harness.capabilities.paths.facts import PathRecord
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Boundary, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS
from mixmark.harness.judge.energy.total import total, unmeasured
from mixmark.harness.judge.statistics.intervals import CONFIDENCE, student_t

WIDEST = 10.0  # a figure is not known if the ends of its interval are further apart than this factor


@dataclass(frozen=True)
class CopyEnergy:
    """The energy of the copies of a path."""

    joules_per_byte: Estimate
    """The joules that a copied byte adds, with the interval of Student's t on the standard error of the slope."""
    boundary: Boundary
    """What the meters cover."""
    domains: tuple[str, ...]
    """The energy domains that were added."""


def of_path(result: Result, record: PathRecord) -> tuple[CopyEnergy | None, Reason | None]:
    """The energy of a path, or why it is not known: no meter, too few updates, or copies that do not show in it."""
    if record.own_code:
        return None, "the copies are a plugin's own"
    if record.metering is None:
        return None, "the meters were not read" if result.domains else "no meter was read"
    totals = [total(result, record.metering, window.begin_ns, window.end_ns) for window in record.duty]
    if why := unmeasured({f"window {number}": each for number, each in enumerate(totals, 1)}):
        return None, why
    updates = sum(2 / each.edge_uncertainty for each in totals if each.edge_uncertainty)
    if updates < ENOUGH_PERIODS:
        return None, f"the meters have {updates:.0f} updates, and {ENOUGH_PERIODS} are needed"
    x = np.array([(window.end_ns - window.begin_ns, window.copied_bytes) for window in record.duty]) / 1e9
    joules = np.array([each.joules for each in totals], np.float64)
    coefficients, *_ = np.linalg.lstsq(x, joules)
    left_over = joules - x @ coefficients
    freedom = len(joules) - 2
    variance = float(left_over @ left_over) / freedom * float(np.linalg.inv(x.T @ x)[1, 1])
    half = float(student_t(freedom, CONFIDENCE)) * math.sqrt(variance)
    slope = coefficients[1]
    per_byte = Estimate(float(slope) / 1e9, float(slope - half) / 1e9, float(slope + half) / 1e9)
    if per_byte.is_vague(WIDEST):
        return None, "the power scatters by more than copies add to it"
    assert totals[0].boundary is not None  # it has joules
    return CopyEnergy(per_byte, totals[0].boundary, totals[0].domains), None
