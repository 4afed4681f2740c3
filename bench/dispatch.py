"""The cost of dispatching: throughput of a device alone in a mixed phase, over that of its own closed loop.

Run: python -m bench.dispatch [SUITE] [TIER] [BATCH] [BLOCKS]    (resnet50 smoke 1 3)
     python -m bench.dispatch window    (simulated: the share of λ* that a window of known length reaches)

Both use real workers of the onnxruntime adapter, in alternating blocks. In the closed loop the worker issues its own
feeds; in the mixed phase the parent requests each one. Both count wall time, including the making of feeds. The goal is
at least 0.99.

The simulation has one device with the rates of a 2-core Xeon with AMX on edge-1. It compares windows whose end the
dispatcher knows, so that the last long feed begins late, with windows whose end it does not know.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path

from mixmark.harness.contracts.schema import Limits, Mix, Phase, Rate, Record, Route, Share, Task
from mixmark.harness.discover import setup
from mixmark.harness.discover.config import Config
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.measure import mixed
from mixmark.harness.measure import solo as cell
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement as place
from mixmark.harness.plan import presets
from mixmark.harness.plugins import registry
from tests.fakes.machine import Machine

SECONDS = 8.0
EDGE_1 = {"llm": 50.2, "diffusion": 5.53, "dlrm": 234_000.0, "resnet50": 917.0}
FEEDS = {"llm": 128, "diffusion": 1, "dlrm": 1024, "resnet50": 4}
RATES = {
    "16 bits": {"llm": 10.0, "diffusion": 0.75, "dlrm": 27_000.0, "resnet50": 240.0},
    "16 bits, half as fast": {"llm": 5.0, "diffusion": 0.37, "dlrm": 13_500.0, "resnet50": 120.0},
    "4 bits": {"llm": 36.0, "diffusion": 0.75, "dlrm": 27_000.0, "resnet50": 400.0},
}
WINDOWS_S = range(90, 241, 15)
NOISE = 0.02  # standard deviation of a feed's rate


def rate_per_s(record: Record) -> float:
    """Units over the wall time from the first issue to the last mark."""
    done = record.completions
    if done is None:
        raise SystemExit(f"{record.key}: {record.error}")
    return int(done.units.sum()) * 1e9 / int(done.yielded_ns.max() - done.issued_ns.min())


def reached(rates: dict[str, float], length_s: int, known: bool) -> float:
    """The share of λ* that a simulated window reaches."""
    noise = random.Random(length_s)
    machine = Machine(
        EDGE_1,
        {(suite, "cpu:0"): rate for suite, rate in rates.items()},
        {(suite, "cpu:0"): units for suite, units in FEEDS.items()},
        lambda pair, at_s: rates[pair[0]] * noise.gauss(1, NOISE),
        marks={"llm": FEEDS["llm"]},
        end_s=length_s if known else None,
    )
    machine.run(length_s)
    machine.end_ns = length_s * presets.SECOND
    return min(map(machine.stamped, EDGE_1)) / length_s / machine.placement.bound_per_s


def windows() -> None:
    for name, rates in RATES.items():
        shares = [[reached(rates, length_s, known) for length_s in WINDOWS_S] for known in (False, True)]
        before, after = (f"{statistics.mean(each):.3f} ({min(each):.3f} to {max(each):.3f})" for each in shares)
        print(f"  {name:<22} end not known {before}   end known {after}   of λ*")


def main() -> None:
    if sys.argv[1:] == ["window"]:
        return windows()
    words = [*sys.argv[1:], *("resnet50", "smoke", "1", "3")[len(sys.argv) - 1 :]]
    suite, tier, batch, blocks = words[0], words[1], int(words[2]), int(words[3])
    found = setup.find_devices(["onnxruntime"], Config())
    target = next(target for target in found.targets if target.device.id == "cpu:0")
    equipment = Equipment(
        adapters=setup.choose_adapters(["onnxruntime"], Config()),
        suites=registry.find("suites"),
        suite_options={},
        units={suite: "unit"},
        devices={("cpu:0", "onnxruntime"): target.device},
        config=Config(),
        seed=1,
        timeout_s=600,
    )
    ns = int(SECONDS * presets.SECOND)
    limits = Limits(warmup_ns=presets.SECOND, search_ns=0, min_ns=ns, max_ns=ns, min_feeds=1)
    route = Route.model_validate(
        {
            "suite": suite,
            "tier": tier,
            "suite_version": registry.find("suites")[suite].load().version,
            "device": "cpu:0",
            "adapter": "onnxruntime",
            "precision": "fp32",
        }
    )
    rate = Rate(suite=suite, device="cpu:0", adapter="onnxruntime", precision="fp32", batch=batch, units_per_s=1)
    bundle = Mix.model_validate({"name": "one", "tier": tier, "units": {suite: 1}})
    solo = Share(key="solo", route=route, scenario="single-stream", batch=batch, limits=limits)
    shared = solo.model_copy(update={"key": "mixed", "scenario": "mixed"})
    placement = place.place(bundle.units, [rate], [target.device])
    alone = Phase(name="solo", purpose="solo", tasks=(Task(device="cpu:0", shares=(solo,)),))
    together = Phase(
        name="mixed", purpose="mixed", tasks=(Task(device="cpu:0", shares=(shared,)),), placement=placement
    )
    drive = mixed.local_driver(bundle, together, lambda units, rates: place.place(units, rates, [target.device]))
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "raw").mkdir()
        for _ in range(blocks):
            [record] = attend(alone, equipment, Path(folder), cell.drive)
            own = rate_per_s(record)
            [record] = attend(together, equipment, Path(folder), drive, on_ready=drive.on_ready)
            pairs.append((own, rate_per_s(record)))
            print(f"  closed loop {own:10.2f}/s   mixed phase {pairs[-1][1]:10.2f}/s")
    ratio = statistics.median(dispatched / own for own, dispatched in pairs)
    print(f"{suite} {tier} batch {batch}: ratio {ratio:.4f}, median of {blocks}  (goal ≥ 0.99)")


if __name__ == "__main__":
    main()
