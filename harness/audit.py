"""Compares answers of the timed window with an fp32 reference on the same feeds, after the clock has stopped.

The worker hands over what was yielded; only then does this process draw, from the system's randomness, which answers
are audited. The feeds are made anew from the run's seed, by a fresh worker that has never seen the vendor's code, and
the reference runs there, by the built-in torch adapter in fp32.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import drive, plugins, wire
from harness.errors import PluginError, WrongAnswer
from harness.failures import WorkerFailed
from harness.plugins import Plugin
from harness.schema import HOST_POOL, HOST_PROCESSOR, Audit, Device, Failure, Gate, Record
from harness.watch import memory
from harness.worker import Worker

REFERENCE = "torch"
CPU = Device(id=HOST_PROCESSOR, kind="cpu", memory_pool=HOST_POOL, precisions=("fp32",))
DAMAGE = (ValueError, LookupError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def kept_at(folder: Path, key: str) -> Path:
    """The file that keeps the audited answers of a record: whoever has the result can audit it again."""
    return folder / "raw" / f"{key}.answers.npz"


Sealed = Callable[[Sequence[bytes]], bool]
"""Whether answers with these digests, in this order, are those that the worker had when they were timed."""


def draw(answers: Path, gate: Gate, feeds: int, batch: int, done: int, sealed: Sealed, into: Path) -> Audit:
    """Draws the answers that will be audited, at least `feeds` and as many as hold the gate's samples, and keeps them.

    answers: what the worker handed over. All that was is looked at for values that are not finite. done: the feeds of
    the window, each of which has an answer unless they outgrew `KEPT_BYTES`. A problem with them is the audit's:
    nothing is raised.
    """
    try:
        with zipfile.ZipFile(answers) as archive:  # the loop that saves them packs nothing
            if sum(member.file_size for member in archive.infolist()) > answers.stat().st_size:
                raise WrongAnswer("the worker handed over answers that unpack to more than their file")
        with answers.open("rb") as file, np.load(file, allow_pickle=False) as handed:  # ours to close if it is torn
            serials, values = handed["serials"], handed["answers"]
        _handed(serials, values, done, sealed)
    except WrongAnswer as error:
        return Audit(gate=gate, finished=0, problem=str(error))
    except DAMAGE as error:
        return Audit(gate=gate, finished=0, problem=f"the worker's answers cannot be used: {error}")
    count = min(len(serials), max(feeds, math.ceil(gate.samples / batch)))
    chosen = sorted(random.SystemRandom().sample(range(len(serials)), count), key=lambda at: int(serials[at]))
    with into.open("wb") as kept:
        np.savez_compressed(kept, serials=serials[chosen], answers=values[chosen])
    return Audit(gate=gate, finished=len(serials), feeds=tuple(serials[chosen].tolist()))


def _handed(serials: npt.NDArray[Any], values: npt.NDArray[Any], done: int, sealed: Sealed) -> None:
    """Raises WrongAnswer where these are not the answers of a whole window."""
    if serials.dtype != np.int64 or serials.ndim != 1 or len(serials) != len(values) or not len(serials):
        raise WrongAnswer("the worker handed over no answers")
    if (np.diff(np.sort(serials)) < 1).any() or serials.min() < 0:
        raise WrongAnswer("the worker handed over two answers to one feed")
    all_fit = done * (values[0].nbytes + drive.AROUND_BYTES) <= drive.KEPT_BYTES
    if serials.max() >= done or (len(serials) < done and all_fit):
        raise WrongAnswer(f"the worker handed over {len(serials)} answers of the {done} feeds that it finished")
    pairs = zip(serials.tolist(), values, strict=True)
    if not sealed([drive.digest(serial, answer.tobytes()) for serial, answer in pairs]):
        raise WrongAnswer("the answers are not those that were sealed when they were timed")
    _finite(values)


def _finite(values: npt.NDArray[Any]) -> None:
    if values.dtype.kind == "f" and not (whole := np.isfinite(values).reshape(len(values), -1).all(1)).all():
        raise WrongAnswer(f"{int((~whole).sum())} of {len(values)} answers hold values that are not finite")


def pending(record: Record) -> bool:
    """Whether the record's audit is drawn and not compared yet."""
    audit = record.audit
    return audit is not None and bool(audit.feeds) and not audit.values and not audit.problem and not record.unaudited


class Auditor:
    """Runs the audits that are drawn and not done, the reference of each suite loaded once.

    suite: the suite of a record, as a worker builds it. seed: the seed of its feeds. device: where the reference runs;
    where that is not the CPU, the first feed is repeated on the CPU.
    """

    def __init__(
        self,
        folder: Path,
        suite: Callable[[Record], wire.SuiteChoice],
        seed: Callable[[Record], int],
        device: Device,
        timeout_s: float,
    ) -> None:
        self._folder, self._suite, self._seed = folder, suite, seed
        self._device, self._timeout_s = device, timeout_s

    def run(
        self,
        records: Iterable[Record],
        keep: Callable[[Record], None],
        on_record: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """Passes each record to `keep` with the values of its audit, or with the reason why it has none."""
        by_suite: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if pending(record):
                by_suite[str(self._suite(record))].append(record)
        for waiting in by_suite.values():
            audited: list[Record] = []
            try:
                with self._open(waiting[0], self._device) as reference:
                    for record in waiting:
                        on_record(record)
                        audited.append(self._audited(reference, record))
                        keep(audited[-1])
                if self._device.kind != "cpu":
                    keep(self._repeated(audited[0]))
            except WorkerFailed as failed:
                for record in waiting[len(audited) :]:
                    keep(record.model_copy(update={"unaudited": _told(failed.failure)}))
            except PluginError as error:
                for record in waiting:
                    keep(record.model_copy(update={"unaudited": f"{error}; {error.hint}"}))

    @contextmanager
    def _open(self, record: Record, device: Device) -> Iterator[Worker]:
        """A worker that holds the reference of the record's suite."""
        plugin = Plugin("adapters", REFERENCE, plugins.BUILT_IN["adapters"][REFERENCE], "built in")
        free = memory.available_bytes() if device.in_host_memory else device.memory_bytes
        with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch:
            log = self._folder / "logs" / f"audit.{record.route.suite}.log"
            with Worker(plugin, {}, Path(scratch), log) as worker:
                opening = wire.Open(
                    key=REFERENCE,
                    device=device,
                    suite=self._suite(record),
                    precision="fp32",
                    scenario="single-stream",
                    free_bytes=free,
                    reference=True,
                )
                worker.call(opening, self._timeout_s)
                yield worker

    def _audited(self, reference: Worker, record: Record) -> Record:
        audit = record.audit
        assert audit is not None  # it is pending
        begin_ns = time.monotonic_ns()
        found = self._compared(reference, record, kept_at(self._folder, record.key))
        took = {"elapsed_ns": time.monotonic_ns() - begin_ns, "device": self._device.id}
        return record.model_copy(update={"audit": Audit.model_validate({**vars(audit), **took, **dict(found)})})

    def _compared(self, reference: Worker, record: Record, answers: Path) -> wire.Audited:
        assert record.batch is not None  # an audit was drawn from its feeds
        request = wire.Audit(key=REFERENCE, batch=record.batch, seed=self._seed(record), answers=str(answers))
        # Each feed is a stage: thirty of them may take longer than a hang is given.
        return reference.call(request, self._timeout_s, each_stage=True)

    def _repeated(self, record: Record) -> Record:
        """The record with the difference that the CPU's reference makes on the first feed."""
        audit = record.audit
        assert audit is not None  # it was just made
        if not audit.values:
            return record
        with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch, self._open(record, CPU) as reference:
            first = Path(scratch) / "first.npz"
            with np.load(kept_at(self._folder, record.key), allow_pickle=False) as kept:
                np.savez(first, serials=kept["serials"][:1], answers=kept["answers"][:1])
            (value,) = self._compared(reference, record, first).values
        disagreement = abs(value - audit.values[0])
        return record.model_copy(update={"audit": audit.model_copy(update={"disagreement": disagreement})})


def _told(failure: Failure) -> str:
    return f"the reference could not be run: {failure.message}; {failure.hint}".removesuffix("; ")
