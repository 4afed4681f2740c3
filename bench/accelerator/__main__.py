"""Everything that a machine with an accelerator can show, in parts of at most nine minutes each.

    python -m bench.accelerator FOLDER                 lists the parts, their steps, and which steps are done
    python -m bench.accelerator FOLDER PART …          runs these parts, and skips the steps that are done
    options: --device ID, by default the first device that is no CPU; --minutes N, by default 9, for this call: the
    limits of its steps grow with it; --tier, by default edge: smoke is for rehearsals

A part is a function that yields steps, and a step is a command; PARTS has the time limit of a part's steps. What a step
prints is FOLDER/PART/STEP.txt, what it records lies beside it, and FOLDER/steps.json has its exit code and its seconds.
A step is started only if its whole limit is left and the folder is below MOST_BYTES; one that was not started, was
refused or was stopped by its limit or a Ctrl-C, is done by the next call, which resumes a run. A step that fails stops
no other. Smoke and kit run on every accelerator by every adapter that reaches it, the other parts on the chosen device.

Each mix-N is one whole result with one mixed window, by one adapter on the CPU and the accelerator together, and `join`
makes an entry of the three. A mix takes 17 minutes at edge on an H100 with 16 cores: by --minutes 20 in one call, which
may rank, or by two calls, the second of which resumes it and cannot rank.

The part `caps` changes the power limit of the device and restores it; it runs only where that is allowed. Its report
says of each cap whether the meters, NVML's counters among them, show that the device kept it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.accelerator import ABSENT, absent
from mixmark.harness.cli.show import of_devices

MOST_MINUTES = 9
MOST_BYTES = 60 << 20
GRACE_S = 20
"""After its limit a step is interrupted, as by Ctrl-C, and it is killed after this time."""
STOPPED, MISSING, INTERRUPTED = 124, 127, 130
AGAIN = (ABSENT, STOPPED, MISSING, INTERRUPTED)
"""The exit codes of a step that the next call does: a refused one measured nothing, and its reason may be gone."""
WHOLE_S = 60 * MOST_MINUTES - 2 * GRACE_S
"""The limit of a step that takes a whole call: of the rest, the list of devices may take GRACE_S."""
SUITES = ("llm", "diffusion", "dlrm", "resnet50")


@dataclass(frozen=True)
class Step:
    name: str
    command: tuple[str, ...]
    limit_s: int

    @property
    def words(self) -> tuple[str, ...]:
        """The command. A run that an earlier call stopped is resumed."""
        words = self.command
        folder = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if folder is None or not (folder / "journal.jsonl").exists():
            return words
        return mixmark("run", "--resume", str(folder), *of_devices(words, "--mix", "--model", "--inputs"))


@dataclass(frozen=True)
class Reached:
    """The accelerators, each with the adapters that reach it, and the one that is chosen."""

    device: str
    routes: Sequence[tuple[str, str]]
    """Device and adapter, of every accelerator."""
    both: str
    """An adapter that reaches the chosen device, and the CPU if there is one."""
    engines: Mapping[str, Mapping[str, str]]
    """For each suite the precisions that it has on the chosen device, each with an adapter that offers it."""
    folder: Path
    tier: str

    @property
    def adapters(self) -> Sequence[str]:
        return [adapter for device, adapter in self.routes if device == self.device]

    def run(self, part: str, name: str, *words: str) -> tuple[str, ...]:
        return mixmark(
            "run", *words, *(() if "--tier" in words else ("--tier", self.tier)), "--out", self.out(part, name)
        )

    def out(self, part: str, name: str) -> str:
        return str(self.folder / part / name)


def mixmark(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "mixmark", *words)


def bench(module: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"bench.{module}", *words)


def reached(listing: dict[str, Any], wanted: str | None, folder: Path, tier: str) -> Reached:
    """listing: as `mixmark devices --json` prints it. Raises SystemExit if there is no such device."""
    devices = {device["id"]: device for device in listing["devices"]}
    accelerators = [id for id, device in devices.items() if device["kind"] != "cpu"]
    if not (wanted or accelerators):
        absent("no adapter finds an accelerator: `mixmark devices` says why")
    id = wanted or accelerators[0]
    if id not in devices:
        absent(f"no device {id}; there are {', '.join(devices)}")
    pairs = [(route["device"], route["adapter"]) for route in listing["routes"]]
    routes = [pair for pair in pairs if pair[0] in (*accelerators, id)]
    by = [adapter for device, adapter in routes if device == id]
    cpus = [adapter for device, adapter in pairs if devices[device]["kind"] == "cpu"]
    both = next((each for each in by if each in cpus), by[0])
    engines: dict[str, dict[str, str]] = {suite: {} for suite in SUITES}
    for route in sorted(listing["routes"], key=lambda route: bool(route["adapter"] != both)):
        for suite, found in engines.items() if route["device"] == id else ():
            for precision in route["precisions_by_suite"].get(suite, route["precisions"]):
                found.setdefault(precision, route["adapter"])
    return Reached(id, routes, both, engines, folder, tier)


Named = Iterator[tuple[str, tuple[str, ...]]]
"""The name of each step and its command."""


def look(on: Reached) -> Named:
    yield "devices", mixmark("devices")
    yield "doctor", mixmark("doctor")
    yield "meters", mixmark("meters", "--load", "5")
    yield "driver", ("nvidia-smi", "-q")
    yield "packages", (sys.executable, "-m", "pip", "list")


def smoke(on: Reached) -> Named:
    for name, *route in _routes(on):
        yield name, on.run("smoke", name, *route, "--all-routes", "--tier", "smoke")


def kit(on: Reached) -> Named:
    for name, _, adapter, *device in _routes(on):
        yield name, mixmark("check", "adapter", adapter, *device, "--record", on.out("kit", f"{name}.json"))


def counters(on: Reached) -> Named:
    yield "nvml", bench("accelerator.counters", on.out("counters", "nvml.json"))


def trials(on: Reached) -> Named:
    for trial in ("threads", "ceilings", "tf32"):
        yield trial, bench("accelerator.trials", trial, on.device, on.adapters[0], on.tier)


def mix(name: str, on: Reached) -> Named:
    yield "run", on.run(name, "run", "--adapter", on.both)


def join(on: Reached) -> Named:
    made = [on.out(mix, "run") for mix in MIXES]
    who = ("--org", "rehearsal", "--system", "this machine", "--availability", "research")
    what = ("--form-factor", "other", "--origin", "not declared", "--out", on.out("join", "entries"))
    yield "entry", mixmark("submit", *made, *who, *what)


def suites(on: Reached) -> Named:
    for suite, engines in on.engines.items():
        for precision, adapter in engines.items():
            name, route = f"{suite}-{precision}", ("--adapter", adapter, "--precision", precision)
            yield name, on.run("suites", name, *route, "--mix", "none", "--device", on.device, "--suite", suite)


def routes(on: Reached) -> Named:
    for suite in SUITES:
        yield suite, on.run("routes", suite, "--all-routes", "--mix", "none", "--device", on.device, "--suite", suite)


def separation(on: Reached) -> Named:
    for size in dict.fromkeys(("smoke", on.tier)):
        for suite, found in on.engines.items():
            engines = [f"{adapter}:{precision}" for precision, adapter in found.items()]
            words = (suite, size, "--only", "none", "--on", on.device, "--engines", *engines)
            yield f"{suite}-{size}", bench("separation", *words)


def own(on: Reached) -> Named:
    """A small network as an ONNX file, by each adapter that takes such a file."""
    file = on.out("own", "model")
    yield "file", bench("accelerator.peers", "file", file)
    for adapter in sorted({"onnxruntime", "openvino"}.intersection(on.adapters)):
        model = ("--model", f"{file}.onnx", "--inputs", f"{file}.npz", "--mix", "none")
        yield adapter, on.run("own", adapter, *model, "--adapter", adapter, "--device", on.device)


def peers(on: Reached) -> Named:
    """Bare loops of engines."""
    for peer in ("eager", "compile", "CUDAExecutionProvider", "TensorrtExecutionProvider"):
        for suite in ("resnet50", "dlrm"):
            yield f"{peer}-{suite}", bench("accelerator.peers", peer, suite, on.tier)


def paths(on: Reached) -> Named:
    yield "paths", on.run("paths", "paths", "--adapter", on.both, "--mix", "none", "--suite", "dlrm", "--paths")


def split(on: Reached) -> Named:
    yield "split", on.run("split", "split", "--adapter", on.both, "--pipeline", "split")


def caps(on: Reached) -> Named:
    yield "caps", on.run("caps", "caps", "--adapter", on.both, "--power-cap", "100,70,50")


def _routes(on: Reached) -> Iterator[tuple[str, ...]]:
    """A name, and the words that choose the adapter and the device, of each route to an accelerator."""
    for device, adapter in on.routes:
        name = adapter if device == on.device else f"{adapter}-{device.replace(':', '-')}"
        yield name, "--adapter", adapter, "--device", device


MIXES = ("mix-1", "mix-2", "mix-3")
PARTS: Mapping[str, tuple[int, Callable[[Reached], Named]]] = {
    "look": (60, look),
    "smoke": (150, smoke),
    "kit": (180, kit),
    "counters": (60, counters),
    "trials": (120, trials),
    **{name: (WHOLE_S, partial(mix, name)) for name in MIXES},
    "join": (60, join),
    "suites": (120, suites),
    "routes": (240, routes),
    "separation": (120, separation),
    "own": (120, own),
    "peers": (60, peers),
    "paths": (150, paths),
    "split": (WHOLE_S, split),
    "caps": (WHOLE_S, caps),
}
"""In the order in which they are worth their time: the seconds of MOST_MINUTES that a step may take, and the steps."""


class Steps:
    """The steps that are done, in steps.json."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "steps.json"
        noted = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.done = {name: [int(code), float(seconds)] for name, (code, seconds) in noted.items()}

    def note(self, name: str, code: int, seconds: float) -> None:
        self.done[name] = [code, round(seconds, 1)]
        self._file.write_text(json.dumps(self.done, indent=1))

    def is_done(self, name: str) -> bool:
        return name in self.done and self.done[name][0] not in AGAIN


def run(step: Step, limit_s: float, prints: Path) -> int:
    """Runs a step in a process group of its own, which its limit or a Ctrl-C ends. Returns its exit code, STOPPED or
    INTERRUPTED."""
    prints.parent.mkdir(parents=True, exist_ok=True)
    with prints.open("a") as file:
        try:
            process = subprocess.Popen(step.words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            file.write(f"{error}\n")
            return MISSING
    try:
        return process.wait(limit_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as ended:
        code = STOPPED if isinstance(ended, subprocess.TimeoutExpired) else INTERRUPTED
    for number, patience_s in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt, ProcessLookupError):
            os.killpg(process.pid, number)
            process.wait(patience_s)
            break
    return code


def chosen(on: Reached, names: Sequence[str]) -> Iterator[tuple[str, Step]]:
    """The steps of these parts; PART/STEP is one step. Raises SystemExit for a name that is none."""
    for name in names:
        part, _, wanted = name.partition("/")
        limit_s, steps = PARTS.get(part, (0, lambda on: iter(())))
        found = [Step(step, command, limit_s) for step, command in steps(on) if wanted in ("", step)]
        if not found and (part not in PARTS or wanted):
            absent(f"no part {name}; there are {', '.join(PARTS)}")
        yield from ((f"{part}/{step.name}", step) for step in found)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Without a traceback where a folder or a file is not what it should be, and at a Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        call()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (OSError, subprocess.SubprocessError) as error:
        absent(str(error))


def call() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--device")
    parser.add_argument("--minutes", type=float, default=MOST_MINUTES)
    parser.add_argument("--tier", choices=("smoke", "edge", "server"), default="edge")
    asked = parser.parse_intermixed_args()
    began_s, folder = time.monotonic(), asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "devices.json"
    listing = listed.read_bytes() if listed.exists() else subprocess.check_output(mixmark("devices", "--json"))
    try:
        on, steps = reached(json.loads(listing), asked.device, folder, asked.tier), Steps(folder)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        absent(f"{listed} or steps.json beside it is damaged ({error!r}): delete it")
    listed.write_bytes(listing)  # once an accelerator is there: a driver may be installed after the first call
    if not asked.parts:
        for part, (limit_s, _) in PARTS.items():
            done = [f"{step.name}{' (done)' if steps.is_done(name) else ''}" for name, step in chosen(on, [part])]
            print(f"{part:12}{limit_s:4} s a step: {', '.join(done)}")
    for name, step in chosen(on, asked.parts):
        left_s = asked.minutes * 60 - (time.monotonic() - began_s)
        limit_s = step.limit_s * asked.minutes / MOST_MINUTES
        if steps.is_done(name):
            print(f"{name}: done before", flush=True)
        elif left_s < limit_s:
            print(f"{name}: not started, {left_s:.0f} s are left", flush=True)
        elif size_of(folder) > MOST_BYTES:
            print(f"{name}: not started, the folder is full", flush=True)
        else:
            begin_s, prints = time.monotonic(), folder / f"{name}.txt"
            code = run(step, limit_s, prints)
            steps.note(name, code, time.monotonic() - begin_s)
            words = prints.read_text(errors="replace").strip().splitlines()
            print(f"{name}: exit {code}, {steps.done[name][1]} s: {words[-1] if words else ''}", flush=True)
            if code == INTERRUPTED:
                raise KeyboardInterrupt
    print(f"{size_of(folder) / 2**20:.1f} MiB in {folder}")


if __name__ == "__main__":
    main()
