"""From a source to joules on made-up machines that follow a known power curve: right to 0.1 %, or none with the reason.

No real machine's counters were here: the trees of files and the NVML library are laid out as their documentation says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Meter
from mixmark.harness.contracts.schema import Device, Domain, Metering, Samples
from mixmark.harness.judge.energy.reading import reading
from mixmark.harness.judge.energy.total import CROSS_CHECK, MachineEnergy, disagreements, total
from mixmark.harness.meters.nvml import Nvml
from mixmark.harness.meters.rapl import Rapl
from tests.golden.sample import result
from tests.meters.test_nvml import ONE, REST, Library, found
from tests.meters.test_rapl import CPU, RANGE_UJ, tree

S, MS = 1_000_000_000, 1_000_000
END_NS = 130 * S
WINDOW = (4 * S + 33 * MS, 125 * S + 71 * MS)
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def package_j(at_ns: float) -> float:
    """180 W, and 120 W more or less in a sine of 11 s."""
    seconds = at_ns / S
    return 180 * seconds + 120 * 11 / (2 * math.pi) * (1 - math.cos(2 * math.pi * seconds / 11))


def dram_j(at_ns: float) -> float:
    return 22.5 * at_ns / S


def busy_mw(now_ms: int) -> int:
    """100 W, and 600 W for the middle second of each three."""
    return 600_000 if now_ms // 1000 % 3 == 1 else 100_000


def busy_mj(now_ms: int) -> int:
    """What `busy_mw` adds up to, as the counter shows it: anew each 100 ms."""
    return sum(busy_mw(ms) for ms in range(0, now_ms // 100 * 100, 10)) // 100


HOPPER = replace(REST, energy_mj=busy_mj, instant_mw=busy_mw)


CURVES: dict[str, Callable[[float], float]] = {
    "intel-rapl:0": package_j,
    "intel-rapl:0:0": lambda at_ns: 0.8 * package_j(at_ns),
    "intel-rapl:0:1": dram_j,
    "intel-rapl:1": lambda at_ns: package_j(at_ns) + dram_j(at_ns) + 30 * at_ns / S,
    "intel-rapl-mmio:0": package_j,
}


def sampled(
    meter: Meter, domains: Sequence[Domain], turn: Callable[[int], None], period_ns: int = 100 * MS
) -> Metering:
    """Reads all domains again and again while `turn` sets the machine to a time; one that raises is lost."""
    rows: dict[str, list[tuple[int, float]]] = {each.id: [] for each in domains}
    lost: dict[str, str] = {}
    for at_ns in range(0, END_NS, 100 * MS):
        turn(at_ns)
        for each in domains:
            try:
                rows[each.id] += [] if each.id in lost else [(at_ns, sample.value) for sample in meter.read(each)]
            except (OSError, MixmarkError) as error:
                lost[each.id] = str(error)
    samples = {}
    for id, read in rows.items():
        at, values = np.array([at for at, _ in read], np.int64), np.array([value for _, value in read], np.float64)
        samples[id] = Samples(at, at + 30_000, values)
    return Metering(phase="a", begin_ns=0, end_ns=END_NS, cpu_ns=0, samples=samples, lost=lost)


@contextmanager
def powercap(root: Path) -> Iterator[tuple[Callable[[int], None], dict[str, Callable[[float], float]]]]:
    """A tree of zones, a way to set it to a time, and the curves that it follows, which a test may change."""
    folder = tree(root, ZONES) / "sys/class/powercap"
    curves = dict(CURVES)
    files = {zone: os.open(folder / zone / "energy_uj", os.O_WRONLY) for zone in curves}  # opening takes longest

    def turn(at_ns: int) -> None:
        for zone, curve in curves.items():
            microjoules = round((curve(at_ns) + 255_000) * 1e6)  # it wraps after half a minute
            os.pwrite(files[zone], f"{microjoules % RANGE_UJ:>16}\n".encode(), 0)

    turn(0)
    yield turn, curves
    for file in files.values():
        os.close(file)


def of_the_machine(domains: tuple[Domain, ...], metering: Metering, *devices: Device) -> MachineEnergy:
    whole = result().model_copy(update={"devices": devices, "domains": domains, "meterings": (metering,)})
    return total(whole, "a", *WINDOW)


def read_tree(root: Path, change: Callable[[dict[str, Callable[[float], float]]], None] | None = None) -> MachineEnergy:
    with powercap(root) as (turn, curves):
        if change:
            change(curves)
        meter = Rapl({}, root)
        domains = tuple(each for each in meter.domains([CPU]) if isinstance(each, Domain))
        return of_the_machine(domains, sampled(meter, domains, turn), CPU)


def test_powercap_gives_packages_and_memory_once_through_every_wrap(tmp_path: Path) -> None:
    """psys, core and the MMIO mirror count the same joules again."""
    found = read_tree(tmp_path)
    true = sum(curve(WINDOW[1]) - curve(WINDOW[0]) for curve in (package_j, dram_j))
    assert found.joules == pytest.approx(true, rel=1e-3)
    assert found.boundary == "devices"
    assert set(found.domains) == {"rapl/intel-rapl:0", "rapl/intel-rapl:0:1"}
    assert "memory" not in found.unmetered and "power supply" in found.unmetered


GPU = Device(id=f"gpu:{ONE}", kind="gpu", memory_pool=f"gpu:{ONE}")


def nvml(monkeypatch: pytest.MonkeyPatch, library: Library) -> tuple[Nvml, tuple[Domain, ...]]:
    meter, domains, _ = found(monkeypatch, library, GPU)
    return meter, tuple(domains.values())


def test_nvml_counts_a_trace_to_a_thousandth_and_its_power_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library({ONE: HOPPER})
    meter, domains = nvml(monkeypatch, library)
    metering = sampled(meter, domains, lambda at_ns: setattr(library, "now_ms", at_ns // MS))
    readings = {each.id: reading(each, metering.samples[each.id], *WINDOW) for each in domains}
    counter, power = (readings[each.id] for each in domains)
    true = (busy_mj(WINDOW[1] // MS) - busy_mj(WINDOW[0] // MS)) / 1e3
    assert counter.joules == pytest.approx(true, rel=1e-3)
    assert counter.period_ns == 100 * MS
    assert power.joules == pytest.approx(true, rel=1e-2)
    [(_, _, by)] = disagreements(domains, readings)
    assert abs(by) < CROSS_CHECK
