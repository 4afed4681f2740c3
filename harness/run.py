"""Measures one cell: a suite on a device, alone, in a fresh process. A cell that fails costs itself, never the run."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harness import audit, drive, plugins, wire
from harness.audit import Auditor, Sealed
from harness.config import Config
from harness.contracts import Suite
from harness.failures import failure_of
from harness.plugins import Plugin
from harness.schema import Device, Failure, Gate, Phase, Record, Route, ScenarioName, Share, Tier
from harness.watch import memory
from harness.watch.canary import canary
from harness.watch.sampling import Watch
from harness.worker import Worker, load_completions

SECOND = 1_000_000_000
RESERVE = 0.95  # of the memory that is free: the rest is for everybody else


@dataclass(frozen=True)
class Equipment:
    """What the phases are run with."""

    adapters: Mapping[str, Plugin]
    suites: Mapping[str, Plugin]
    suite_options: Mapping[str, Mapping[str, str]]
    """As the suites are built with them: a checkpoint's path included, which the record does not disclose."""
    units: Mapping[str, str]
    devices: Mapping[tuple[str, str], Device]
    """By (device id, adapter): a device as this adapter sees it."""
    config: Config
    seed: int
    timeout_s: float
    """For loading, and for measuring beyond what the share's limits allow; then a worker counts as hung."""

    def choice(self, route: Route) -> wire.SuiteChoice:
        """A route's suite, as a worker builds it."""
        options = dict(self.suite_options.get(route.suite, {}))
        return wire.SuiteChoice(name=route.suite, spec=self.suites[route.suite].spec, tier=route.tier, options=options)

    def suite(self, route: Route) -> Suite:
        """A suite built in this process, which no adapter gets into its hands."""
        return cast(Suite, plugins.suite(**dict(self.choice(route))))

    def feed_seed(self, route: Route, scenario: ScenarioName, run: int) -> int:
        """Alone, all routes of a suite see the same feeds in the same order; in the mixed phase each has its own. No
        scenario or run sees another's, from which an engine that outlives its worker could have kept the answers."""
        place = (route.device, route.adapter) if scenario == "mixed" else ()
        return drive.feed_seed(self.seed, route.suite, scenario, run, *place)

    def worker(self, route: Route, scratch: Path, log: Path) -> Worker:
        """A fresh process for the route's way onto its device, pinned where that is a slice."""
        chosen, device = self.config.adapter(route.adapter), self.devices[route.device, route.adapter]
        return Worker(self.adapters[route.adapter], chosen.options, scratch, log, chosen.python, device.cores)

    def open(self, worker: Worker, share: Share, on_stage: Callable[[str], None]) -> wire.Opened:
        """Loads the share's suite. Raises WorkerFailed."""
        route = share.route
        device = self.devices[route.device, route.adapter]
        request = wire.Open(
            key=share.key,
            device=device.whole,
            suite=self.choice(route),
            precision=route.precision,
            free_bytes=_free_bytes(device),
        )
        return worker.call(request, self.timeout_s, on_stage)

    def auditor(self, folder: Path, tier: Tier) -> Auditor:
        """The reference runs on the CPU; at the server tier on the largest accelerator that its adapter reaches."""
        device = audit.HOST
        if tier == "server":
            reached = [each for (_, adapter), each in self.devices.items() if adapter == audit.REFERENCE]
            fit = [each for each in reached if each.kind != "cpu" and "fp32" in each.precisions]
            device = max(fit, key=lambda each: each.memory_bytes or 0, default=device)
        return Auditor(
            folder,
            lambda record: self.choice(record.route),
            lambda record: self.feed_seed(record.route, record.scenario, record.run),
            device,
            self.timeout_s,
        )


def measure(
    phase: Phase, share: Share, equipment: Equipment, folder: Path, on_stage: Callable[[str], None] = lambda stage: None
) -> Record:
    """One cell in a fresh process. What goes wrong becomes the record's error."""
    route = share.route
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    stamps, answers = scratch / "stamps.npz", scratch / "answers.npz"
    outcome: dict[str, Any] = {"batch": share.batch, "rate_per_s": share.rate_per_s}
    seen = [canary()]
    worker: Worker | None = None

    try:
        suite = equipment.suite(route)
        with equipment.worker(route, scratch, logs / f"{share.key}.log") as worker:
            opened = equipment.open(worker, share, on_stage)
            outcome |= dict(opened)
            watch = Watch((worker.pid,)).start()  # before the window, so that starting it disturbs none of it
            longest_ns = share.limits.warmup_ns + share.limits.search_ns + share.limits.max_ns
            try:
                request = wire.Measure(
                    key=share.key,
                    scenario=share.scenario,
                    batch=share.batch,
                    rate_per_s=share.rate_per_s,
                    seed=equipment.feed_seed(route, share.scenario, share.run),
                    limits=share.limits,
                    out=str(stamps),
                    answers=str(answers),
                )
                measured = worker.call(request, equipment.timeout_s + longest_ns / SECOND, on_stage)
            finally:  # while the worker lives: afterwards nobody knows what was its own
                watched = watch.stop()
                seen += watched.blocks
                outcome["unwatched"] = watched.absent
            batch = measured.batch
            outcome |= {**dict(measured), "completions": load_completions(stamps)}
            outcome |= {
                "costs": tuple(suite.costs(route.precision, batch)),
                "feed_units": suite.units(batch),
                "latency_limits": suite.latency,
                "bracket_ns": (worker.stages_ns["measuring"], worker.stages_ns["measured"]),
            }
            seal, done = worker.seal, len(outcome["completions"])

            def sealed(digests: Sequence[bytes]) -> bool:
                return drive.seal(digests) == seal

            gate = suite.gate(route.precision)
            outcome |= drawn(gate, share, batch, done, sealed, answers, folder)
    except (ValueError, TypeError, OSError, EOFError) as error:
        outcome["error"] = Failure(kind="no result", message=f"the worker's stamps cannot be used: {error}")
    except Exception as error:  # the worker's failure, or what a suite's own code raised in this process
        outcome["error"] = failure_of(error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    seen.append(canary())
    return Record.model_validate(
        {
            "key": share.key,
            "phase": phase.name,
            "route": route,
            "scenario": share.scenario,
            "run": share.run,
            "unit": equipment.units[route.suite],
            "peak_pss_bytes": (worker and worker.peak_pss_bytes) or None,
            "conditions": tuple(seen),
            **outcome,
        }
    )


def drawn(
    gate: Gate | None, share: Share, batch: int, done: int, sealed: Sealed, answers: Path, folder: Path
) -> dict[str, Any]:
    """The audit, drawn from what the worker handed over, or why there is none."""
    if gate is None or not share.limits.audits:
        return {"unaudited": f"{share.route.suite} has no gate" if gate is None else "not asked for"}
    into = audit.kept_at(folder, share.key)
    return {"audit": audit.draw(answers, gate, share.limits.audits, batch, done, sealed, into)}


def checkpoint_label(path: Path) -> str:
    """Names a checkpoint without its folder: file names, sizes and the first and last MiB of each, hashed.

    Not a hash of every byte: that would take minutes for a large one.
    """
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for each in files:
        size = each.stat().st_size
        digest.update(f"{each.relative_to(path) if path.is_dir() else each.name} {size}\n".encode())
        with each.open("rb") as file:
            digest.update(file.read(1 << 20))
            file.seek(max(0, size - (1 << 20)))
            digest.update(file.read(1 << 20))
    return f"{path.name} sampled-sha256:{digest.hexdigest()[:16]}"


def _free_bytes(device: Device) -> int | None:
    free = memory.available_bytes() if device.memory_pool == "host" else device.memory_bytes
    return None if free is None else int(free * RESERVE)


def command_line() -> tuple[str, ...]:
    """The options of this run without the values that may be paths."""
    return tuple(word if word.startswith("-") or "/" not in word else "<path>" for word in sys.argv[1:])
