"""The edges of a window lie between two updates of a source, which may be late: the joules are known to a range."""

from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Domain, Metering, Samples
from mixmark.harness.judge.energy.reading import in_phase
from tests.golden.sample import domain

BEGIN_S, END_S = 100, 220
WORK_J = 180.0 * (END_S - BEGIN_S)


def metered(outside_watts: float, every_s: float, late_s: float, step_joules: float) -> tuple[Domain, Metering]:
    """180 W in the window and another power outside of it. A source gives the mean power since its last reading, or a
    counter in steps; its clock may be late."""
    ends_s = np.array([0, BEGIN_S, END_S, END_S + 100]) + 0.37
    joules = np.concatenate((np.zeros(1), np.cumsum(np.diff(ends_s) * (outside_watts, 180.0, outside_watts))))
    read_s = np.arange(1, END_S + 99, every_s)
    counted = np.interp(read_s, ends_s, joules)
    values = np.floor(counted / step_joules) * step_joules if step_joules else np.diff(counted) / every_s
    at_ns = ((read_s[len(read_s) - len(values) :] - late_s) * 1e9).astype(np.int64)
    averaging_ns = None if step_joules else int(every_s * 1e9)
    quantity = "energy" if step_joules else "power"
    wall = domain("wall", ("cpu:0",), quantity=quantity, method="external", boundary="wall", averaging_ns=averaging_ns)
    age = {"wall": int(-late_s * 1e9)} if late_s else {}
    samples = {"wall": Samples(at_ns, at_ns, values)}
    end_ns = int(at_ns[-1])
    return wall, Metering(phase="mix1", begin_ns=0, end_ns=end_ns, cpu_ns=0, samples=samples, reading_age_ns=age)


@pytest.mark.parametrize(
    ("outside_watts", "every_s", "late_s", "step_joules", "off_pct", "width_pct"),
    [
        (60, 0.1, 0, 0, -0.04, 0.06),
        (60, 1, 0, 0, -0.33, 0.6),
        (60, 1, 1.4, 0, -0.51, 1.4),
        (60, 1, -1.4, 0, -1.06, 1.4),
        (60, 0.2, 0, 360, -0.77, 1.2),  # a plug in steps of 0.1 Wh
        (300, 1, 0, 0, 0.33, 0.6),  # a warm-up that takes more than the work
    ],
)
def test_the_error_of_the_edges_is_in_the_range(
    outside_watts: float, every_s: float, late_s: float, step_joules: float, off_pct: float, width_pct: float
) -> None:
    wall, metering = metered(outside_watts, every_s, late_s, step_joules)
    found = in_phase(wall, metering, int((BEGIN_S + 0.37) * 1e9), int((END_S + 0.37) * 1e9))
    assert found.joules is not None
    least, most = found.joules_between
    assert least <= min(found.joules, WORK_J) and max(found.joules, WORK_J) <= most
    assert (found.joules / WORK_J - 1) * 100 == pytest.approx(off_pct, abs=0.01)
    assert (most - least) / WORK_J * 100 < width_pct
