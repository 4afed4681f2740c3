"""The cost of dispatching: throughput of a device alone in a mixed phase, over its throughput in a closed loop.

Run: python -m bench.dispatch [SUITE] [TIER] [BATCH] [BLOCKS]    (resnet50 smoke 1 3)
     python -m bench.dispatch window [PRESET]    (simulated: a window's score over a long window's)

Both use real workers of the onnxruntime adapter, in alternating blocks. In the closed loop the worker issues the feeds;
in the mixed phase the parent requests each feed. Both count wall time, including the making of feeds. The goal is at
least 0.99.

The simulation runs edge-1 on machines from 0.1 to 100 times the rates of a 2-core Xeon and a 2-core EPYC, alone, in
halves, and beside a GPU. A window whose surplus is at most 2 % must show 0.98 to 1.02 of the rate of a long window.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.schema import Device, Limits, Mix, Phase, Placement, Rate, Record, Route, Share, Task
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import mixed
from mixmark.harness.measure.phase import attend
from mixmark.harness.measure.solo import drive as drive_solo
from mixmark.harness.plan import placement as place
from mixmark.harness.plan import presets
from mixmark.harness.plugins import registry
from tests.fakes.machine import Machine

SECONDS = 8.0
EDGE_1 = {"llm": 50.2, "diffusion": 5.53, "dlrm": 234_000.0, "resnet50": 917.0}
FEEDS = {"llm": 128, "diffusion": 1, "dlrm": 1024, "resnet50": 4}
XEON = {"llm": 10.0, "diffusion": 0.75, "dlrm": 27_000.0, "resnet50": 240.0}
EPYC = {"llm": 5.0, "diffusion": 0.2, "dlrm": 9_000.0, "resnet50": 80.0}
GPU = {"llm": 60.0, "diffusion": 3.0, "dlrm": 200_000.0, "resnet50": 2_500.0}
HALF = {suite: rate / 2 for suite, rate in XEON.items()}
MACHINES = {
    "Xeon, 16 bits": {"cpu:0": XEON},
    "Xeon, 4 bits": {"cpu:0": {**XEON, "llm": 36.0, "resnet50": 400.0}},
    "EPYC, 16 bits": {"cpu:0": EPYC},
    "Xeon in halves": {"cpu:0": HALF, "cpu:1": HALF},
    "GPU and Xeon": {"gpu:0": GPU, "cpu:0": XEON},
}
SPEEDS = (0.1, 0.25, 0.5, 1, 2, 4, 10, 100)
MOST_MIXES_PER_S = 2.0  # limit of simulated machines: faster machines have the same windows but take hours
SEEDS = range(5)
NOISE = 0.02  # standard deviation of a feed's rate


def rate_per_s(record: Record) -> float:
    """Units over the wall time from the first issue to the last timestamp."""
    done = record.completions
    if done is None:
        raise SystemExit(f"{record.key}: {record.error}")
    return int(done.units.sum()) * 1e9 / int(done.yielded_ns.max() - done.issued_ns.min())


def simulated(devices: Mapping[str, Mapping[str, float]], speed: float, seed: int) -> Machine:
    """A machine whose routes keep 85 to 100 % of their solo rates in the mix."""
    noise = random.Random(seed)
    rates = {(suite, id): speed * rate for id, own in devices.items() for suite, rate in own.items()}
    kept = {pair: rate * noise.uniform(0.85, 1) for pair, rate in rates.items()}
    quanta = {pair: FEEDS[pair[0]] for pair in rates}
    return Machine(
        EDGE_1, rates, quanta, lambda pair, at_s: kept[pair] * noise.gauss(1, NOISE), marks={"llm": FEEDS["llm"]}
    )


def windows(preset: str) -> None:
    """Prints how far the rates of a preset's windows are from the rate of a window of 60 mixes."""
    limits = presets.PRESETS[preset].mix
    for name, devices in MACHINES.items():
        for speed in SPEEDS:
            found, lasted_s, surplus = [], [], []
            for seed in SEEDS:
                machine, long = (simulated(devices, speed, seed) for _ in range(2))
                if machine.placement.bound_per_s > MOST_MIXES_PER_S:
                    continue
                long_ns = max(limits.max_ns, round(60 / long.placement.bound_per_s * presets.SECOND))
                long_per_s = long.window(limits.model_copy(update={"min_ns": long_ns, "max_ns": 2 * long_ns}))
                found.append(machine.window(limits) / long_per_s)
                lasted_s.append(machine.now_ns / presets.SECOND)
                surplus.append(machine.dispatcher.surplus(machine.now_ns))
            if found:
                print(
                    f"  {name:<14} × {speed:<5g} {statistics.mean(found):.3f} ({min(found):.3f} to {max(found):.3f}) "
                    f"in {min(lasted_s):.0f} to {max(lasted_s):.0f} s, surplus at most {max(surplus) * 100:.1f} %",
                    flush=True,
                )


@dataclass(frozen=True)
class Stand:
    """One suite on the CPU by onnxruntime."""

    equipment: Equipment
    device: Device
    mix: Mix
    alone: Phase
    """The phase with a closed loop."""
    together: Phase
    """The phase with a mix of this suite alone."""

    def plan(self, units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        return place.place(units, rates, [self.device])


def stand(suite: str = "resnet50", tier: str = "smoke", batch: int = 1) -> Stand:
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
    rate = Rate(suite=suite, device="cpu:0", adapter="onnxruntime", precision="fp32", batch=batch, units_per_s=300)
    bundle = Mix.model_validate({"name": "one", "tier": tier, "units": {suite: 1}})
    solo = Share(key="solo", route=route, scenario="single-stream", batch=batch, limits=limits)
    shared = solo.model_copy(update={"key": "mixed", "scenario": "mixed"})
    placement = place.place(bundle.units, [rate], [target.device])
    alone = Phase(name="solo", purpose="solo", tasks=(Task(device="cpu:0", shares=(solo,)),))
    tasks = (Task(device="cpu:0", shares=(shared,)),)
    together = Phase(name="mixed", purpose="mixed", tasks=tasks, placement=placement)
    return Stand(equipment, target.device, bundle, alone, together)


def main() -> None:
    if sys.argv[1:2] == ["window"]:
        return windows(*sys.argv[2:3] or ["quick"])
    words = [*sys.argv[1:], *("resnet50", "smoke", "1", "3")[len(sys.argv) - 1 :]]
    suite, tier, batch, blocks = words[0], words[1], int(words[2]), int(words[3])
    made = stand(suite, tier, batch)
    drive = mixed.local_driver(made.mix, made.together, made.plan)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "raw").mkdir()
        for _ in range(blocks):
            [record] = attend(made.alone, made.equipment, Path(folder), drive_solo)
            own = rate_per_s(record)
            [record] = attend(made.together, made.equipment, Path(folder), drive, on_ready=drive.on_ready)
            pairs.append((own, rate_per_s(record)))
            print(f"  closed loop {own:10.2f}/s   mixed phase {pairs[-1][1]:10.2f}/s")
    ratio = statistics.median(dispatched / own for own, dispatched in pairs)
    print(f"{suite} {tier} batch {batch}: ratio {ratio:.4f}, median of {blocks}  (goal ≥ 0.99)")


if __name__ == "__main__":
    main()
