"""Joules per byte, from a counter whose joules are known to the digit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mixmark.harness.capabilities.paths.energy import CopyEnergy, of_path
from mixmark.harness.capabilities.paths.facts import DutyWindow, PathRecord
from mixmark.harness.capabilities.paths.measuring import DUTIES
from mixmark.harness.contracts.schema import Domain, Metering, Result, Samples
from tests.capabilities.paths.fakes import PATH
from tests.fakes.machine import SECOND, WALL, device
from tests.golden import sample

WINDOW_S, BYTES_PER_S, IDLE_W, BUSY_W = 5, 10_000_000_000, 100.0, 20.0
SCATTER = dict(zip((0.0, 0.25, 0.5, 0.75, 1.0), (1, -2, 0, 2, -1), strict=True))
"""No part of it looks like a power or like joules of copies."""


def record(parts: Sequence[float]) -> PathRecord:
    windows = tuple(
        DutyWindow(
            begin_ns=number * WINDOW_S * SECOND,
            end_ns=(number + 1) * WINDOW_S * SECOND,
            copied_bytes=round(part * WINDOW_S * BYTES_PER_S),
        )
        for number, part in enumerate(parts)
    )
    return PathRecord(path=PATH, duty=windows, metering="paths.fake.0")


def metered(
    scatter_joules: float = 0.0, every_s: float = 0.1, parts: Sequence[float] = DUTIES, domain: Domain = WALL
) -> tuple[Result, PathRecord]:
    """A counter at the wall: 100 W, and 20 W more while copies go on. scatter_joules: of a window."""
    at_s = np.arange(-1, WINDOW_S * len(parts) + 1.01, every_s)
    watts = [IDLE_W + part * BUSY_W + scatter_joules * SCATTER[part] / WINDOW_S for part in parts]
    edges_s = np.array((-1.0, *(WINDOW_S * number for number in range(len(parts) + 1)), at_s[-1]))
    joules = np.concatenate(([0.0], np.cumsum(np.diff(edges_s) * [IDLE_W, *watts, IDLE_W])))
    at_ns = np.round(at_s * SECOND).astype(np.int64)
    samples = Samples(at_ns, at_ns, np.interp(at_s, edges_s, joules))
    metering = Metering(
        phase="paths.fake.0", begin_ns=int(at_ns[0]), end_ns=int(at_ns[-1]), cpu_ns=0, samples={domain.id: samples}
    )
    devices = tuple(device(id) for id in ("gpu:0", "cpu:0"))
    facts = {"devices": devices, "domains": (domain,), "meterings": (metering,), "absent": ()}
    return sample.result().model_copy(update=facts), record(parts)


COUNTER = WALL.model_copy(update={"quantity": "energy"})


def energy(scatter_joules: float = 0.0) -> CopyEnergy:
    found, why = of_path(*metered(scatter_joules, domain=COUNTER))
    assert found is not None and why is None
    return found


def test_the_joules_of_a_byte_are_what_copies_add() -> None:
    found = energy()
    assert (found.joules_per_byte.estimate, *found.joules_per_byte.ends) == pytest.approx((2e-9, 2e-9, 2e-9), rel=1e-6)
    assert (found.boundary, found.domains) == ("wall", ("wall",))


def test_the_interval_is_that_of_the_slope() -> None:
    """The residuals have 10 J² in all and 3 degrees of freedom, so the standard error is √(10 / 3 / 0.625) J for the
    bytes of a whole window, and t is 3.1824."""
    found = energy(1.0).joules_per_byte
    half = 3.182446305 * (10 / 3 / 0.625) ** 0.5 / (WINDOW_S * BYTES_PER_S)
    assert (found.estimate, *found.ends) == pytest.approx((2e-9, 2e-9 - half, 2e-9 + half), rel=1e-6)


def test_copies_that_add_less_than_the_power_scatters_have_no_joules() -> None:
    assert of_path(*metered(20.0, domain=COUNTER)) == (None, "the power scatters by more than copies add to it")


def test_too_few_updates_have_their_number() -> None:
    found, why = of_path(*metered(every_s=0.125, parts=DUTIES[:4], domain=COUNTER))
    assert (found, why) == (None, "the meters have 160 updates, and 200 are needed")
    found, why = of_path(*metered(every_s=0.5, domain=COUNTER))
    assert found is None and "window too short" in (why or "")


def test_without_a_meter_the_joules_of_a_byte_are_not_known() -> None:
    result, path = metered(domain=COUNTER)
    assert of_path(result.model_copy(update={"meterings": ()}), path)[0] is None
    assert of_path(result, PathRecord(path=PATH)) == (None, "the meters were not read")
    assert of_path(result.model_copy(update={"domains": ()}), PathRecord(path=PATH)) == (None, "no meter was read")
    elsewhere = COUNTER.model_copy(update={"covers": ("gpu:0",), "boundary": "devices", "method": "counter"})
    found, why = of_path(*metered(domain=elsewhere))
    assert found is None and "cpu:0 is not metered" in (why or "")
