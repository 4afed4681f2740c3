"""Measures a phase, from the canary before it to its records: one share alone, or all devices at once.

`attend` does everything but feeding, which `solo.drive` and `mixed.MixDriver` do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Completion, Conditions, Device, Failure, Phase, Record, Share
from mixmark.harness.contracts.text import plain
from mixmark.harness.machine.sampling import Watch, Watched, canary
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import audit
from mixmark.harness.measure.record_draft import RecordDraft
from mixmark.harness.record.files import explained
from mixmark.harness.resources import memory
from mixmark.harness.resources.psutils import UNKNOWN, known
from mixmark.harness.worker.failures import WorkerFailed, failure_of, refuse_full_disk
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.load_generator import made_ahead
from mixmark.harness.worker.messages import AdapterCalls, LoopChoice, Prepared
from mixmark.harness.worker.outputs import Commitments
from mixmark.harness.worker.plugin_process import SuiteModel
from mixmark.harness.worker.process import orphans

SECOND = 1_000_000_000
RESERVE = 0.95  # of the free memory: the rest is for other processes


@dataclass
class Part:
    """A share whose suite is loaded and warm, while it is measured. A driver adds facts to the draft, `completions`
    among them, or sets `failure`."""

    share: Share
    name: str
    """What the worker calls it, in messages and in files: its number in the phase. A key names the phase, and a worker
    that knew its phase could be slow in that alone."""
    draft: RecordDraft
    worker: Worker
    suite: SuiteModel
    """The parent's: the worker has another."""
    batch: int
    units: int
    """The units in a feed."""
    concurrency: int
    timeout_s: float
    scratch: Path
    stage: Callable[[str], None]
    """Gets what the worker does."""
    seed: Callable[[], int]
    """Draws the seed of the window."""
    ahead: bool = False
    """Whether the worker makes the next feed while one runs."""
    feed_ns: int = 0
    """The longest time of a feed while the worker warmed up."""
    cores: tuple[int, ...] = ()
    """The cores that the worker is pinned to; empty: it may use any."""
    processes: tuple[int, ...] = ()
    """The processes outside of the worker's tree that work for it."""
    commitments: Commitments = field(default_factory=Commitments)
    """What the worker commits to while it is timed."""
    failure: Failure | None = None
    """What ended the part, before or after it had finished feeds."""

    @property
    def outputs(self) -> Path:
        """The file to which the worker writes its outputs."""
        return self.scratch / f"{self.name}.npz"

    def begin(self, loop: LoopChoice | None = None) -> int:
        """Draws the seed of the window, now that the worker is warm, and lets the worker make the pool of its feeds.
        The worker does not get the seed yet. loop: issues the feeds in the worker in place of its own."""
        seed = self.draft.seed = self.seed()
        begin = self.worker.call(AdapterCalls.begin, self.timeout_s, self.stage)
        begin(key=self.name, pool=seeds.pool(seed), ahead=self.ahead, loop=loop)
        return seed


def stamped(due_ns: int, begun_ns: int, yields: Sequence[int], first_ns: int | None, ended_ns: int) -> Completion:
    """A feed by the parent's clock: it begins when it could be known and ends when its digest arrived.

    begun_ns: when its turn came; a closed loop's feed is due then. yields: timestamps of the worker and units in turn.
    first_ns: when the digest of the first yield arrived; None if there is one yield. The yields between are
    self-reported by the worker, moved into that time. Raises ValueError if these cannot be timestamps.
    """
    times_ns, units = list(yields[0::2]), list(yields[1::2])
    if not units or len(units) != len(times_ns) or min(units) <= 0:
        raise ValueError("a yield without units")
    if times_ns != sorted(times_ns):
        raise ValueError("time runs backwards inside a feed")
    if (first_ns is None) != (len(units) == 1):
        raise ValueError("a feed of several yields has a first one, which is reported")
    from_ns = begun_ns if first_ns is None else first_ns
    if not begun_ns <= from_ns <= ended_ns:
        raise ValueError("a feed ended before its turn came")
    inside_ns = [min(max(each, from_ns), ended_ns) for each in times_ns]
    if first_ns is not None:
        inside_ns[0] = first_ns
    inside_ns[-1] = ended_ns
    return Completion(due_ns, begun_ns, tuple(zip(inside_ns, units, strict=True)))


Driver = Callable[[Sequence[Part]], None]
"""Feeds the parts of a phase until it is over. An error that it raises becomes the failure of all parts."""
OnReady = Callable[[Sequence[Part]], None]
"""Is called when all parts are loaded and warm, before the machine is watched, and may wait for other hosts. An error
that it raises becomes the failure of all parts."""


def attend(
    phase: Phase,
    equipment: Equipment,
    folder: Path,
    drive: Driver,
    on_stage: Callable[[Share, str], None] = lambda share, stage: None,
    beside: Sequence[int] = (),
    on_ready: OnReady = lambda parts: None,
) -> list[Record]:
    """Measures a phase and returns a record for each share that finished a feed or failed.

    folder: of the result; it has a folder `raw`, and logs are added to it. on_stage: gets what a share's worker does.
    beside: the processes that serve the phase beside its workers, such as a policy's: their CPU time is the run's own.
    On KeyboardInterrupt, which passes through, the workers are gone and no record is made. Raises ResultError if a disk
    is full or the folder cannot be written.
    """
    attended = _Attended(phase, equipment, folder, on_stage)
    with explained(f"cannot write to {folder}"):
        attended.scratch.mkdir(exist_ok=True)
        attended.logs.mkdir(exist_ok=True)
    seen = [canary()]
    watched = Watched((), ())
    try:
        with ExitStack() as stack:
            attended.load(stack)
            if attended.parts:
                watched = _driven(attended.parts, on_ready, drive, beside)
            for part in attended.parts:
                _hand_over(part)
            attended.close()
        for part in attended.parts:  # no worker can change them any more
            _keep(part, folder)
    finally:
        shutil.rmtree(attended.scratch, ignore_errors=True)
    return attended.records(watched, (*seen, *watched.blocks, canary()))


def _target(share: Share) -> tuple[str, str]:
    """The share's device and adapter: all shares of a target have one worker."""
    return share.route.device, share.route.adapter


class _Attended:
    """A phase while it is measured, with the workers of its shares."""

    def __init__(
        self, phase: Phase, equipment: Equipment, folder: Path, on_stage: Callable[[Share, str], None]
    ) -> None:
        self._phase, self._equipment, self._on_stage = phase, equipment, on_stage
        self.scratch, self.logs = folder / "scratch", folder / "logs"
        units = equipment.units
        self._drafts = {share.key: RecordDraft.of(share, phase, units[share.route.suite]) for share in phase.shares}
        self._workers: dict[tuple[str, str], Worker] = {}
        """The workers by device and adapter."""
        self._opening: dict[str, threading.Lock] = {}
        """Held while a suite is opened, by the memory pool."""
        self._loaded: dict[str, Part] = {}

    @property
    def parts(self) -> list[Part]:
        """The parts that are loaded, in the order of their shares."""
        return [self._loaded[share.key] for share in self._phase.shares if share.key in self._loaded]

    def load(self, stack: ExitStack) -> None:
        """Loads the suites of all shares, each in the worker of its target, which `stack` ends.

        Devices load at the same time. Those that share a memory, such as the host's, open one suite after the other, as
        each learns how much of it is free; one warms up while another one opens the next suite.
        """
        devices: dict[str, list[Share]] = {}
        for share in self._phase.shares:
            with self._noting_errors(share):
                # In this thread: a worker ends with the thread that started it.
                self._start(share, stack)
                device = self._equipment.devices[share.route.device, share.route.adapter]
                self._opening.setdefault(device.memory_pool, threading.Lock())
                devices.setdefault(device.id, []).append(share)
        if len(devices) <= 1:
            for shares in devices.values():
                self._load(shares)
            return
        with ThreadPoolExecutor(len(devices)) as threads:
            try:
                list(threads.map(self._load, devices.values()))
            except BaseException:
                for worker in self._workers.values():
                    worker.kill()
                raise

    def _start(self, share: Share, stack: ExitStack) -> None:
        target = _target(share)
        if target not in self._workers:
            started = len(list(self.logs.glob("[0-9]*.log")))
            log = self.logs / f"{started:03d}.{'.'.join(target).replace(':', '-')}.log"  # as `Part.name`, no phase
            self._workers[target] = stack.enter_context(self._equipment.worker(share.route, self.scratch, log))

    def _load(self, shares: Sequence[Share]) -> None:
        """Loads suites one after the other."""
        for share in shares:
            with self._noting_errors(share):
                self._loaded[share.key] = self._prepared(share)

    def _prepared(self, share: Share) -> Part:
        """Loads the share's suite and warms it up. Raises WorkerFailed."""
        route, equipment, draft = share.route, self._equipment, self._drafts[share.key]
        name, worker = str(self._phase.shares.index(share)), self._workers[_target(share)]
        device, suite = equipment.devices[_target(share)], equipment.suite(route)
        stage = partial(self._on_stage, share)
        prepared = self._warm(share, name, stage)
        batch = prepared.batch
        draft.costs = () if route.hosted else tuple(suite.costs(route.precision, batch))
        draft.feed_units = suite.units(batch)
        return Part(
            share=share,
            name=name,
            draft=draft,
            worker=worker,
            suite=suite,
            batch=batch,
            units=draft.feed_units,
            concurrency=draft.concurrency,
            timeout_s=equipment.timeout_s,
            scratch=self.scratch,
            stage=stage,
            seed=lambda: equipment.drawn(share, "window"),
            ahead=made_ahead(device, batch),
            feed_ns=prepared.feed_ns,
            cores=device.cores,
            processes=prepared.processes,
        )

    def _warm(self, share: Share, name: str, stage: Callable[[str], None]) -> Prepared:
        """Opens the share's suite, searches for the batch or the rate that the share leaves open, and warms up."""
        route, limits, equipment = share.route, share.limits, self._equipment
        draft, worker, device = (
            self._drafts[share.key],
            self._workers[_target(share)],
            equipment.devices[_target(share)],
        )
        with self._opening[device.memory_pool]:
            opened = worker.call(AdapterCalls.open, equipment.timeout_s, stage)(
                key=name,
                device=device.whole,
                suite=equipment.choice(route),
                precision=route.precision,
                scenario=share.scenario,
                free_bytes=_free_bytes(device),
            )
        draft.add_opened(opened)
        longest_s = equipment.timeout_s + (limits.warmup_ns + limits.search_ns) / SECOND
        if share.scenario == "mixed":  # the parent ends the window, and its length says which phase it is
            limits = limits.model_copy(update={"min_ns": 0, "max_ns": SECOND})
        # per_stage: preparing a batch size has a stage and thus a time limit of its own
        prepared = worker.call(AdapterCalls.prepare, longest_s, stage, per_stage=True)(
            key=name,
            scenario=share.scenario,
            batch=share.batch,
            rate_per_s=share.rate_per_s,
            seed=equipment.drawn(share, "preparation"),
            limits=limits,
        )
        draft.add_prepared(prepared)
        _check_helpers(prepared.processes)
        draft.helper_processes = _outside(prepared.processes)
        worker.helpers = (*worker.helpers, *prepared.processes)
        for what, asked, given in (
            ("batch", share.batch, prepared.batch),
            ("rate", share.rate_per_s, prepared.rate_per_s),
        ):
            if asked not in (None, given):
                message = f"the worker prepared {what} {given}, and {what} {asked} was asked for"
                raise WorkerFailed(Failure(kind="no result", message=message))
        return prepared

    @contextlib.contextmanager
    def _noting_errors(self, share: Share) -> Iterator[None]:
        """Notes a failure of the worker, or an error of a suite's own code in this process, as the share's."""
        try:
            yield
        except Exception as error:
            self._drafts[share.key].error = failure_of(error)

    def close(self) -> None:
        """Lets the workers close their suites."""
        close_failure = {target: failure for target, worker in self._workers.items() if (failure := worker.finish())}
        for share in self._phase.shares:
            draft = self._drafts[share.key]
            if draft.error is None and draft.cut_short is None:
                draft.close_failure = close_failure.get(_target(share))

    def records(self, watched: Watched, conditions: tuple[Conditions, ...]) -> list[Record]:
        """The records of the shares that finished a feed or failed, once the workers have ended. Raises ResultError if
        a disk was full."""
        workers = self._workers.values()
        facts_of_phase = {
            "conditions": conditions,
            "failed_watchers": watched.absent,
            "surviving_processes": tuple(name for worker in workers for name in worker.surviving_processes),
        }
        found = []
        for share in self._phase.shares:
            worker, draft = self._workers.get(_target(share)), self._drafts[share.key]
            refuse_full_disk(draft.error or draft.cut_short)
            peak_pss_bytes = (worker and worker.peak_pss_bytes) or None
            if draft.over:
                found.append(draft.record(facts_of_phase | {"peak_pss_bytes": peak_pss_bytes}))
        return found


def _check_helpers(pids: Sequence[int]) -> None:
    """Raises WorkerFailed if a runner names a process as its helper that cannot be one. The load of a helper counts as
    the run's own: a runner that named the first process of the system would hide all other load."""
    ancestors = {parent.pid for parent in known(lambda: psutil.Process().parents(), ())}
    for pid in pids:
        hint = "name the processes that compute for it"
        if pid == 1 or pid == os.getpid() or pid in ancestors:
            reason = "it is the harness or started it, so its load cannot be told from the harness's own"
            hint = "start mixmark from another process than the one that computes"
        elif (process := known(partial(psutil.Process, pid), None)) is None:
            reason = "there is no such process"
        elif known(process.ppid, None) == 0:
            reason = "it is of the system"
        else:
            continue
        message = f"the runner names process {pid} as a helper, but {reason}"
        raise WorkerFailed(Failure(kind="no result", message=message, hint=hint))


def _driven(parts: Sequence[Part], on_ready: OnReady, drive: Driver, beside: Sequence[int]) -> Watched:
    """Drives the parts, and returns the conditions of the machine meanwhile."""
    try:
        on_ready(parts)
    except Exception as error:
        _fail(parts, error)
        return Watched((), ())
    pids = dict.fromkeys((*(pid for part in parts for pid in (part.worker.pid, *part.processes)), *beside))
    watch = Watch(tuple(pids), pinned={part.worker.pid: part.cores for part in parts}).start()
    try:
        drive(parts)
    except Exception as error:
        _fail(parts, error)
    finally:  # while the workers live: afterwards their processes cannot be told from others
        watched = watch.stop()
    return watched


def _fail(parts: Sequence[Part], error: Exception) -> None:
    for part in parts:
        part.failure = part.failure or failure_of(error)


def _hand_over(part: Part) -> None:
    """Lets the worker write its outputs. Completions are kept if the worker failed after them, and dropped if it lived
    and did not hand over its outputs."""
    draft = part.draft
    if draft.completions is None:
        draft.error = part.failure
        return
    if part.failure:
        draft.cut_short = part.failure
        cause = WorkerFailed(part.failure)
        draft.unaudited = f"the worker was gone before it handed over its outputs: {cause}"
        return
    try:
        hand_over = part.worker.call(AdapterCalls.hand_over, part.timeout_s)
        draft.facts = hand_over(key=part.name, outputs=str(part.outputs))
    except Exception as error:
        draft.completions, draft.error = None, failure_of(error)


def _keep(part: Part, folder: Path) -> None:
    """Checks the outputs that were handed over, and keeps them for the audit."""
    draft, share = part.draft, part.share
    if draft.completions is None or draft.unaudited:
        return
    try:
        gate = part.suite.gate(share.route.precision)
        if gate is None or share.route.hosted or not share.limits.audits:
            draft.exempt = "hosted" if share.route.hosted else "not asked for" if gate else "no gate"
            return
        done, into = len(draft.completions), audit.handed_at(folder, share.key)
        draft.audit = audit.keep(part.outputs, gate, share.limits.audits, part.batch, done, part.commitments, into)
    except Exception as error:
        draft.completions, draft.error = None, failure_of(error)


def _outside(pids: Iterable[int]) -> tuple[str, ...]:
    """The names of the processes that do not descend from this one, as a process that a worker starts does. They are
    taken now, because a helper may be gone when the worker ends."""
    found = []
    for pid in dict.fromkeys(pids):
        with contextlib.suppress(*UNKNOWN):
            helper = psutil.Process(pid)
            if os.getpid() not in {parent.pid for parent in helper.parents()}:
                found.append(plain(helper.name(), orphans.MAX_NAME))
    return tuple(found)


def _free_bytes(device: Device) -> int | None:
    free = memory.available_bytes() if device.in_host_memory else device.memory_bytes
    return None if free is None else int(free * RESERVE)
