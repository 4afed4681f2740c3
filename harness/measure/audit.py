"""Compares outputs of the timed window with an fp32 reference on the same feeds, after the clock has stopped.

The worker hands over its outputs; only then does this process draw, from the system's randomness, which of them are
audited. After all workers have ended, another process makes the feeds again from the window's seed and runs the
reference by the built-in torch adapter in fp32. `worker.isolation` keeps that process apart from the vendor's code. A
run starts it before any plugin (`clean_process`), so nothing that a plugin does to the files of torch reaches it.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
import shutil
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import PluginError, WrongOutput
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import (
    BUILT_IN,
    DIGEST_BYTES,
    HOST_POOL,
    HOST_PROCESSOR,
    Audit,
    Device,
    Failure,
    Gate,
    Record,
    Tier,
)
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock, memory
from mixmark.harness.resources.files import archive, regular
from mixmark.harness.worker import isolation
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.isolation import Isolation
from mixmark.harness.worker.messages import AdapterCalls, OutputsCompared, SuiteChoice
from mixmark.harness.worker.outputs import TAKEN_BYTES, Commitments, capacity, digest

REFERENCE = "torch"
CPU = Device(id=HOST_PROCESSOR, kind="cpu", memory_pool=HOST_POOL, precisions=("fp32",))
DAMAGE = (ValueError, LookupError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def kept_at(folder: Path, key: str) -> Path:
    """The file of the audited outputs of a record, from which the audit can be repeated."""
    return folder / "raw" / f"{key}.outputs.npz"


def draw(outputs: Path, gate: Gate, feeds: int, batch: int, done: int, commitments: Commitments, into: Path) -> Audit:
    """Draws the outputs that will be audited, at least `feeds` and enough for the gate's samples, writes them to
    `into`, and takes the hash of what it writes.

    outputs: the file that the worker handed over. All of its values must be finite. done: the number of feeds of the
    window. commitments: the worker's, from the window. A problem with the outputs becomes the problem of the audit:
    nothing is raised.
    """
    try:
        with np.load(io.BytesIO(archive(outputs)), allow_pickle=False) as handed:
            serials, values = handed["serials"], handed["outputs"]
            finished, previous, digests = handed["finished"], handed["previous"], handed["digests"]
        among = _handed(serials, values, finished, digests, done, commitments)
        previous_digests = commitments.previous_digests(finished, previous, digests)
    except WrongOutput as error:
        return Audit(gate=gate, finished=0, problem=str(error))
    except DAMAGE as error:
        return Audit(gate=gate, finished=0, problem=f"the worker's outputs cannot be used: {error}")
    if commitments.taken:
        among = np.intersect1d(among, list(commitments.taken))
    count = min(len(among), max(feeds, math.ceil(gate.samples / batch)))
    chosen = np.sort(random.SystemRandom().sample(among.tolist(), count))
    followed = [np.frombuffer(previous_digests[serial] or bytes(DIGEST_BYTES), np.uint8) for serial in chosen.tolist()]
    kept = io.BytesIO()
    try:
        taken = _taken(commitments, chosen)
    except DAMAGE as error:
        return Audit(gate=gate, finished=0, problem=f"what the stage before handed over cannot be used: {error}")
    outputs_of = values[np.searchsorted(serials, chosen)]
    columns: Any = {"serials": chosen, "previous_digests": followed, "outputs": outputs_of, **taken}
    np.savez_compressed(kept, **columns)
    into.unlink(missing_ok=True)  # never through a link or a pipe that lies there
    with into.open("xb") as file:
        file.write(kept.getbuffer())
    sha256 = hashlib.sha256(kept.getbuffer()).hexdigest()
    return Audit(gate=gate, finished=done, feeds=tuple(chosen.tolist()), sha256=sha256)


def _handed(
    serials: npt.NDArray[Any],
    values: npt.NDArray[Any],
    finished: npt.NDArray[Any],
    digests: npt.NDArray[Any],
    done: int,
    commitments: Commitments,
) -> npt.NDArray[np.int64]:
    """The feeds from which audits may be drawn. Raises WrongOutput if these are not the outputs of the window."""
    columns = serials.dtype == finished.dtype == np.int64 and digests.dtype == np.uint8
    whole = serials.ndim == finished.ndim == 1 and digests.shape == (len(finished), DIGEST_BYTES)
    if not (columns and whole and len(serials) == len(values) and len(serials)):
        raise WrongOutput("the worker handed over no outputs")
    if (np.diff(serials) < 1).any() or (np.diff(np.sort(finished)) < 1).any():
        raise WrongOutput("the worker handed over two outputs for one feed")
    if len(finished) != done:
        raise WrongOutput(
            f"the worker handed over the digests of {counted(len(finished), 'output')} of "
            f"{counted(done, 'finished feed')}"
        )
    commitments.verify(finished, digests)
    most = capacity(values[0].nbytes)
    asked = np.sort(commitments.required(finished, most))
    if not np.array_equal(serials, asked):
        here = int(np.isin(asked, serials).sum())
        raise WrongOutput(f"the worker handed over {counted(here, 'output')} of the {len(asked)} that it had to keep")
    rows = dict(zip(finished.tolist(), digests, strict=True))
    for serial, output in zip(serials.tolist(), values, strict=True):
        if digest(serial, output.tobytes()) != rows[serial].tobytes():
            raise WrongOutput("the outputs do not match the commitments of the timed window")
        commitments.verify_first(serial, output)
    _finite(values)
    return commitments.fair_sample(finished, most)


def _taken(commitments: Commitments, chosen: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """What these feeds of a stage continued: `taken` [feeds, units, …], the outputs of the stage before, and
    `taken_serials` [feeds] int64, the numbers of their feeds there. Empty if the feeds continued nothing."""
    if not commitments.taken:
        return {}
    taken = [commitments.taken[serial] for serial in chosen.tolist()]
    outputs = [np.load(io.BytesIO(regular(each.file, TAKEN_BYTES)), allow_pickle=False) for each in taken]
    return {"taken": np.stack(outputs), "taken_serials": np.array([each.serial for each in taken], np.int64)}


def _finite(values: npt.NDArray[Any]) -> None:
    if values.dtype.kind == "f" and not (whole := np.isfinite(values).reshape(len(values), -1).all(1)).all():
        raise WrongOutput(f"outputs with values that are not finite: {int((~whole).sum())} of {len(values)}")


STARTS_WITHIN_S = 120.0
IMPORTS_TORCH = """
try:
    import numpy.random, torch.onnx  # the parts that come with the first network, too
except ImportError:
    pass  # the adapter says so when a reference is opened
"""


@contextmanager
def clean_process() -> Iterator[Worker]:
    """A process that audits Mixmark's own suites on the CPU, one after the other. A run starts it before the first
    plugin's code runs; when the block begins, it has imported torch."""
    apart = isolation.isolation(registry.BUILT_IN["suites"]["probe"])
    with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch:
        early = replace(apart, prelude=apart.prelude + IMPORTS_TORCH)
        with _worker(early, Path(scratch) / "audit.log", Path(scratch), tracked=False) as worker:
            with suppress(WorkerFailed):  # an audit reports it
                worker.call(AdapterCalls.close, STARTS_WITHIN_S)()
            yield worker


def _worker(apart: Isolation, log: Path, scratch: Path, tracked: bool = True) -> Worker:
    plugin = Plugin("adapters", REFERENCE, registry.BUILT_IN["adapters"][REFERENCE], BUILT_IN)
    return Worker(plugin, {}, scratch, log, isolation=apart, tracked=tracked)


def pending(record: Record) -> bool:
    """Whether the record's audit is drawn and not compared yet."""
    audit = record.audit
    return audit is not None and bool(audit.feeds) and not audit.values and not audit.problem and not record.unaudited


class Auditor:
    """Runs the audits that are drawn and not done, and loads the reference of each suite once.

    folder: the result, whose outputs are compared. suite: the suite of a record, as a worker builds it. device: where
    the reference runs; if that is not the CPU, the first feed is repeated on the CPU. logs: the folder for the log
    of each reference; by default the result's. clean: see `clean_process`; without it, and for a suite of another
    package or an accelerator, each reference gets a fresh process. If it ends, what is left stays unaudited: torch's
    files would be read again.
    """

    def __init__(
        self,
        folder: Path,
        suite: Callable[[Record], SuiteChoice],
        device: Device,
        timeout_s: float,
        logs: Path | None = None,
        clean: Worker | None = None,
    ) -> None:
        self._folder, self._suite, self._clean = folder, suite, clean
        self._device, self._timeout_s = device, timeout_s
        self._logs = logs or folder / "logs"

    def run(
        self,
        records: Iterable[Record],
        keep: Callable[[Record], None],
        on_record: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """Passes each record to `keep`, with the values of its audit or the reason why it has none. on_record: gets a
        record before it is compared, the first of a suite before the reference is loaded."""
        by_suite: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if pending(record):
                by_suite[str(self._suite(record))].append(record)
        for waiting in by_suite.values():
            audited: list[Record] = []
            on_record(waiting[0])
            try:
                with self._open(waiting[0], self._device) as reference:
                    for record in waiting:
                        if audited:
                            on_record(record)
                        audited.append(self._audited(reference, record))
                        keep(audited[-1])
                if self._device.kind != "cpu":
                    keep(self._repeated(audited[0]))
            except WorkerFailed as failed:
                for record in waiting[len(audited) :]:
                    keep(record.model_copy(update={"unaudited": _words(failed.failure)}))
            except PluginError as error:
                for record in waiting[len(audited) :]:
                    keep(record.model_copy(update={"unaudited": f"{error}; {error.hint}".removesuffix("; ")}))

    @contextmanager
    def _open(self, record: Record, device: Device) -> Iterator[Worker]:
        """A worker that holds the reference of the record's suite. Raises WorkerFailed or PluginError."""
        suite = self._suite(record)
        log = self._logs / f"audit.{record.route.suite}.log"
        if self._clean and device.kind == "cpu" and suite.spec in registry.BUILT_IN["suites"].values():
            try:
                self._load(self._clean, suite, device)
                yield self._clean
            finally:
                shutil.copy(self._clean.log, self._logs)
                self._clean.call(AdapterCalls.close, self._timeout_s)()
            return
        try:
            apart = isolation.isolation(suite.spec, any_backend=device.kind not in ("cpu", "gpu"))
        except (LookupError, OSError) as error:
            raise PluginError(f"the suite {suite.name} cannot be audited: {error}") from error
        with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch, _worker(apart, log, Path(scratch)) as worker:
            self._load(worker, suite, device)
            yield worker

    def _load(self, worker: Worker, suite: SuiteChoice, device: Device) -> None:
        worker.call(AdapterCalls.open, self._timeout_s)(
            key=REFERENCE,
            device=device,
            suite=suite,
            precision="fp32",
            scenario="single-stream",
            free_bytes=memory.available_bytes() if device.in_host_memory else device.memory_bytes,
            reference=True,
        )

    def _audited(self, reference: Worker, record: Record) -> Record:
        audit = record.audit
        assert audit is not None  # it is pending
        begin_ns = clock.now_ns()
        found = self._compared(reference, record, audit.feeds, kept_at(self._folder, record.key), audit.sha256)
        done = audit.model_copy(
            update={
                "values": found.values,
                "problem": found.problem,
                "software": found.software,
                "elapsed_ns": clock.now_ns() - begin_ns,
                "device": self._device.id,
            }
        )
        return record.model_copy(update={"audit": done})

    def _compared(
        self, reference: Worker, record: Record, feeds: Sequence[int], outputs: Path, sha256: str
    ) -> OutputsCompared:
        """Compares the outputs for these feeds, in a file with this hash."""
        assert record.audit is not None and record.batch is not None and record.seed is not None  # an audit was drawn
        # Each feed is a stage: thirty of them may take longer than a hang is given.
        compare = reference.call(AdapterCalls.compare_outputs, self._timeout_s, per_stage=True)
        return compare(
            key=REFERENCE,
            batch=record.batch,
            pool=seeds.pool(record.seed),
            seeds=tuple(_seed(record, feed) for feed in feeds),
            outputs=str(outputs),
            sha256=sha256,
        )

    def _repeated(self, record: Record) -> Record:
        """The record with the difference that the CPU's reference makes on the first feed."""
        audit = record.audit
        assert audit is not None  # it was just made
        if not audit.values:
            return record
        with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch, self._open(record, CPU) as reference:
            first = Path(scratch) / "first.npz"
            with np.load(kept_at(self._folder, record.key), allow_pickle=False) as kept:
                np.savez(first, **{name: column[:1] for name, column in kept.items()})
            sha256 = hashlib.sha256(first.read_bytes()).hexdigest()
            found = self._compared(reference, record, audit.feeds[:1], first, sha256)
        outcome: dict[str, Any] = {"problem": found.problem}
        if found.values:
            outcome["disagreement"] = abs(found.values[0] - audit.values[0])
        return record.model_copy(update={"audit": audit.model_copy(update=outcome)})


def auditor(
    equipment: Equipment, folder: Path, tier: Tier, logs: Path | None = None, clean: Worker | None = None
) -> Auditor:
    """The auditor of a run. Its reference runs on the CPU; at the server tier on the largest accelerator that its
    adapter reaches. logs, clean: see `Auditor`."""
    device = CPU
    if tier == "server":
        reached = [found for (_, adapter), found in equipment.devices.items() if adapter == REFERENCE]
        fit = [found for found in reached if found.kind != "cpu" and "fp32" in found.precisions]
        device = max(fit, key=lambda found: found.memory_bytes or 0, default=device)
    return Auditor(folder, lambda record: equipment.choice(record.route), device, equipment.timeout_s, logs, clean)


def _seed(record: Record, feed: int) -> int:
    """What the nonce of a feed is derived from: the window's seed, or the secret of its turn."""
    assert record.seed is not None  # it was audited
    if record.scenario == "server":
        assert record.rate_per_s is not None  # it is a server
        due_ns = int(seeds.schedule(record.rate_per_s, seeds.arrivals(record.seed), feed + 1)[-1])
        return seeds.secret(record.seed, due_ns // seeds.SLOT_NS)
    in_turns = record.stamped and record.scenario != "mixed"  # of a mix the parent hands out each nonce
    return seeds.secret(record.seed, feed) if in_turns else record.seed


def _words(failure: Failure) -> str:
    return f"the reference could not be run: {failure.message}; {failure.hint}".removesuffix("; ")
