"""The cost of reading meters: CPU time of the reading threads, as a fraction of one core.

Run: python -m bench.metering [SECONDS]

It reads eight domains that cost nothing to read, and eight powercap domains on a made-up tree of files, ten times a
second. A real counter is slower to read than a file in memory (an MSR takes an interrupt on another core, a GPU a call
of its driver), so each result discloses the CPU time of its own metering.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Device, Domain, Metering, Samples
from mixmark.harness.judge.energy.reading import cumulative
from mixmark.harness.machine.config import Config
from mixmark.harness.measure.metering import Meters
from mixmark.harness.meters.rapl import Rapl
from mixmark.harness.plugins.registry import Plugin

GOAL = 0.005
DOMAINS = 8
TIMES = 100
METERS = {"nothing": "EmptyMeter", "tree": "Tree"}
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")


class EmptyMeter:
    """A meter whose domains take no time to read."""

    name = "nothing"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain]:
        for number in range(DOMAINS):
            yield Domain.model_validate(
                {"id": f"nothing/{number}", "meter": self.name, "covers": (f"npu:{number}",), "boundary": "devices"}
                | {"quantity": "energy", "method": "counter", "source": "this benchmark"}
            )

    def read(self, domain: Domain) -> Sequence[Sample]:
        return (Sample(time.monotonic_ns() / 1e7),)


class Tree(Rapl):
    """The powercap meter on a tree of files."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({}, Path(options["root"]))


def tree(root: Path) -> None:
    for number in range(DOMAINS):
        zone = root / f"sys/class/powercap/intel-rapl:{number}"
        zone.mkdir(parents=True)
        for name, text in (("name", f"package-{number}"), ("max_energy_range_uj", "262143328850"), ("energy_uj", "5")):
            (zone / name).write_text(f"{text}\n")


def measured(names: Iterable[str], root: Path, seconds: float) -> Metering:
    found = {name: Plugin("meters", name, f"bench.metering:{METERS[name]}", "bench") for name in names}
    with Meters(Config(meters={"tree": {"root": str(root)}}), (CPU,), found) as meters:
        meters.begin()
        time.sleep(seconds)
        drained = meters.drain("bench")
    assert drained is not None and len(drained.samples) == DOMAINS * len(found)
    return drained


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree(Path(folder))
        for names in (("nothing",), ("tree",), ("nothing", "tree")):
            drained = measured(names, Path(folder), seconds)
            share = drained.cpu_ns / (drained.end_ns - drained.begin_ns)
            reads = sum(len(each.values) for each in drained.samples.values())
            verdict = "met" if share <= GOAL * len(names) else "MISSED"
            print(
                f"{' + '.join(names):<15} {DOMAINS * len(names):>2} domains  {share:7.3%} of one core  "
                f"{drained.cpu_ns / reads / 1000:5.1f} µs a read  goal {GOAL * len(names):.1%} {verdict}"
            )
    at_ns = np.arange(0, 600_000_000_000, 100_000_000)
    domain, samples = next(iter(EmptyMeter({}).domains(()))), Samples(at_ns, at_ns + 40_000, at_ns / 1e7)
    edges_ns = np.linspace(at_ns[0], at_ns[-1], 301).astype(np.int64)
    begin = time.perf_counter()
    for _ in range(TIMES):
        cumulative(domain, samples, edges_ns)
    spent_ms = (time.perf_counter() - begin) / TIMES * 1e3
    print(f"the energy of 300 blocks of 10 minutes takes {spent_ms:.2f} ms a domain")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
