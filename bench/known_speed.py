"""The score of machines of known speed: a smoke mix takes exactly 0.5 to 60 s, with real processes and outputs.

Run: python -m bench.known_speed [SECONDS …]    (0.5 1 2 4 8 15 30 60; half a minute to a minute each)

The adapter is ONNX Runtime's with a delay: each unit is yielded at the time that the rate of its suite requires. A
score must be within 2 % of 3600 / SECONDS mixes per hour, or a bracket that contains this rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mixmark.harness.adapters.onnxruntime import OnnxRuntime
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.protocols import Array, Feed, Runner, Suite, Use
from mixmark.harness.contracts.schema import Device
from mixmark.harness.plan import mixes

SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60)
CLOSE = 0.02
LONGEST_IMAGE_S = 0.5  # the mix allows an image of resnet50 2 s
BREAK_S = 0.005  # a feed that begins within this time after the last feed continues its pace, so feeding costs nothing


def rates_per_s(seconds: float) -> dict[str, float]:
    """The units per second of each suite that make a smoke mix last `seconds`: a quarter each, less for resnet50."""
    units = mixes.frozen()["smoke-1"].units
    resnet_s = min(seconds / 4, units["resnet50"] * LONGEST_IMAGE_S)
    others_s = (seconds - resnet_s) / 3
    return {suite: count / (resnet_s if suite == "resnet50" else others_s) for suite, count in units.items()}


class HeldBack:
    """A runner that yields each unit at a fixed rate."""

    concurrency = 1

    def __init__(self, runner: Runner, per_s: float) -> None:
        self._runner, self._per_s = runner, per_s
        self._end_s = 0.0
        self.facts: Mapping[str, str] = runner.facts

    def __call__(self, feed: Feed) -> Iterator[Array]:
        now_s = time.monotonic()
        at_s = self._end_s if now_s - self._end_s < BREAK_S else now_s
        for out in self._runner(feed):
            at_s += len(out) / self._per_s
            time.sleep(max(0.0, at_s - time.monotonic()))
            self._end_s = at_s
            yield out


class KnownSpeed:
    """options: `seconds`, the time of a smoke mix."""

    name = "knownspeed"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rates = rates_per_s(float(options["seconds"]))
        self._inner = OnnxRuntime({})

    def discover(self) -> Iterable[Device]:
        for device in self._inner.discover():
            if device.kind == "cpu":
                yield device.model_copy(update={"precisions": ("fp32",), "precisions_by_suite": {}})

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        with self._inner.open(device, suite, precision, use) as runner:
            yield HeldBack(runner, self._rates[suite.name]) if suite.name in self._rates else runner


def measured(seconds: float, folder: Path) -> Estimate:
    """The figure of TX. Exits if a run has no score."""
    config = folder / "mixmark.toml"
    config.write_text(f'[adapter.knownspeed]\nseconds = "{seconds}"\n')
    out, adapter = folder / f"{seconds}", f"{__file__}:KnownSpeed"
    command = [sys.executable, "-m", "mixmark", "run", "--tier", "smoke", "--adapter", adapter, "--out", str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    report = subprocess.run([*command[:3], "report", str(out), "--json"], capture_output=True, text=True)
    score = json.loads(report.stdout)["score"] if report.returncode in (0, 1) else None
    if not score or not score["mixes_per_hour"]:
        sys.exit(f"no score at {seconds} s a mix:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return Estimate(**score["mixes_per_hour"])


def main() -> None:
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mixmark-known-") as folder:
        for seconds in map(float, sys.argv[1:]) if sys.argv[1:] else SECONDS:
            true, found = 3600 / seconds, measured(seconds, Path(folder))
            estimate, (low, high), bracket = found.estimate, found.ends, found.is_bracket
            held = low * (1 - CLOSE) <= true <= high * (1 + CLOSE) if bracket else abs(estimate / true - 1) <= CLOSE
            missed += not held
            shown = f"{low / true:.3f} to {high / true:.3f}" if bracket else f"{estimate / true:.3f}"
            print(f"{seconds:5g} s a mix: {shown} of the truth: {'ok' if held else 'MISSED'}", flush=True)
    print(f"goal: within {CLOSE:.0%}, or a bracket that contains it: {'ok' if not missed else f'missed {missed}'}")


if __name__ == "__main__":
    main()
