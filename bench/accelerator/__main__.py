"""Everything that a machine with an accelerator can show, in parts of at most nine minutes each.

    python -m bench.accelerator FOLDER                 lists the parts, their steps, and which steps are done
    python -m bench.accelerator FOLDER PART …          runs these parts, and skips the steps that are done
    options: --device ID, by default the first device that is no CPU; --minutes N, by default 9, for this call; --tier,
    by default edge: smoke is for rehearsals

A part is a list of steps, and a step is a command with a time limit. What a step prints is FOLDER/PART/STEP.txt, what
it records lies beside it, and FOLDER/steps.json has its exit code and its seconds. A step is started only if its whole
limit is left; one that was not started, or was stopped, is done by the next call. A step that fails stops no other.

Each mix-N is one whole result with one mixed window, by one adapter on the CPU and the accelerator together. On the
same machine, `mixmark submit FOLDER/mix-*/run` joins three of them. It takes 17 minutes at edge on an H100 with 16
cores: by --minutes 20 in one call, which may rank, or by two calls, the second of which resumes it and cannot rank.

The part `caps` changes the power limit of the device and restores it; it runs only where that is allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_MINUTES = 9
GRACE_S = 20
"""After its limit a step is interrupted, as by Ctrl-C, and it is killed after this time."""
STARTING_S = 60
"""What a call may take before its first step: a step whose limit is the whole call's is started nevertheless."""
STOPPED = 124
SUITES = ("llm", "diffusion", "dlrm", "resnet50")


@dataclass(frozen=True)
class Step:
    name: str
    command: tuple[str, ...]
    limit_s: int
    resumes: Path | None = None
    """The result folder of a run that is continued, if an earlier call stopped it."""

    @property
    def words(self) -> tuple[str, ...]:
        if self.resumes is None or not (self.resumes / "journal.jsonl").exists():
            return self.command
        return mixmark("run", "--resume", str(self.resumes), *self.command[-2:])


@dataclass(frozen=True)
class Reached:
    """The accelerator, and the adapters that reach it, the CPU, and both."""

    device: str
    adapters: Sequence[str]
    on_both: Sequence[str]
    precisions: Sequence[str]


def mixmark(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "mixmark", *words)


def bench(module: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"bench.{module}", *words)


def reached(listing: dict[str, Any], wanted: str | None) -> Reached:
    """listing: as `mixmark devices --json` prints it. Raises SystemExit if no such device is there."""
    devices = {device["id"]: device for device in listing["devices"]}
    accelerators = [id for id, device in devices.items() if device["kind"] != "cpu"]
    if not (wanted or accelerators):
        raise SystemExit("no adapter finds an accelerator: `mixmark devices` says why")
    id = wanted or accelerators[0]
    if id not in devices:
        raise SystemExit(f"no device {id}; there are {', '.join(devices)}")
    by = {kind: [route["adapter"] for route in listing["routes"] if route["device"] == kind] for kind in devices}
    cpu = next((by[each] for each, device in devices.items() if device["kind"] == "cpu"), [])
    return Reached(id, by[id], [each for each in by[id] if each in cpu], devices[id]["precisions"])


def parts(on: Reached, folder: Path, tier: str) -> dict[str, list[Step]]:
    """All parts in the order in which they are worth their time."""
    device = ("--device", on.device)

    def run(part: str, name: str, *words: str, tier: str = tier) -> tuple[str, ...]:
        return mixmark("run", "--tier", tier, *words, "--out", str(folder / part / name))

    found = {
        "look": [
            Step("devices", mixmark("devices"), 60),
            Step("doctor", mixmark("doctor"), 60),
            Step("meters", mixmark("meters", "--load", "5"), 60),
            Step("driver", ("nvidia-smi", "-q"), 20),
            Step("packages", (sys.executable, "-m", "pip", "list"), 30),
        ],
        "smoke": [
            Step(name, run("smoke", name, *device, "--adapter", name, "--all-routes", tier="smoke"), 150)
            for name in on.adapters
        ],
        "kit": [
            Step(
                name, mixmark("check", "adapter", name, *device, "--record", str(folder / "kit" / f"{name}.json")), 180
            )
            for name in on.adapters
        ],
        "counters": [Step("counters", bench("accelerator.counters", str(folder / "counters" / "nvml.json")), 60)],
        "trials": [
            Step(trial, bench("accelerator.trials", trial, on.device, on.adapters[0]), 120)
            for trial in ("threads", "ceilings", "tf32")
        ],
    }
    both, *_ = *on.on_both, *on.adapters
    mixes = (f"mix-{number}" for number in (1, 2, 3))
    found |= {
        mix: [Step("run", (*run(mix, "run"), "--adapter", both), 60 * MOST_MINUTES, folder / mix / "run")]
        for mix in mixes
    }
    alone = ("--mix", "none", *device, "--suite")
    found["suites"] = [
        Step(name, run("suites", name, "--adapter", both, "--precision", precision, *alone, suite), 120)
        for precision in on.precisions[1:]
        for suite in SUITES
        for name in (f"{suite}-{precision}",)
    ]
    found["routes"] = [Step(suite, run("routes", suite, "--all-routes", *alone, suite), 240) for suite in SUITES]
    engines = [f"{both}:{precision}" for precision in on.precisions]
    found["separation"] = [
        Step(name, bench("separation", suite, size, "--only", "none", "--on", on.device, "--engines", *engines), 120)
        for size in dict.fromkeys(("smoke", tier))
        for suite in SUITES
        for name in (f"{suite}-{size}",)
    ]
    together = ("--adapter", both)
    found["together"] = [
        Step("paths", run("together", "paths", *together, "--mix", "none", "--suite", "dlrm", "--paths"), 150),
        Step("split", run("together", "split", *together, "--pipeline", "split"), 60 * MOST_MINUTES),
    ]
    found["caps"] = [Step("caps", run("caps", "caps", *together, "--power-cap", "100,70,50"), 60 * MOST_MINUTES)]
    return found


class Steps:
    """The steps that are done, in steps.json."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "steps.json"
        self.done: dict[str, list[float]] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def note(self, name: str, code: int, seconds: float) -> None:
        self.done[name] = [code, round(seconds, 1)]
        self._file.write_text(json.dumps(self.done, indent=1))

    def is_done(self, name: str) -> bool:
        return name in self.done and self.done[name][0] != STOPPED


def run(step: Step, limit_s: float, prints: Path) -> int:
    """Runs a step in a process group of its own. Returns its exit code, STOPPED if it took longer."""
    prints.parent.mkdir(parents=True, exist_ok=True)
    with prints.open("a") as file:
        try:
            process = subprocess.Popen(step.words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            file.write(f"{error}\n")
            return 127
        for number, patience_s in ((signal.SIGINT, limit_s), (signal.SIGKILL, GRACE_S)):
            try:
                code = process.wait(patience_s)
                return code if number == signal.SIGINT else STOPPED
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, number)
        process.wait()
        return STOPPED


def chosen(plan: dict[str, list[Step]], names: Sequence[str]) -> Iterator[tuple[str, Step]]:
    """The steps of these parts; PART/STEP is one step. Raises SystemExit for a name that is none."""
    for name in names:
        part, _, wanted = name.partition("/")
        steps = [step for step in plan.get(part, ()) if wanted in ("", step.name)]
        if not steps:
            raise SystemExit(f"no part {name}; there are {', '.join(plan)}")
        yield from ((part, step) for step in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--device")
    parser.add_argument("--minutes", type=float, default=MOST_MINUTES)
    parser.add_argument("--tier", choices=("smoke", "edge", "server"), default="edge")
    asked = parser.parse_intermixed_args()
    began_s = time.monotonic()
    asked.folder.mkdir(parents=True, exist_ok=True)
    listed = asked.folder / "devices.json"
    if not listed.exists():
        listed.write_bytes(subprocess.check_output(mixmark("devices", "--json")))
    plan, steps = (
        parts(reached(json.loads(listed.read_text()), asked.device), asked.folder, asked.tier),
        Steps(asked.folder),
    )
    if not asked.parts:
        for part, members in plan.items():
            states = (
                f"{step.name} ({'done' if steps.is_done(f'{part}/{step.name}') else step.limit_s})" for step in members
            )
            print(f"{part:12}{', '.join(states)}")
    for part, step in chosen(plan, asked.parts):
        name = f"{part}/{step.name}"
        left_s = asked.minutes * 60 - (time.monotonic() - began_s)
        if steps.is_done(name):
            print(f"{name}: done before", flush=True)
        elif left_s < min(step.limit_s, asked.minutes * 60 - STARTING_S):
            print(f"{name}: not started, {left_s:.0f} s are left", flush=True)
        else:
            begin_s, prints = time.monotonic(), asked.folder / part / f"{step.name}.txt"
            code = run(step, max(step.limit_s, left_s - GRACE_S) if step.resumes else step.limit_s, prints)
            steps.note(name, code, time.monotonic() - begin_s)
            words = prints.read_text(errors="replace").strip().splitlines()
            print(f"{name}: exit {code}, {steps.done[name][1]} s: {words[-1] if words else ''}", flush=True)
    size = sum(path.stat().st_size for path in asked.folder.rglob("*") if path.is_file())
    print(f"{size / 2**20:.1f} MiB in {asked.folder}")


if __name__ == "__main__":
    main()
