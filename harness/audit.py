"""Compares answers of the timed window with an fp32 reference on the same feeds, after the clock has stopped.

The worker hands over what was yielded; only then does this process draw, from the system's randomness, which answers
are audited. Once no worker lives any more, a fresh process makes the feeds anew from their seed and runs the reference,
by the built-in torch adapter in fp32. `harness.isolation` keeps that process apart from the vendor's code.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import drive, isolation, plugins, wire
from harness.errors import PluginError, WrongAnswer
from harness.failures import WorkerFailed
from harness.isolation import Isolation
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


def answer_bytes(kept: Path) -> int:
    """The size of the answer to one feed, in a file of audited answers."""
    with np.load(kept, allow_pickle=False) as stored:
        answers = stored["answers"]
        return int(answers[0].nbytes) if len(answers) else 0


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


@dataclass(frozen=True)
class Reference:
    """A process that holds the reference of a suite."""

    worker: Worker
    isolation: Isolation

    def ran(self, found: wire.Audited) -> str:
        """The hash of the code that it ran. Raises PluginError where that is not what the run began with."""
        try:
            return self.isolation.checked(found.code)
        except ValueError as error:
            raise PluginError(str(error), "repeat it elsewhere: mixmark audit FOLDER") from error


class Auditor:
    """Runs the audits that are drawn and not done, the reference of each suite loaded once.

    folder: the result, whose answers are compared. suite: the suite of a record, as a worker builds it. seed: the seed
    of its feeds. device: where the reference runs; where that is not the CPU, the first feed is repeated on the CPU.
    logs: the folder for the log of each reference; by default that of the result.
    """

    def __init__(
        self,
        folder: Path,
        suite: Callable[[Record], wire.SuiteChoice],
        seed: Callable[[Record], int],
        device: Device,
        timeout_s: float,
        logs: Path | None = None,
    ) -> None:
        self._folder, self._suite, self._seed = folder, suite, seed
        self._device, self._timeout_s = device, timeout_s
        self._logs = logs or folder / "logs"
        isolation.remember()

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
                for record in waiting[len(audited) :]:
                    keep(record.model_copy(update={"unaudited": f"{error}; {error.hint}".removesuffix("; ")}))

    @contextmanager
    def _open(self, record: Record, device: Device) -> Iterator[Reference]:
        """A worker that holds the reference of the record's suite. Raises WorkerFailed or PluginError."""
        plugin = Plugin("adapters", REFERENCE, plugins.BUILT_IN["adapters"][REFERENCE], "built in")
        free = memory.available_bytes() if device.in_host_memory else device.memory_bytes
        suite = self._suite(record)
        try:
            apart = isolation.isolation(suite.spec, any_backend=device.kind not in ("cpu", "gpu"))
        except (LookupError, OSError) as error:
            raise PluginError(f"the suite {suite.name} cannot be audited: {error}") from error
        with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch:
            log = self._logs / f"audit.{record.route.suite}.log"
            with Worker(plugin, {}, Path(scratch), log, isolation=apart) as worker:
                opening = wire.Open(
                    key=REFERENCE,
                    device=device,
                    suite=suite,
                    precision="fp32",
                    scenario="single-stream",
                    free_bytes=free,
                    reference=True,
                )
                worker.call(opening, self._timeout_s)
                yield Reference(worker, apart)

    def _audited(self, reference: Reference, record: Record) -> Record:
        audit = record.audit
        assert audit is not None  # it is pending
        begin_ns = time.monotonic_ns()
        found = self._compared(reference, record, kept_at(self._folder, record.key))
        done = audit.model_copy(
            update={
                "feeds": found.feeds,
                "values": found.values,
                "problem": found.problem,
                "code": reference.ran(found),
                "software": found.software,
                "elapsed_ns": time.monotonic_ns() - begin_ns,
                "device": self._device.id,
            }
        )
        return record.model_copy(update={"audit": done})

    def _compared(self, reference: Reference, record: Record, answers: Path) -> wire.Audited:
        assert record.batch is not None  # an audit was drawn from its feeds
        request = wire.Audit(key=REFERENCE, batch=record.batch, seed=self._seed(record), answers=str(answers))
        # Each feed is a stage: thirty of them may take longer than a hang is given.
        return reference.worker.call(request, self._timeout_s, each_stage=True)

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
