"""Joules from raw samples: right to a thousandth, or none with the reason; never negative, never counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixmark.harness.contracts.schema import Absent, Device, Domain, Metering, Samples
from mixmark.harness.judge.energy.coverage import needed, uncovered
from mixmark.harness.judge.energy.reading import EnergyReading, cumulative, in_phase, power, reading, same
from mixmark.harness.judge.energy.total import (
    MachineEnergy,
    blocks,
    boundary,
    device_watts,
    disagreements,
    less_than_parts,
    of_record,
    total,
    unmeasured,
)
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import but, domain, result

S, MS = 1_000_000_000, 1_000_000
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
GPU = Device(id="gpu:a", kind="gpu", memory_pool="gpu:a")


POWER: dict[str, Any] = {"quantity": "power", "method": "integrated"}


def samples(at_ns: Any, values: Any, took_ns: int = 20_000) -> Samples:
    at = np.asarray(at_ns, np.int64)
    return Samples(at - took_ns // 2, at + took_ns // 2, np.asarray(values, np.float64))


def joules_until(at_ns: Any) -> Any:
    """The energy of a machine that draws 200 W, and 80 W more in a sine of 7 s."""
    t = np.asarray(at_ns, np.float64) / S
    return 200 * t + 80 * 7 / (2 * np.pi) * (1 - np.cos(2 * np.pi * t / 7))


def watts_at(at_ns: Any) -> Any:
    return 200 + 80 * np.sin(2 * np.pi * np.asarray(at_ns, np.float64) / S / 7)


EVERY = np.arange(0, 70 * S, 100 * MS)


def counter(start: float = 0.0, wrap: float | None = None, at: Any = EVERY) -> Samples:
    values = joules_until(at) + start
    return samples(at, values % wrap if wrap else values)


def test_a_counter_between_its_updates_is_interpolated() -> None:
    read = reading(domain(), counter(), 5_033 * MS, 65_077 * MS)
    assert read.joules == pytest.approx(joules_until(65_077 * MS) - joules_until(5_033 * MS), rel=1e-4)
    assert (read.reasons, read.period_ns) == ((), 100 * MS)
    assert read.edge_uncertainty == pytest.approx(0.2 / 60.044)
    assert read.joules and read.watts == pytest.approx(read.joules / 60.044)


def test_a_counter_that_updates_rarely_is_taken_where_it_changed() -> None:
    """Updated every 300 ms, read every 100 ms."""
    seen = samples(EVERY, joules_until(EVERY // (300 * MS) * (300 * MS)))
    read = reading(domain(), seen, 2_050 * MS, 68_050 * MS)
    assert read.period_ns == 300 * MS
    assert read.joules == pytest.approx(joules_until(68_050 * MS) - joules_until(2_050 * MS), rel=1e-3)


@pytest.mark.parametrize("start", [0, 100, 899.99, 950])
def test_wraps_are_undone(start: float) -> None:
    read = reading(domain(wrap_joules=1000), counter(start, wrap=1000), 1 * S, 69 * S)
    assert read.joules == pytest.approx(joules_until(69 * S) - joules_until(1 * S), rel=1e-4)


def test_a_gap_that_may_hide_a_second_wrap_has_no_joules() -> None:
    at = np.concatenate((EVERY[EVERY < 30 * S], EVERY[EVERY > 36 * S]))  # six seconds are 1200 J
    read = reading(domain(wrap_joules=1000), counter(wrap=1000, at=at), 1 * S, 69 * S)
    assert (read.joules, read.reasons) == (None, ("may have wrapped twice",))


@pytest.mark.parametrize("wrap", [5.0, 20.0, 62.0, 99.0])
def test_a_counter_that_wraps_between_all_reads_has_no_joules(wrap: float) -> None:
    """600 W are 60 J between two reads. A counter of 5 J then shows the rest of a division, here a slow rise."""
    joules = 600.5 * EVERY / S
    read = reading(domain(wrap_joules=wrap), samples(EVERY, joules % wrap), 1 * S, 69 * S)
    assert read.joules is None and "may have wrapped twice" in read.reasons
    assert reading(domain(wrap_joules=2000), samples(EVERY, joules % 2000), 1 * S, 69 * S).valid


def test_a_counter_misses_nothing_in_a_gap_and_power_does() -> None:
    at = np.concatenate((EVERY[EVERY < 30 * S], EVERY[EVERY > 31 * S]))
    read = reading(domain(), counter(at=at), 1 * S, 69 * S)
    assert read.joules == pytest.approx(joules_until(69 * S) - joules_until(1 * S), rel=1e-4)
    assert reading(domain(**POWER), samples(at, watts_at(at)), 1 * S, 69 * S).reasons == ("gap",)
    assert reading(domain(), counter(at=at), 1 * S, 30_500 * MS).reasons == ("gap",), "an edge lies in it"


def test_two_reads_in_quick_succession_make_no_jump() -> None:
    """Two reads. The second sees a whole update."""
    at = np.sort(np.append(EVERY, 30 * S - MS))
    values = joules_until(np.where(at == 30 * S - MS, 30 * S - 100 * MS, at))
    read = reading(domain(), samples(at[at != 30 * S - 100 * MS], values[at != 30 * S - 100 * MS]), 1 * S, 69 * S)
    assert read.joules == pytest.approx(joules_until(69 * S) - joules_until(1 * S), rel=1e-3)


@pytest.mark.parametrize("wrap", [None, 262_143.0])
def test_a_counter_that_begins_anew_has_no_joules_where_it_did(wrap: float | None) -> None:
    values = joules_until(EVERY) + 1000
    values[EVERY > 30 * S] -= values[301]
    seen = samples(EVERY, values)
    assert reading(domain(wrap_joules=wrap), seen, 1 * S, 69 * S).reasons == ("jumped back",)
    assert cumulative(domain(wrap_joules=wrap), seen, np.array([1 * S, 69 * S])) is None
    assert reading(domain(wrap_joules=wrap), seen, 31 * S, 69 * S).valid


def fallen(at_j: float, by_j: float, wrap: float, feed_overhead_ns: int = 0) -> EnergyReading:
    """A counter that stood `at_j` joules above its zero at 30 s and then fell by `by_j`, read each 0.1 s but a gap."""
    values = joules_until(EVERY) - joules_until(30 * S) + at_j
    values = np.where(EVERY > 30 * S, values - by_j, values)
    kept = (EVERY <= 30 * S) | (EVERY - feed_overhead_ns > 30 * S)
    return reading(domain(wrap_joules=wrap), samples(EVERY[kept], values[kept]), 1 * S, 69 * S)


def test_a_reset_that_looks_like_a_wrap_has_no_joules() -> None:
    """The machine takes 120 to 280 W, and 28 J between the two readings."""
    true = joules_until(69 * S) - joules_until(1 * S)
    wrap = 20_000.0
    assert fallen(19_990, wrap, wrap).joules == pytest.approx(true, rel=1e-4), "a wrap"
    for missing_j in (60, 200, 400):  # it was reset so many joules before it would have wrapped: 1 to 4.4 kW
        assert fallen(19_990 - missing_j, 19_990 - missing_j, wrap).reasons == ("jumped back",)
    assert fallen(19_999, 20_023, wrap).reasons == ("jumped back",), "a reset near the end, and 4 J were counted since"
    assert fallen(19_990, wrap, wrap, feed_overhead_ns=400 * MS).reasons == ("jumped back",), (
        "nobody looked for too long"
    )
    assert fallen(19_990, wrap, wrap, feed_overhead_ns=200 * MS).valid


def test_a_wrap_where_the_load_begins_is_a_wrap() -> None:
    """From 40 W to 200 W at the very moment."""
    joules = np.where(EVERY < 30 * S, 40 * EVERY / S, 1200 + 200 * (EVERY - 30 * S) / S)
    read = reading(domain(wrap_joules=1210), samples(EVERY, joules % 1210), 10 * S, 34 * S)
    assert read.joules == pytest.approx(20 * 40 + 4 * 200, rel=1e-3)


def test_a_counter_that_stands_still_has_no_joules() -> None:
    values = joules_until(np.minimum(EVERY, 40 * S))
    assert reading(domain(), samples(EVERY, values), 1 * S, 69 * S).reasons[-1] == "stood still"
    assert reading(domain(), samples(EVERY, values), 1 * S, 39 * S).valid
    assert reading(domain(), samples(EVERY, values), 45 * S, 69 * S).reasons == ("stood still",)
    assert reading(domain(), samples(EVERY, np.full(len(EVERY), 7.0)), 1 * S, 69 * S).reasons == ("stood still",)


def test_power_between_two_readings_lies_on_a_line_and_beyond_them_stays_as_it_was() -> None:
    """10 W more each second, from 100 W at 10 s to 990 W at 99 s."""
    at = np.arange(10 * S, 100 * S, S)
    rising = samples(at, 10 * at / S)
    assert reading(domain(**POWER), rising, 10_500 * MS, 60_250 * MS).joules == pytest.approx(5 * (60.25**2 - 10.5**2))
    beyond = reading(domain(**POWER), rising, 9_500 * MS, 99_500 * MS)
    assert beyond.joules == pytest.approx(100 / 2 + 5 * (99**2 - 10**2) + 990 / 2)


def test_power_that_is_polled_faster_than_it_updates_has_the_period_of_its_changes() -> None:
    held = samples(EVERY, watts_at(EVERY // S * S))
    assert reading(domain(**POWER), held, 1 * S, 60 * S).period_ns == 1 * S


def test_power_that_never_changes_is_a_stuck_sensor_unless_it_stamps_its_own() -> None:
    flat = np.full(len(EVERY), 90.0)
    assert reading(domain(**POWER), samples(EVERY, flat), 1 * S, 60 * S).reasons == ("stood still",)
    read = reading(domain(**POWER), samples(EVERY, flat, took_ns=0), 1 * S, 60 * S)
    assert read.joules == pytest.approx(59 * 90)


def phase(values: Any, idle_s: float = 5, took_ns: int = 0) -> Metering:
    """A log of a phase of 70 s with rests at both ends, of the power at each tenth of a second."""
    seen = samples(EVERY, values, took_ns)
    idle = ((0, round(idle_s * S)), (round((70 - idle_s) * S), 70 * S)) if idle_s else ()
    return Metering(phase="p", begin_ns=0, end_ns=70 * S, cpu_ns=0, idle_ns=idle, samples={"d": seen})


def test_power_that_is_the_same_at_rest_and_at_work_is_frozen() -> None:
    log = domain(quantity="power", method="external")
    working = (EVERY >= 5 * S) & (EVERY < 65 * S)
    steady = np.where(working, 150.0, 60.0)
    assert in_phase(log, phase(steady), 10 * S, 60 * S).joules == pytest.approx(50 * 150), "whole watts, a steady load"
    assert in_phase(log, phase(steady), 0, 5 * S).valid, "and a steady rest"
    flat = np.full(len(EVERY), 150.0)
    assert in_phase(log, phase(flat), 10 * S, 60 * S).reasons == ("stood still",)
    stuck_at_work = np.where(EVERY < 6 * S, steady, 150.0)
    assert in_phase(log, phase(stuck_at_work), 10 * S, 60 * S).reasons == ("stood still",), "it never saw the end"
    stuck_at_rest = np.where(EVERY < 64 * S, 60.0, 150.0)
    assert in_phase(log, phase(stuck_at_rest), 10 * S, 60 * S).reasons == ("stood still",), "nor the begin"
    late = np.where((EVERY >= 5200 * MS) & (EVERY < 65_200 * MS), 150.0, 60.0)
    assert in_phase(log, phase(late), 10 * S, 60 * S).valid, "two readings later is not frozen"


def test_a_source_that_never_changed_in_a_phase_without_rests_is_frozen() -> None:
    log = domain(quantity="power", method="external")
    flat = np.full(len(EVERY), 150.0)
    assert in_phase(log, phase(flat, idle_s=0), 10 * S, 60 * S).reasons == ("stood still",)
    assert in_phase(log, phase(flat, idle_s=0), 0, 60 * S).reasons == ("stood still",), "the work began with the phase"
    assert in_phase(log, phase(flat, idle_s=0), 0, 70 * S).valid, "nothing tells that the load changed"
    once = np.where(EVERY == 500 * MS, 60.0, flat)
    assert in_phase(log, phase(once, idle_s=0), 10 * S, 60 * S).valid
    unused = domain(covers=("npu:0",), **POWER)
    assert in_phase(unused, phase(np.full(len(EVERY), 20.0)), 10 * S, 60 * S).valid, "a device may rest throughout"


@pytest.mark.parametrize(("every", "valid"), [(1, True), (2, True), (3, False)])
def test_a_log_that_is_written_more_often_at_work_has_no_joules(every: int, valid: bool) -> None:
    """A reading each tenth of a second at work, and each first, second or third of them at rest."""
    working = (EVERY >= 5 * S) & (EVERY < 65 * S)
    kept = working | (EVERY % (every * 100 * MS) == 0)

    def read(took_ns: int = 0, quantity: str = "power") -> EnergyReading:
        values = (watts_at if quantity == "power" else joules_until)(EVERY[kept])
        read = phase(watts_at(EVERY)).model_copy(update={"samples": {"d": samples(EVERY[kept], values, took_ns)}})
        return in_phase(domain(quantity=quantity, method="external"), read, 10 * S, 60 * S)

    assert read().reasons == (() if valid else ("faster than at rest",))
    assert read().valid is valid
    assert read(took_ns=20_000).valid, "the harness asks when it can"
    assert read(quantity="energy").valid, "a counter misses nothing"


NODE_POWER = domain("n", ("cpu:0", "gpu:a", "memory", "node"), boundary="node", **POWER)
GPU_POWER = domain("g", ("gpu:a",), **POWER)
SPARE = domain("s", ("node/2-of-2",), boundary="node", **POWER)
SUPPLIED = NODE_POWER.model_copy(update={"supply_watts": 300.0})
ABSURD: dict[str, tuple[Domain, Any, float, tuple[str, ...]]] = {
    # which source, which readings of 600, what they read, and why there are no joules
    "below zero": (NODE_POWER, 300, -1, ("negative power",)),
    "32 bits of mW": (NODE_POWER, 300, 0xFFFFFFFF / 1e3, ("no value", "jumped ahead")),
    "31 bits of uW, often": (GPU_POWER, slice(0, None, 3), 0x7FFFFFFF / 1e6, ("no value",)),
    "32 bits of uW throughout": (NODE_POWER, slice(None), 0xFFFFFFFF / 1e6, ("no value",)),
    "64 bits of nW": (GPU_POWER, 300, (2**64 - 1) / 1e9, ("no value", "jumped ahead")),
    "16 bits of W": (GPU_POWER, 300, 65_535, ("jumped ahead",)),
    "16 bits of W, often": (GPU_POWER, slice(0, None, 10), 65_535, ("jumped ahead",)),
    "16 bits of dW beside a small machine": (NODE_POWER, 300, 6_553.5, ("jumped ahead",)),
    "655 MW for 15 s": (NODE_POWER, slice(200, 350), 655e6, ("jumped ahead",)),
    "energy read as power": (GPU_POWER, slice(None), 20.9e6, ("jumped ahead",)),
    "64 kW": (NODE_POWER, slice(100, 120), 64_000, ("jumped ahead",)),
    "zeros in half of it": (NODE_POWER, slice(300, None), 0, ("no value",)),
    "every second one": (domain("c", ("host1/cpu:0",), **POWER), slice(None, None, 2), 0, ("no value",)),
    "twice its supply": (SUPPLIED, 300, 601, ("more than its supply",)),
    "far more than its supply": (SUPPLIED, 300, 6_000, ("jumped ahead", "more than its supply")),
    # and what stays
    "a spike above its nameplate": (SUPPLIED, 300, 590, ()),
    "a spike of three times": (NODE_POWER, slice(300, 303), 900, ()),
    "a server that boots": (NODE_POWER, slice(100, None), 2_900, ()),
    "a device at work for a moment": (GPU_POWER, slice(300, 305), 990, ()),
    "a card that sleeps": (GPU_POWER, slice(20, 580), 0, ()),
    "a spare supply": (SPARE, slice(None), 0, ()),
    "a spare supply that takes over": (SPARE, slice(300), 0, ()),
    "8 bits": (NODE_POWER, slice(0, None, 2), 255, ()),
    "16 bits of mW": (NODE_POWER, slice(0, None, 2), 65.535, ()),
    "18 bits of mW": (GPU_POWER, slice(None), 262.143, ()),
}


@pytest.mark.parametrize(("source", "where", "watts", "reasons"), ABSURD.values(), ids=ABSURD)
def test_power_that_no_machine_draws_has_no_joules(
    source: Domain, where: Any, watts: float, reasons: tuple[str, ...]
) -> None:
    """150 W, and other readings."""
    drawn = np.full(len(EVERY), 150.0)
    drawn[where] = watts
    read = reading(source, samples(EVERY, drawn, took_ns=0), 1 * S, 60 * S)
    assert (read.reasons, read.valid) == (reasons, not reasons)


@given(st.floats(1, 2_000), st.floats(0, 0.3), st.floats(1, 15), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_a_machine_whose_load_comes_and_goes_has_joules(level: float, noise: float, peak: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    watts = level * draw.uniform(1 - noise, 1 + noise, len(EVERY))
    watts[draw.random(len(EVERY)) < 0.1] *= peak
    assert reading(NODE_POWER, samples(EVERY, watts, took_ns=0), 1 * S, 60 * S).reasons == ()


@pytest.mark.parametrize("quantity", ["power", "energy"])
def test_a_source_that_is_slower_than_the_window_is_not_called_stuck(quantity: str) -> None:
    """A plug with a new value each minute, polled each second."""
    at = np.arange(0, 300 * S, S)
    values = (at // (60 * S) * 7.0) % 10 + 100 if quantity == "power" else at // (60 * S) * 6_000.0
    plug = domain("p", ("node",), boundary="wall", quantity=quantity, method="external")
    read = reading(plug, samples(at, values), 130 * S, 170 * S)
    assert (read.reasons, read.period_ns, read.needed_ns) == (("window too short",), 60 * S, 2_400 * S)
    stuck = np.where(at < 120 * S, at / S % 7 + 100, 100.0)
    assert reading(plug, samples(at, np.cumsum(stuck * (at < 120 * S))), 130 * S, 250 * S).reasons == ("stood still",)


def test_a_window_has_40_periods_or_no_joules_and_below_200_it_is_told() -> None:
    power = domain(**POWER, averaging_ns=1 * S)
    seen = samples(EVERY, watts_at(EVERY))
    assert reading(domain(), counter(), 1 * S, 4_990 * MS).reasons == ("window too short",)
    assert reading(domain(), counter(), 1 * S, 5_010 * MS).reasons == ("short window",)
    assert reading(domain(), counter(), 1 * S, 5_010 * MS).valid
    assert reading(power, seen, 1 * S, 40 * S).reasons == ("window too short",), "a mean over a second"
    assert reading(power, seen, 1 * S, 42 * S).reasons == ("short window",)


def test_the_edges_are_extrapolated_by_one_period_and_no_more() -> None:
    seen = counter(at=np.arange(10 * S, 60 * S + 1, 100 * MS))
    read = reading(domain(), seen, 9_905 * MS, 60_095 * MS)
    assert read.joules == pytest.approx(joules_until(60_095 * MS) - joules_until(9_905 * MS), rel=1e-3)
    assert reading(domain(), seen, 9_800 * MS, 50 * S).reasons == ("began late",)
    assert reading(domain(), seen, 20 * S, 60_200 * MS).reasons == ("ended early",)
    assert reading(domain(), seen, 20 * S, 60_200 * MS, lost=True).reasons == ("lost",)


@pytest.mark.parametrize(("lost", "why"), [(False, "no samples"), (True, "lost")])
def test_a_window_without_samples_says_why(lost: bool, why: str) -> None:
    for at in ([], [5, 6]):
        assert reading(domain(), samples(np.array(at) * S, [3.0] * len(at)), 10 * S, 90 * S, lost).reasons == (why,)
    assert reading(domain(), samples([15 * S, 16 * S], [3.0, 3.0]), 10 * S, 90 * S).reasons == ("stood still",)
    assert reading(domain(), None, 10 * S, 90 * S).reasons == ("no samples",)


def test_no_window_is_misuse() -> None:
    with pytest.raises(ValueError, match="does not last"):
        reading(domain(), counter(), 5 * S, 5 * S)


def valid(id: str, joules: float = 100.0) -> EnergyReading:
    return EnergyReading(id, 0, 10 * S, "counter", joules, edge_uncertainty=0.01)


def summed(
    *domains: Domain,
    broken: tuple[str, ...] = (),
    slow: tuple[str, ...] = (),
    devices: tuple[Device, ...] = (CPU, GPU),
    absent: tuple[Absent, ...] = (),
) -> MachineEnergy:
    readings = {each.id: valid(each.id) for each in domains}
    readings |= {id: EnergyReading(id, 0, 10 * S, "counter", None, ("gap",)) for id in broken}
    readings |= {id: EnergyReading(id, 0, 10 * S, "counter", None, ("window too short",)) for id in slow}
    return boundary(domains, readings, needed(devices), absent=absent)


PACKAGE = domain("package")
DRAM = domain("dram", ("memory",))
BOARD = domain("gpu", ("gpu:a",))
BOARD_POWER = domain("gpu-power", ("gpu:a",), parent="gpu", **POWER)
MODULE = domain("module", ("cpu:0", "gpu:a"), **POWER)
PLATFORM = domain("psys", ("platform",), boundary="node")
NODE = domain("bmc", ("cpu:0", "gpu:a", "memory", "node"), boundary="node", **POWER)
WALL = domain("plug", ("cpu:0", "gpu:a", "memory", "node"), boundary="wall", quantity="power", method="external")


@pytest.mark.parametrize(
    ("domains", "broken", "boundary", "added"),
    [
        ((PACKAGE, DRAM, BOARD, BOARD_POWER, PLATFORM), (), "devices", {"package", "dram", "gpu"}),
        ((PACKAGE, DRAM, BOARD, BOARD_POWER), ("gpu",), "devices", {"package", "dram", "gpu-power"}),
        ((PACKAGE, BOARD, NODE), (), "node", {"bmc"}),
        ((PACKAGE, BOARD, NODE, WALL), (), "wall", {"plug"}),
        ((PACKAGE, BOARD, WALL), ("plug",), "devices", {"package", "gpu"}),
        ((MODULE, BOARD.model_copy(update={"parent": "module"})), (), "devices", {"module"}),
        ((PACKAGE, DRAM), (), None, {"package", "dram"}),
        ((PLATFORM,), (), None, set()),
        ((), (), None, set()),
    ],
)
def test_the_widest_boundary_that_holds_every_device_decides(
    domains: tuple[Domain, ...], broken: tuple[str, ...], boundary: str | None, added: set[str]
) -> None:
    found = summed(*domains, broken=broken)
    assert (found.boundary, set(found.domains)) == (boundary, added)
    assert found.joules == (None if boundary is None else 100.0 * len(added))


def test_a_class_holds_all_that_was_announced_for_it_or_has_no_joules() -> None:
    """Without the memory's counter the devices would seem to use less."""
    whole = (PACKAGE, DRAM, BOARD, BOARD_POWER)
    assert (summed(*whole).joules, summed(*whole).lost) == (300, ())
    found = summed(*whole, broken=("dram",))
    assert (found.boundary, found.joules, found.reasons) == (None, None, ("dram: gap",))
    assert summed(*whole, slow=("dram",)).joules is None, "too slow for the window is missing too"
    halves = (domain("dram-0", ("memory/1-of-2",)), domain("dram-1", ("memory/2-of-2",)))
    assert summed(PACKAGE, BOARD, *halves).joules == 400
    assert summed(PACKAGE, BOARD, *halves, broken=("dram-1",)).reasons == ("dram-1: gap",)
    module = domain("module", ("cpu:0", "gpu:a", "memory"), **POWER)
    inside = [each.model_copy(update={"parent": "module"}) for each in (PACKAGE, BOARD)]
    assert summed(module, *inside).domains == ("module",)
    assert summed(module, *inside, broken=("module",)).reasons == ("module: gap",), "its parts hold no memory"


def test_what_the_machine_announces_and_nothing_can_read_keeps_the_class_devices_from_joules() -> None:
    hidden = Absent(kind="meter", name="rapl dram", reason="only root may read it", covers=("memory",))
    told = "rapl dram is not read, and the boundary devices must hold it"
    assert summed(PACKAGE, BOARD, absent=(hidden,)).reasons == (told,)
    assert summed(PACKAGE, BOARD, DRAM, absent=(hidden,)).joules == 300, "something else covers it"
    assert summed(PACKAGE, BOARD, NODE, absent=(hidden,)).boundary == "node", "which holds the memory anyway"
    other = Absent(kind="meter", name="nvml", reason="no driver")
    assert summed(PACKAGE, BOARD, absent=(other,)).joules == 200


def test_a_source_that_should_have_been_added_and_was_lost_is_named_even_if_another_one_has_joules() -> None:
    assert summed(PACKAGE, BOARD, BOARD_POWER, broken=("gpu",)).lost == ("gpu: gap",)
    found = summed(PACKAGE, BOARD, WALL, broken=("plug",))
    assert (found.boundary, found.lost) == ("devices", ("plug: gap",))
    found = summed(PACKAGE, BOARD, WALL, slow=("plug",))
    assert (found.boundary, found.lost) == ("devices", ()), "one that is too slow for these windows was not lost"
    assert summed(PACKAGE, BOARD, BOARD_POWER, broken=("gpu-power",)).lost == (), "nothing would have added it"


def test_energies_of_several_runs_make_a_figure_only_if_they_are_of_the_same_sources() -> None:
    whole = (PACKAGE, BOARD, BOARD_POWER, WALL)
    fine, no_wall = summed(*whole), summed(*whole, broken=("plug",))
    too_slow, none = summed(*whole, slow=("plug",)), summed(PACKAGE)
    assert unmeasured({}) == unmeasured({"mixed.1": fine, "mixed.2": fine}) is None
    assert unmeasured({"mixed.1": too_slow, "mixed.2": too_slow}) is None, "all of them are of the devices"
    assert unmeasured({"mixed.1": no_wall}) == "plug: gap"
    assert unmeasured({"mixed.1": fine, "mixed.2": no_wall}) == "mixed.2: plug: gap"
    assert unmeasured({"mixed.1": none, "mixed.2": fine}) == "mixed.1: gpu:a is not metered"
    assert unmeasured({"mixed.1": fine, "mixed.2": too_slow}) == (
        "the runs have the energy of different boundaries or sources: "
        "mixed.1 wall (plug); mixed.2 devices (gpu, package)"
    )


LEFT = WALL.model_copy(update={"id": "left", "covers": ("node/1-of-2",)})
RIGHT = WALL.model_copy(update={"id": "right", "covers": ("node/2-of-2",)})


def test_walls_that_are_declared_as_parts_of_one_machine_are_added() -> None:
    assert summed(LEFT, RIGHT, PACKAGE, BOARD).domains == ("left", "right")
    assert summed(LEFT, RIGHT).joules == 200
    assert summed(LEFT, RIGHT).unmetered == ()
    found = summed(LEFT, PACKAGE, BOARD)
    assert (found.boundary, found.joules) == ("devices", 200), "half a machine is no wall"
    found = summed(LEFT, RIGHT, PACKAGE, BOARD, broken=("right",))
    assert (found.boundary, found.lost) == ("devices", ("right: gap",))
    assert summed(LEFT, RIGHT, broken=("right",)).joules is None


def test_two_walls_that_are_not_declared_as_parts_have_no_joules() -> None:
    """They may be two readings of one socket, or the two power supplies of one machine."""
    other = WALL.model_copy(update={"id": "plug-2"})
    for walls in ((WALL, other), (WALL, LEFT), (LEFT, LEFT.model_copy(update={"id": "left-2"}), RIGHT)):
        found = summed(*walls, PACKAGE, BOARD)
        assert (found.boundary, found.joules) == (None, None)
        [reason] = found.reasons
        assert reason.startswith(f"{walls[0].id} and {walls[1].id} both claim to meter the same thing")
    inner = domain("rack", WALL.covers, boundary="wall", quantity="power", method="external", parent="plug")
    assert summed(WALL, inner).joules == 100, "one is told to be inside the other"
    assert summed(WALL, NODE, NODE.model_copy(update={"id": "bmc-2"})).joules == 100, "no wall, and not an owner's word"
    slot, cable = (
        domain(id, ("gpu:a",), quantity="power", method="external", boundary="devices") for id in ("slot", "cable")
    )
    assert summed(PACKAGE, slot, cable).joules is None
    assert summed(WALL, PACKAGE, slot, cable).joules == 100, "the wall holds what they meter, whatever that is"
    parts = [each.model_copy(update={"covers": (f"gpu:a/{n}-of-2",)}) for n, each in enumerate((slot, cable), 1)]
    assert summed(PACKAGE, *parts).joules == 300


def test_what_is_not_metered_is_named() -> None:
    found = summed(PACKAGE, domain("model", ("gpu:a",), method="modelled"))
    assert (found.boundary, found.joules, found.unmetered) == (None, None, ("gpu:a",))
    assert found.reasons == ("gpu:a is not metered", "model is modelled, not measured")
    assert summed(PACKAGE, BOARD, broken=("gpu",)).reasons == ("gpu: gap",), "it has a meter, which was not read well"
    assert summed(WALL, broken=("plug",)).reasons == ("plug: gap",)
    assert summed(PACKAGE, broken=("package",)).reasons == ("gpu:a is not metered", "package: gap")
    assert summed(PACKAGE, BOARD).unmetered[0] == "memory"
    assert summed(WALL).unmetered == ()


def test_one_machine_has_no_joules_if_no_boundary_holds_all_of_it() -> None:
    shunt = domain("shunt", ("gpu:a",), boundary="node", method="integrated")
    found = summed(PACKAGE, shunt)
    assert (found.joules, found.reasons) == (None, ("different boundaries are never added: the machine by several",))


def test_the_host_counts_even_where_no_adapter_reaches_it() -> None:
    assert summed(BOARD, devices=(GPU,)).unmetered == ("cpu:0",)
    assert summed(devices=()).unmetered == ("cpu:0",)
    assert summed(BOARD, PACKAGE, devices=(GPU,)).boundary == "devices"
    assert summed(WALL.model_copy(update={"covers": ("gpu:a", "node")}), devices=(GPU,)).boundary == "wall"


def test_a_device_in_pieces_is_covered_by_all_of_them() -> None:
    one, two = domain("p0", ("cpu:0/1-of-2",)), domain("p1", ("cpu:0/2-of-2",))
    assert summed(one, two, devices=(CPU,)).joules == 200
    assert summed(one, devices=(CPU,)).unmetered == ("cpu:0",)
    assert summed(one, two, PACKAGE, devices=(CPU,)).joules == 100, "the whole and its pieces are never added"
    sliced = Device(id="cpu:1", kind="cpu", memory_pool="host", parts=("cpu:0",))
    assert summed(one, two, devices=(sliced,)).boundary == "devices"
    assert summed(domain("p", ("cpu:0/0-of-0",)), devices=(CPU,)).boundary is None


def test_a_group_is_metered_by_its_parts_and_a_slice_only_with_the_rest_of_its_device() -> None:
    pair = Device(id="gpu:pair", kind="gpu", memory_pool="pair", parts=("gpu:a", "gpu:b"))
    slice = Device(id="gpu:a1", kind="gpu", memory_pool="a1", parts=("gpu:a/1-of-7",))
    halves = Device(id="cpu:pair", kind="cpu", memory_pool="host", parts=("cpu:0/1-of-2", "cpu:0/2-of-2"))
    a, b, host = domain("a", ("gpu:a",)), domain("b", ("gpu:b",)), domain("cpu")
    assert uncovered((host, a), (CPU, pair, slice)) == ("gpu:pair",)
    assert uncovered((host, a, b), (CPU, pair, slice, halves)) == ()
    assert summed(host, a, b, devices=(CPU, pair, slice, halves)).joules == 300, "each part once"
    told = metered(host, a, b)
    alone = {each.id: device_watts(told, "p", each, 20 * S, 50 * S) for each in (pair, slice, halves, CPU)}
    assert alone["gpu:a1"] is None, "what the other slices draw is in it"
    assert alone["gpu:pair"] == pytest.approx(2 * (alone["cpu:0"] or 0))
    assert alone["cpu:pair"] == alone["cpu:0"]


@pytest.mark.parametrize(("whole", "taken"), [({}, "whole"), (POWER, "part")], ids=["counter", "power"])
def test_what_contains_another_is_not_added_to_it_whatever_it_says_that_it_covers(
    whole: dict[str, Any], taken: str
) -> None:
    tree = (
        domain("whole", ("cpu:0",), **whole),
        domain("middle", ("carrier",), parent="whole", **POWER),
        domain("part", ("gpu:a",), parent="middle"),
    )
    assert summed(*tree).domains == (taken,)


def test_domains_of_a_circle_do_not_hang() -> None:
    one, two = domain("a", parent="b"), domain("b", ("gpu:a",), parent="a")
    assert len(summed(one, two).domains) == 1


def metered(*domains: Domain, seen: Mapping[str, Samples] | None = None) -> Any:
    seen = seen or {each.id: counter(1000.0 * number) for number, each in enumerate(domains)}
    rests = ((0, 10 * S), (60 * S, 70 * S))
    read = Metering(phase="p", begin_ns=0, end_ns=70 * S, cpu_ns=0, idle_ns=rests, samples=seen)
    return result().model_copy(update={"devices": (CPU, GPU), "domains": domains, "meterings": (read,)})


def curve(factor: float) -> Samples:
    return samples(EVERY, factor * joules_until(EVERY))


def test_the_total_of_a_window_its_blocks_and_its_idle_power() -> None:
    seen = {"package": curve(1.2), "gpu": curve(0.8), "gpu-power": samples(EVERY, 0.8 * watts_at(EVERY))}
    whole = metered(PACKAGE, BOARD, BOARD_POWER, seen=seen)
    found = total(whole, "p", 10 * S, 60 * S)
    assert found.joules is not None and found.joules == pytest.approx(
        2 * (joules_until(60 * S) - joules_until(10 * S)), rel=1e-4
    )
    assert found.idle_watts[0] == pytest.approx(2 * joules_until(10 * S) / 10, rel=1e-2)
    edges = np.linspace(10 * S, 60 * S, 101).astype(np.int64)
    cut = blocks(found, whole, "p", edges)
    assert cut is not None and len(cut) == 100 and cut.sum() == pytest.approx(found.joules)
    assert device_watts(whole, "p", GPU, 10 * S, 60 * S) == pytest.approx(found.joules * 0.4 / 50)


def loaded(gpus: int, every: int, window_s: int, power_is: float = 1.0, missed: int = 0) -> MachineEnergy:
    """GPUs of 500 W in the window and 100 W around it, beside a processor of 100 W. Their counters change each 0.1 s
    and are read in each `every`th turn, their powers in each turn of 0.1 s but `missed`."""
    turns = np.arange(10 * (window_s + 20))
    at_ns = turns * 100 * MS + 30 * MS
    joules = 10 * turns + 40 * np.clip(turns - 100, 0, 10 * window_s)
    watts = power_is * (100 + 400 * ((turns >= 100) & (turns < 100 + 10 * window_s)) + turns % 2 - 0.5)
    counted, read = turns % every * (turns < turns[-1]) == 0, (turns < 150) | (turns >= 150 + missed)
    domains, seen = [PACKAGE], {"package": samples(at_ns, 10.0 * turns)}
    for id in map("gpu:{}".format, range(gpus)):
        domains += [domain(f"{id}/j", (id,)), domain(f"{id}/w", (id,), parent=f"{id}/j", **POWER)]
        seen |= {f"{id}/j": samples(at_ns[counted], joules[counted]), f"{id}/w": samples(at_ns[read], watts[read])}
    end_ns = (10 + window_s) * S
    rests = ((0, 10 * S), (end_ns, end_ns + 10 * S))
    drained = Metering(phase="p", begin_ns=0, end_ns=end_ns + 10 * S, cpu_ns=0, idle_ns=rests, samples=seen)
    devices = (CPU, *(but(GPU, id=f"gpu:{n}") for n in range(gpus)))
    return total(but(result(), devices=devices, domains=tuple(domains), meterings=(drained,)), "p", 10 * S, end_ns)


@pytest.mark.parametrize(
    ("gpus", "every", "added", "widths"),
    [
        (2, 1, "j", {10: 0.0037, 30: 0.0012, 75: 0.0005, 90: 0.0004, 480: 0.0001}),
        (2, 19, "w", {10: 0.0073, 30: 0.0024, 75: 0.0010, 90: 0.0008, 480: 0.0002}),
        (8, 117, "w", {10: 0.0078, 30: 0.0026, 75: 0.0010, 90: 0.0009, 480: 0.0002}),
    ],
    ids=["cheap", "two H200", "eight H200"],
)
def test_the_joules_of_a_counter_that_is_read_seldom_are_its_powers(
    gpus: int, every: int, added: str, widths: dict[int, float]
) -> None:
    """The windows of 90 s and of 480 s have 40 reads of a counter, which may be off by so much more at both edges."""
    found = {str(window_s): loaded(gpus, every, window_s) for window_s in widths}
    for (window_s, width), each in zip(widths.items(), found.values(), strict=True):
        assert {id[-1] for id in each.domains if id != "package"} == {added}
        low, high = each.of_edges
        assert each.joules and low <= each.joules / (100 + 500 * gpus) / window_s <= high
        assert high - low == pytest.approx(width, abs=1e-4)
        assert each.idle_watts == pytest.approx((100 + 100 * gpus,) * 2, rel=0.02)
    assert unmeasured(found | {"torn": loaded(gpus, every, 480, missed=5)}) is None, "a counter misses nothing in a gap"
    assert "gpu:0/j" in loaded(gpus, every, 480, power_is=1.06).domains, "it does not confirm its counter"


def test_without_a_meter_there_is_a_reason_and_no_number() -> None:
    unread = "the meters were not read in its phase"
    for whole, reason in ((result(), "no meter was read"), (metered(PACKAGE), unread)):
        found = total(whole, "elsewhere", 10 * S, 60 * S)
        assert (found.boundary, found.joules, found.reasons) == (None, None, (reason,))
        assert blocks(found, whole, "elsewhere", np.array([10 * S, 60 * S])) is None
        assert device_watts(whole, "elsewhere", GPU, 10 * S, 60 * S) is None
    sliced = Device(id="cpu:0a", kind="cpu", memory_pool="host", slice_of="cpu:0")
    assert uncovered((PACKAGE,), (sliced,)) == (), "a slice is metered with its whole"
    assert device_watts(metered(PACKAGE), "p", sliced, 10 * S, 60 * S) is None, "whose joules are not its own"
    assert device_watts(metered(MODULE), "p", GPU, 10 * S, 60 * S) is None, "a module is nobody's own"


def test_parts_of_one_phase_have_no_joules_of_their_own_also_where_only_one_was_recorded() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    part, *others = (each for each in told.records if each.scenario == "mixed")
    assert others and of_record(told, part) is None
    alone = told.model_copy(update={"records": (part,)})
    assert of_record(alone, part) is None, "the others may have run and failed"
    assert of_record(alone.model_copy(update={"phases": ()}), part) is not None


def test_only_what_is_outside_of_the_machine_sees_the_wall() -> None:
    assert domain("plug", boundary="wall", method="external").boundary == "wall"
    for method in ("counter", "integrated", "modelled"):
        with pytest.raises(
            ValueError, match=f"domain plug has the boundary wall, but {method} reads inside the machine"
        ):
            domain("plug", boundary="wall", method=method)


def test_one_reading_under_two_names_is_not_added() -> None:
    """As where a kernel shows a socket's counter in both of its zones."""
    one, two = domain("p0", ("cpu:0/1-of-2",)), domain("p1", ("cpu:0/2-of-2",))

    def read(first: Samples, second: Samples) -> MachineEnergy:
        whole = metered(one, two, seen={"p0": first, "p1": second}).model_copy(update={"devices": (CPU,)})
        return total(whole, "p", 10 * S, 60 * S)

    assert read(curve(1), curve(1)).reasons == ("p0 and p1 show one and the same reading",)
    assert read(curve(1), curve(1)).joules is None
    just_after = np.where(np.arange(len(EVERY)) % 20, joules_until(EVERY), joules_until(EVERY + MS))
    assert read(curve(1), samples(EVERY + 30_000, just_after)).joules is None, "some updates came between the two reads"
    assert read(curve(1), curve(1.001)).joules is not None, "two sockets under one load"
    assert read(curve(1), samples(EVERY, 20.0 * EVERY / S)).joules is not None


@pytest.mark.parametrize("levels", [(300.0,), (300.0, 299.0), (11.0, 12.0, 13.0)])
def test_two_devices_at_their_power_limits_are_not_one(levels: tuple[float, ...]) -> None:
    """Whole watts, and mostly the same."""
    draws = [np.random.default_rng(seed).choice(levels, len(EVERY)) for seed in (1, 2)]
    assert not same(*(samples(EVERY, each) for each in draws))
    assert not same(samples(EVERY, draws[0]), samples(EVERY, draws[0])), "too few values to tell"
    assert not same(samples([], []), samples(EVERY, draws[0]))
    assert not same(samples([5], [1]), samples([5], [1]))


def test_any_two_sources_of_the_same_thing_are_compared() -> None:
    slot = domain("slot", ("gpu:a",), quantity="power", method="external")
    second = domain("gpu-2", ("gpu:a",))
    pkg = domain("pkg", ("gpu:a",), parent="gpu")

    def seen(*domains: Domain, **joules: float) -> list[tuple[str, str, float]]:
        readings = {each.id: valid(each.id, joules.get(each.id.replace("-", "_"), 100.0)) for each in domains}
        return [(one.id, other.id, round(by, 2)) for one, other, by in disagreements(domains, readings)]

    assert seen(BOARD, slot, slot=200) == [("gpu", "slot", 1.0)]
    assert seen(BOARD, second, gpu_2=200) == [("gpu", "gpu-2", 1.0)]
    assert seen(BOARD_POWER, slot, slot=50) == [("gpu-power", "slot", -0.5)]
    assert seen(PACKAGE, BOARD, BOARD_POWER, package=50, gpu_power=108) == [("gpu", "gpu-power", 0.08)]
    assert seen(BOARD, pkg, pkg=50) == [], "a card may use more than the package on it"
    assert seen(BOARD, pkg, pkg=150) == [("gpu", "pkg", 0.5)]
    assert seen(BOARD, PACKAGE, gpu=5) == [] == seen(NODE, WALL, bmc=5), "they are different things"
    assert seen(NODE, NODE.model_copy(update={"id": "acpi"}), bmc=200) == [("acpi", "bmc", 1.0)]


def test_a_whole_that_uses_less_than_its_parts_is_found() -> None:
    def seen(*domains: Domain, **joules: float) -> set[str]:
        return {*less_than_parts(domains, {each.id: valid(each.id, joules[each.id]) for each in domains})}

    parts = {"package": 100, "gpu": 100}
    assert seen(WALL, PACKAGE, BOARD, plug=189, **parts) == {"plug"}
    assert seen(WALL, PACKAGE, BOARD, plug=190, **parts) == set(), "5 % is what two sources may differ by"
    assert seen(LEFT, RIGHT, PACKAGE, BOARD, left=90, right=60, **parts) == {"left", "right"}
    assert seen(LEFT, RIGHT, PACKAGE, BOARD, left=150, right=60, **parts) == set()
    assert seen(MODULE, PACKAGE, BOARD, module=150, **parts) == {"module"}
    assert seen(MODULE, PACKAGE, BOARD, module=250, **parts) == set()
    assert seen(WALL, NODE, PACKAGE, BOARD, plug=300, bmc=150, **parts) == {"bmc"}
    narrow = WALL.model_copy(update={"covers": ("cpu:0", "gpu:a")})
    assert seen(narrow, PACKAGE, BOARD, plug=150, **parts) == {"plug"}, "it need not say that it holds the whole host"
    assert seen(narrow, PACKAGE, DRAM, plug=150, package=100, dram=100) == set(), "nor that it holds the memory"


def test_the_power_over_time_has_holes_where_it_is_not_known() -> None:
    at, watts = power(domain(), counter())
    assert at.tolist() == EVERY.tolist() and watts == pytest.approx(watts_at((at[1:] + at[:-1]) / 2), rel=1e-2)
    assert power(domain(**POWER), samples(EVERY, watts_at(EVERY), took_ns=0))[0].tolist() == EVERY.tolist()
    values = joules_until(EVERY)
    values[EVERY > 30 * S] -= values[301]
    assert np.isnan(power(domain(), samples(EVERY, values))[1]).sum() == 1
    assert len(power(domain(), samples([], []))[1]) == 0


# Machines of few and small draws: they are fast, so there are ten times as many, and one that fails shrinks.
MACHINES = settings(max_examples=10 * settings().max_examples)
LEAVES = ("cpu:0", "gpu:a", "gpu:b", "memory", "npu:c", "gpu:d")
METHODS = (("counter", "energy"), ("integrated", "power"), ("external", "power"), ("modelled", "power"))


def grown(draw: st.DrawFn, covers: tuple[str, ...], parent: str | None, name: str) -> Iterator[Domain]:
    """A containment tree over some leaves, with rival meters of the same things; a meter may not know another's."""
    if draw(st.booleans()):
        method, quantity = draw(st.sampled_from(METHODS))
        knows = draw(st.booleans())
        yield domain(name, covers, method=method, quantity=quantity, parent=parent if knows else None)
        parent = name
    if len(covers) > 1:
        cut = draw(st.integers(1, len(covers) - 1))
        yield from grown(draw, covers[:cut], parent, f"{name}l")
        yield from grown(draw, covers[cut:], parent, f"{name}r")
    elif draw(st.booleans()):
        yield domain(f"{name}x", covers, parent=parent, **POWER)


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, int], tuple[Domain, ...], set[str]]:
    """Leaves of known joules, domains over them, and the domains that could not be read."""
    leaves = draw(st.permutations(LEAVES))[: draw(st.integers(1, len(LEAVES)))]
    joules = {leaf: draw(st.integers(1, 1000)) for leaf in leaves}
    domains = [*grown(draw, tuple(leaves), None, "d")] or [domain("d", tuple(leaves))]
    if draw(st.integers(0, 2)) == 2:
        domains.append(domain("plug", tuple(leaves), boundary="wall", quantity="power", method="external"))
    if draw(st.booleans()):
        domains.reverse()
    broken = draw(st.sets(st.sampled_from([each.id for each in domains]), max_size=len(domains) // 2))
    return joules, tuple(domains), broken


@MACHINES
@given(trees())
@pytest.mark.slow
def test_no_joule_is_counted_twice(made: tuple[dict[str, int], tuple[Domain, ...], set[str]]) -> None:
    joules, domains, broken = made
    readings = {
        each.id: EnergyReading(each.id, 0, S, each.method, None, ("gap",))
        if each.id in broken
        else EnergyReading(each.id, 0, S, each.method, sum(joules[leaf] for leaf in each.covers))
        for each in domains
    }
    devices = tuple(
        Device(id=leaf, kind="cpu", memory_pool="host" if leaf == "cpu:0" else leaf)
        for leaf in joules
        if leaf != "memory"
    )
    found = boundary(domains, readings, needed(devices))
    known = {each.id: each for each in domains}
    added = [known[id] for id in found.domains]
    covered = [leaf for each in added for leaf in each.covers]
    assert len(covered) == len(set(covered))
    assert not any(each.method == "modelled" or each.id in broken for each in added)
    if found.joules is None:
        assert found.boundary is None and found.reasons
    else:
        assert {device.id for device in devices} <= set(covered)
        assert found.joules == sum(joules[leaf] for leaf in set(covered))
        assert {each.boundary for each in added} == {found.boundary}
    if "cpu:0" in joules and any(each.boundary == "wall" and each.id not in broken for each in domains):
        assert found.boundary == "wall", "which covers all leaves"


@MACHINES
@given(
    curve=st.lists(st.tuples(st.integers(50, 20_000), st.integers(0, 1000)), min_size=1, max_size=8),
    period_ms=st.integers(5, 400),
    offset_ms=st.integers(-400, 400),
    power=st.booleans(),
    wrap=st.none() | st.integers(2_000, 100_000),
    edges=st.sets(st.integers(0, 1000), min_size=3, max_size=3),
)
@pytest.mark.slow
def test_joules_are_true_and_add_up_or_there_are_none(
    curve: list[tuple[int, int]], period_ms: int, offset_ms: int, power: bool, wrap: int | None, edges: set[int]
) -> None:
    """curve: how many ms a device draws how many watts, read as power or as a counter that may wrap. edges: of two
    windows, one after the other, in thousandths of the whole."""
    lengths, watts = np.array([length_ms for length_ms, _ in curve]) * MS, [watts for _, watts in curve]
    period, wrap = period_ms * MS, None if power else wrap
    turns = np.concatenate(([0], np.cumsum(lengths)))
    sums = np.concatenate(([0.0], np.cumsum(lengths / S * watts)))
    at = np.arange(0, turns[-1] + period, period) + offset_ms * MS % (2 * period) - period
    truth = np.interp(at, turns, sums)
    each = domain(wrap_joules=wrap, **(POWER if power else {}))
    slopes = np.append(np.diff(sums) / np.diff(turns) * S, 0.0)
    values = slopes[np.clip(np.searchsorted(turns, at, side="right") - 1, 0, len(slopes) - 1)] if power else truth
    seen = samples(at, values if wrap is None else values % wrap, took_ns=0 if power else 1000)
    begin, middle, end = (round(part / 1000 * int(turns[-1])) for part in sorted(edges))
    whole = reading(each, seen, begin, end)
    assert whole.valid or whole.reasons
    if whole.joules is None:
        return
    assert whole.joules >= 0
    true = np.interp(end, turns, sums) - np.interp(begin, turns, sums)
    rough = len(turns) if power else 2  # of power each turn of the curve is off by up to half a period
    assert abs(whole.joules - true) <= rough * period / S * 1000 + 1e-6 * sums[-1] + 1e-6
    parts = [reading(each, seen, begin, middle).joules, reading(each, seen, middle, end).joules]
    if parts[0] is not None and parts[1] is not None:
        assert parts[0] + parts[1] == pytest.approx(whole.joules, rel=1e-6, abs=1e-5)
    rising = cumulative(each, seen, np.array([begin, middle, end]))
    assert rising is not None and (np.diff(rising) >= -1e-9).all()
    assert rising[-1] == pytest.approx(whole.joules)
