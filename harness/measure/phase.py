"""A phase, from the canary before it to its records: one measurement for a share alone and for all devices at once.

`attend` does everything but feeding: `cell.drive` and `mix.Drive` do that.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import (
    HOSTED,
    NO_GATE,
    NOT_ASKED,
    Absent,
    Device,
    Failure,
    Phase,
    Record,
    Share,
)
from mixmark.harness.contracts.text import plain
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.discover.machine.canary import canary
from mixmark.harness.discover.machine.sampling import Watch, Watched
from mixmark.harness.measure import audit, feed_overhead
from mixmark.harness.worker import messages
from mixmark.harness.worker.failures import WorkerFailed, failure_of
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.load_generator import made_ahead
from mixmark.harness.worker.outputs import Commitments
from mixmark.harness.worker.process import memory, orphans

SECOND = 1_000_000_000
RESERVE = 0.95  # of the memory that is free: the rest is for everybody else


@dataclass
class Part:
    """A share whose suite is loaded and warm, while it is measured. A drive adds the fields of the record that it
    knows, `completions` among them, or sets `failure`."""

    share: Share
    worker: Worker
    suite: Suite
    """A suite of this process: the worker has another."""
    batch: int
    units: int
    """How many units a feed holds."""
    concurrency: int
    timeout_s: float
    scratch: Path
    stage: Callable[[str], None]
    """Commitments what the worker does."""
    seed: Callable[[], int]
    """Draws the seed of the window."""
    ahead: bool = False
    """Whether the worker makes the next feed while one runs."""
    cores: tuple[int, ...] = ()
    """The cores that the worker is pinned to; empty: it may use any."""
    processes: tuple[int, ...] = ()
    """The processes outside of the worker's tree that work for it."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields of the record, as far as they are known."""
    commitments: Commitments = field(default_factory=Commitments)
    """What the worker tells of its outputs while they are timed."""
    failure: Failure | None = None
    """What ended the part, before or after it had finished feeds."""

    def begin(self, tell: bool) -> int:
        """Draws the seed of the window, now that the worker is warm, and lets it make what feeds are made from.

        tell: whether the worker gets the seed; else it gets each feed's nonce when the feed is due.
        """
        seed = self.fields["seed"] = self.seed()
        begin = messages.Begin(key=self.share.key, pool=seeds.pool(seed), seed=seed if tell else None, ahead=self.ahead)
        self.worker.call(begin, self.timeout_s, self.stage)
        return seed

    def sampling_key(self, full: messages.OutputsFull) -> int:
        """Draws the key that decides which outputs stay, once they outgrow the worker's memory for them."""
        return self.commitments.draw_key(full.done, full.commitment)


Drive = Callable[[Sequence[Part]], None]
"""Feeds the parts of a phase until it is over. What it raises becomes the failure of all parts."""
Ready = Callable[[Sequence[Part]], None]
"""Is called when all parts are loaded and warm, before the machine is watched, and may wait for other hosts. What it
raises becomes the failure of all parts."""


def attend(
    phase: Phase,
    equipment: Equipment,
    folder: Path,
    drive: Drive,
    on_stage: Callable[[Share, str], None] = lambda share, stage: None,
    beside: Sequence[int] = (),
    ready: Ready = lambda parts: None,
) -> list[Record]:
    """Measures a phase and returns a record for each share that finished a feed or failed.

    folder: of the result, in which `raw` is there; logs are added to it. on_stage: told what a share's worker does.
    beside: the processes that read meters, whose CPU time is the harness's own.
    KeyboardInterrupt passes through: the workers are gone then, and no record is made.
    """
    scratch, logs = folder / "scratch", folder / "logs"
    scratch.mkdir(exist_ok=True)
    logs.mkdir(exist_ok=True)
    shares = [share for task in phase.tasks for share in task.shares]
    targets = {(share.route.device, share.route.adapter) for share in shares}
    workers: dict[tuple[str, str], Worker] = {}
    fields: dict[str, dict[str, Any]] = {
        share.key: {"batch": share.batch, "rate_per_s": share.rate_per_s} for share in shares
    }
    parts: list[Part] = []
    unwatched: tuple[Absent, ...] = ()
    seen = [canary()]
    try:
        with contextlib.ExitStack() as stack:
            for share in shares:
                target = share.route.device, share.route.adapter
                name = phase.name if len(targets) == 1 else f"{phase.name}.{'.'.join(target).replace(':', '-')}"
                try:
                    if target not in workers:
                        started = equipment.worker(share.route, scratch, logs / f"{name}.log")
                        workers[target] = stack.enter_context(started)
                    parts.append(_prepared(share, equipment, workers[target], scratch, fields[share.key], on_stage))
                except Exception as error:  # the worker's failure, or what a suite's own code raised in this process
                    fields[share.key]["error"] = failure_of(error)
            if parts:
                watched = _driven(parts, ready, drive, beside)
                seen += watched.blocks
                unwatched = watched.absent
            for part in parts:
                _end(part, folder)
            unclosed = {target: failure for target, worker in workers.items() if (failure := worker.finish())}
            for share in shares:
                failure = unclosed.get((share.route.device, share.route.adapter))
                if failure and not fields[share.key].keys() & {"error", "cut_short"}:
                    fields[share.key]["unclosed"] = failure
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    left_behind = tuple(name for worker in workers.values() for name in worker.left_behind)
    helpers = _names(pid for worker in workers.values() for pid in worker.helpers)
    seen.append(canary())
    return [
        Record.model_validate(
            {
                "key": share.key,
                "phase": phase.name,
                "route": share.route,
                "scenario": share.scenario,
                "run": share.run,
                "unit": equipment.units[share.route.suite],
                "screening": share.limits.screening,
                "peak_pss_bytes": (worker and worker.peak_pss_bytes) or None,
                "conditions": tuple(seen),
                "unwatched": unwatched,
                "left_behind": left_behind,
                "helpers": helpers,
                **fields[share.key],
            }
        )
        for share in shares
        for worker in [workers.get((share.route.device, share.route.adapter))]
        if fields[share.key].keys() & {"completions", "error"}
    ]


def _prepared(
    share: Share,
    equipment: Equipment,
    worker: Worker,
    scratch: Path,
    fields: dict[str, Any],
    on_stage: Callable[[Share, str], None],
) -> Part:
    """Loads the share's suite, finds what the share leaves open, and warms up. Fills in the record's fields."""
    route, limits = share.route, share.limits
    device = equipment.devices[route.device, route.adapter]

    def stage(name: str) -> None:
        on_stage(share, name)

    suite = equipment.suite(route)
    opened = worker.call(
        messages.Open(
            key=share.key,
            device=device.whole,
            suite=equipment.choice(route),
            precision=route.precision,
            scenario=share.scenario,
            free_bytes=_free_bytes(device),
        ),
        equipment.timeout_s,
        stage,
    )
    fields |= dict(opened)
    prepared = worker.call(
        messages.Prepare(
            key=share.key,
            scenario=share.scenario,
            batch=share.batch,
            rate_per_s=share.rate_per_s,
            seed=equipment.drawn(share, "preparation"),
            limits=limits,
        ),
        equipment.timeout_s + (limits.warmup_ns + limits.search_ns) / SECOND,
        stage,
        per_stage=True,  # preparing a batch size has a stage and thus a bound of its own
    )
    fields |= {name: value for name, value in dict(prepared).items() if name != "processes"}
    worker.helpers = (*worker.helpers, *prepared.processes)
    batch = prepared.batch
    if share.batch not in (None, batch):
        message = f"the worker prepared batch {batch}, and batch {share.batch} was asked for"
        raise WorkerFailed(Failure(kind="no result", message=message))
    costs = () if route.hosted else tuple(suite.costs(route.precision, batch))
    fields |= {"costs": costs, "feed_units": suite.units(batch)}
    return Part(
        share=share,
        worker=worker,
        suite=suite,
        batch=batch,
        units=suite.units(batch),
        concurrency=opened.concurrency,
        timeout_s=equipment.timeout_s,
        scratch=scratch,
        stage=stage,
        seed=lambda: equipment.drawn(share, "window"),
        ahead=made_ahead(device, batch),
        cores=device.cores,
        processes=prepared.processes,
        fields=fields,
    )


def _driven(parts: Sequence[Part], ready: Ready, drive: Drive, beside: Sequence[int]) -> Watched:
    """Drives the parts, and returns how the machine fared meanwhile."""
    try:
        ready(parts)
    except Exception as error:
        for part in parts:
            part.failure = part.failure or failure_of(error)
        return Watched((), ())
    pids = dict.fromkeys((*(pid for part in parts for pid in (part.worker.pid, *part.processes)), *beside))
    watch = Watch(tuple(pids), pinned={part.worker.pid: part.cores for part in parts}).start()
    try:
        drive(parts)
    except Exception as error:
        for part in parts:
            part.failure = part.failure or failure_of(error)
    finally:  # while the workers live: afterwards nobody knows what was their own
        watched = watch.stop()
    return watched


def _end(part: Part, folder: Path) -> None:
    """Takes over the outputs and draws those that will be audited. What was measured is kept where its worker failed
    later, and is refused where the worker lived and did not hand over its outputs."""
    fields, share = part.fields, part.share
    if "completions" not in fields:
        if part.failure:
            fields["error"] = part.failure
        return
    if part.failure:
        fields["cut_short"] = part.failure
        cause = WorkerFailed(part.failure)
        fields["unaudited"] = f"the worker was gone before it handed over its outputs: {cause}"
        return
    outputs = part.scratch / f"{share.key}.npz"
    try:
        handed = part.worker.call(messages.HandOver(key=share.key, outputs=str(outputs)), part.timeout_s)
        fields["facts"] = handed.facts
        gate = part.suite.gate(share.route.precision)
        if gate is None or share.route.hosted or not share.limits.audits:
            fields["unaudited"] = HOSTED if share.route.hosted else NOT_ASKED if gate else NO_GATE
            return
        done, into = len(fields["completions"]), audit.kept_at(folder, share.key)
        fields["audit"] = audit.draw(outputs, gate, share.limits.audits, part.batch, done, part.commitments, into)
        if share.scenario not in ("mixed", "probe", "server") and into.exists():
            feeds = map(part.suite.feeds(part.batch, 0), itertools.count())
            fields["feed_overhead_ns"] = feed_overhead.cost_ns(lambda: next(feeds), audit.output_bytes(into))
    except Exception as error:
        del fields["completions"]
        fields["error"] = failure_of(error)


def _names(pids: Iterable[int]) -> tuple[str, ...]:
    """The names of the processes that live, each process once."""
    found = []
    for pid in dict.fromkeys(pids):
        with contextlib.suppress(psutil.Error, ValueError):
            found.append(plain(psutil.Process(pid).name(), orphans.MAX_NAME))
    return tuple(found)


def _free_bytes(device: Device) -> int | None:
    free = memory.available_bytes() if device.in_host_memory else device.memory_bytes
    return None if free is None else int(free * RESERVE)
