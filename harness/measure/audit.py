"""Compares outputs of the timed window with an fp32 reference on the same feeds, after the clock has stopped.

The worker hands over its outputs, which are checked against its commitments and kept (`keep`). Once the processes of
all plugins have ended, this process draws, from the system's randomness, which of them are audited. Another process
makes the feeds again from the window's seed and runs the reference by the built-in torch adapter in fp32. The draw is
in the memory of these two processes alone: the drawn outputs are written with the result of the comparison.
`worker.isolation` keeps the other process apart from the vendor's code. A run starts it before any plugin
(`clean_process`), so nothing that a plugin does to the files of torch reaches it.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts import schema, seeds
from mixmark.harness.contracts.errors import PluginError, WrongOutput
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.record.files import explained
from mixmark.harness.resources import clock, memory
from mixmark.harness.resources.files import DAMAGE, archive, regular
from mixmark.harness.worker import isolation
from mixmark.harness.worker.failures import WorkerFailed, refuse_full_disk
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.isolation import Isolation
from mixmark.harness.worker.messages import AdapterCalls, OutputsCompared, SuiteChoice
from mixmark.harness.worker.outputs import TAKEN_BYTES, Commitments, capacity, digest

REFERENCE = "torch"
HANDED_BYTES = 2 << 30  # of the outputs that are kept for a draw, with those that they continued
CPU = schema.Device(id=schema.HOST_PROCESSOR, kind="cpu", memory_pool=schema.HOST_POOL, precisions=("fp32",))


def kept_at(folder: Path, key: str) -> Path:
    """The file of the audited outputs of a record, from which the audit can be repeated."""
    return folder / "raw" / f"{key}.outputs.npz"


def handed_at(folder: Path, key: str) -> Path:
    """The file of the outputs of a record that a worker handed over, until some of them are drawn."""
    return folder / "raw" / f"{key}.handed.npz"


def keep(
    outputs: Path, gate: schema.Gate, feeds: int, batch: int, done: int, commitments: Commitments, into: Path
) -> schema.Audit:
    """Checks the outputs that a worker handed over, and keeps them for the draw.

    outputs: the file that the worker wrote. All of its values must be finite. feeds: how many are to be drawn at least;
    enough for the gate's samples are. done: the number of feeds of the window. commitments: the worker's, from the
    window. A problem with the outputs becomes the problem of the audit: nothing is raised.
    """
    try:
        with np.load(io.BytesIO(archive(outputs)), allow_pickle=False) as handed:
            serials, values = handed["serials"], handed["outputs"]
            finished, previous, digests = handed["finished"], handed["previous"], handed["digests"]
        _check(serials, values, finished, digests, done, commitments)
        previous_digests = commitments.previous_digests(finished, previous, digests)
    except WrongOutput as error:
        return schema.Audit(gate=gate, finished=0, problem=str(error))
    except DAMAGE as error:
        return schema.Audit(gate=gate, finished=0, problem=f"the worker's outputs cannot be used: {error}")
    if commitments.taken:
        continued = np.isin(serials, list(commitments.taken))
        serials, values = serials[continued], values[continued]
        if not len(serials):
            return schema.Audit(
                gate=gate, finished=done, problem="no output is kept that continued one of the stage before"
            )
    try:
        taken = _taken(commitments, serials)
    except DAMAGE as error:
        return schema.Audit(gate=gate, finished=0, problem=f"what the stage before handed over cannot be used: {error}")
    followed = [
        np.frombuffer(previous_digests[serial] or bytes(schema.DIGEST_BYTES), np.uint8) for serial in serials.tolist()
    ]
    drops = [(finished_then, key) for finished_then, _, key in commitments.draws]
    columns: Any = {"serials": serials, "previous_digests": followed, "outputs": values, **taken}
    columns |= {"finished": finished, "drops": np.array(drops, np.int64).reshape(-1, 2)}
    sha256 = _write(into, {**columns, "count": np.array(max(feeds, math.ceil(gate.samples / batch)))}, np.savez)
    return schema.Audit(gate=gate, finished=done, sha256=sha256)


def draw(handed: Path, sha256: str) -> dict[str, npt.NDArray[Any]]:
    """Draws the outputs that will be audited: their columns. handed: a file of `keep` with this hash. Raises
    WrongOutput if it was changed."""
    try:
        content = regular(handed, HANDED_BYTES)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise WrongOutput("the outputs were changed after the worker had handed them over")
        with np.load(io.BytesIO(content), allow_pickle=False) as kept:
            columns = {name: kept[name] for name in kept}
    except DAMAGE as error:
        raise WrongOutput(f"the outputs that the worker handed over cannot be read: {error}") from error
    serials, values, count = columns["serials"], columns["outputs"], int(columns.pop("count"))
    drops = Commitments(draws=[(done, "", key) for done, key in columns.pop("drops").tolist()])
    among = np.intersect1d(drops.fair_sample(columns.pop("finished"), capacity(values[0].nbytes)), serials)
    chosen = np.sort(random.SystemRandom().sample(among.tolist(), min(len(among), count)))
    return {name: column[np.searchsorted(serials, chosen)] for name, column in columns.items()}


def _write(path: Path, columns: Mapping[str, Any], save: Callable[..., None]) -> str:
    """Writes a raw file and returns its hash. Raises ResultError."""
    content = io.BytesIO()
    save(content, **columns)
    with explained(f"cannot write {path}"):
        path.unlink(missing_ok=True)  # never through a link or a pipe that lies there
        with path.open("xb") as file:
            file.write(content.getbuffer())
    return hashlib.sha256(content.getbuffer()).hexdigest()


def _check(
    serials: npt.NDArray[Any],
    values: npt.NDArray[Any],
    finished: npt.NDArray[Any],
    digests: npt.NDArray[Any],
    done: int,
    commitments: Commitments,
) -> None:
    """Raises WrongOutput if these are not the outputs of the window."""
    columns = serials.dtype == finished.dtype == np.int64 and digests.dtype == np.uint8
    whole = serials.ndim == finished.ndim == 1 and digests.shape == (len(finished), schema.DIGEST_BYTES)
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


def _taken(commitments: Commitments, serials: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """What these feeds of a stage continued: `taken` [feeds, units, …], the outputs of the stage before, and
    `taken_serials` [feeds] int64, the numbers of their feeds there. Empty if the feeds continued nothing."""
    if not commitments.taken:
        return {}
    taken = [commitments.taken[serial] for serial in serials.tolist()]
    outputs = [np.load(io.BytesIO(regular(each.file, TAKEN_BYTES)), allow_pickle=False) for each in taken]
    return {"taken": np.stack(outputs), "taken_serials": np.array([each.serial for each in taken], np.int64)}


def _finite(values: npt.NDArray[Any]) -> None:
    if values.dtype.kind == "f" and not (whole := np.isfinite(values).reshape(len(values), -1).all(1)).all():
        raise WrongOutput(f"outputs with values that are not finite: {int((~whole).sum())} of {len(values)}")


STARTS_WITHIN_S = 120.0
IMPORTS = """
try:
    import {}
except ImportError:
    pass  # whatever needs them says so
"""


@contextmanager
def clean_process(imports: str = "numpy.random, torch.onnx") -> Iterator[Worker]:
    """A process that audits Mixmark's own suites on the CPU, one after the other. A run starts it before the first
    plugin's code runs; when the block begins, it has imported these modules, by default with the parts that come with
    the first network."""
    apart = isolation.isolation(registry.BUILT_IN["suites"]["probe"])
    with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch:
        early = replace(apart, prelude=apart.prelude + IMPORTS.format(imports))
        with _worker(early, Path(scratch) / "audit.log", Path(scratch), tracked=False) as worker:
            with suppress(WorkerFailed):  # an audit reports it
                worker.call(AdapterCalls.close, STARTS_WITHIN_S)()
            yield worker


def _worker(apart: Isolation, log: Path, scratch: Path, tracked: bool = True) -> Worker:
    plugin = Plugin("adapters", REFERENCE, registry.BUILT_IN["adapters"][REFERENCE], schema.BUILT_IN)
    return Worker(plugin, {}, scratch, log, isolation=apart, tracked=tracked)


def pending(record: schema.Record) -> bool:
    """Whether the record's outputs are kept and not compared yet."""
    audit = record.audit
    return audit is not None and not audit.values and not audit.problem and not record.unaudited


class Auditor:
    """Draws and compares the outputs of records, and loads the reference of each suite once. Outputs that were drawn
    before are compared again.

    folder: the result, whose outputs are compared. suite: the suite of a record, as a worker builds it. device: where
    the reference runs; if that is not the CPU, the first feed is repeated on the CPU. logs: the folder for the log
    of each reference; by default the result's. clean: see `clean_process`; without it, and for a suite of another
    package or an accelerator, each reference gets a fresh process. If it ends, what is left stays unaudited: torch's
    files would be read again. own: the clean processes of single suites, by their names.
    """

    def __init__(
        self,
        folder: Path,
        suite: Callable[[schema.Record], SuiteChoice],
        device: schema.Device,
        timeout_s: float,
        logs: Path | None = None,
        clean: Worker | None = None,
        own: Mapping[str, Worker] = MappingProxyType({}),
    ) -> None:
        self._folder, self._suite, self._clean, self._own = folder, suite, clean, own
        self._device, self._timeout_s = device, timeout_s
        self._logs = logs or folder / "logs"

    def run(
        self,
        records: Iterable[schema.Record],
        keep: Callable[[schema.Record], None],
        on_record: Callable[[schema.Record], None] = lambda record: None,
    ) -> None:
        """Passes each record to `keep`, with the values of its audit or the reason why it has none. No plugin's process
        may run meanwhile. on_record: gets a
        record before it is compared, the first of a suite before the reference is loaded."""
        by_suite: dict[str, list[schema.Record]] = defaultdict(list)
        for record in records:
            if pending(record):
                by_suite[str(self._suite(record))].append(record)
        for waiting in by_suite.values():
            audited: list[schema.Record] = []

            def done(record: schema.Record, audited: list[schema.Record] = audited) -> None:
                keep(record)
                audited.append(record)

            on_record(waiting[0])
            try:
                with self._open(waiting[0], self._device) as reference:
                    for record in waiting:
                        if audited:
                            on_record(record)
                        done(self._audited(reference, record))
                if self._device.kind != "cpu":
                    keep(self._repeated(audited[0]))
                continue
            except WorkerFailed as failed:
                refuse_full_disk(failed.failure)
                why = _words(failed.failure)
            except PluginError as error:
                why = f"{error}; {error.hint}".removesuffix("; ")
            for record in waiting[len(audited) :]:
                drawn, columns = self._drawn(record)
                done(self._written(drawn, columns).model_copy(update={"unaudited": why}))

    @contextmanager
    def _open(self, record: schema.Record, device: schema.Device) -> Iterator[Worker]:
        """A worker that holds the reference of the record's suite. Raises WorkerFailed or PluginError."""
        suite = self._suite(record)
        log = self._logs / f"audit.{record.route.suite}.log"
        clean = self._own.get(suite.name, self._clean)
        if clean and device.kind == "cpu" and Plugin("suites", suite.name, suite.spec, "").built_in:
            try:
                self._load(clean, suite, device)
                yield clean
            finally:
                with suppress(OSError):
                    shutil.copy(clean.log, self._logs)
                clean.finish()  # if it fails, so does the next call
            return
        try:
            apart = isolation.isolation(suite.spec, device)
        except (LookupError, OSError) as error:
            raise PluginError(f"the suite {suite.name} cannot be audited: {error}") from error
        with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch, _worker(apart, log, Path(scratch)) as worker:
            self._load(worker, suite, device)
            yield worker

    def _load(self, worker: Worker, suite: SuiteChoice, device: schema.Device) -> None:
        worker.call(AdapterCalls.open, self._timeout_s)(
            key=REFERENCE,
            device=device,
            suite=suite,
            precision="fp32",
            scenario="single-stream",
            free_bytes=memory.available_bytes() if device.in_host_memory else device.memory_bytes,
            reference=True,
        )

    def _audited(self, reference: Worker, record: schema.Record) -> schema.Record:
        """The record with its comparison, whose drawn outputs are written now."""
        begin_ns = clock.now_ns()
        drawn, columns = self._drawn(record)
        audit = drawn.audit
        assert audit is not None  # it is pending
        if not audit.problem:
            outputs = (handed_at if columns else kept_at)(self._folder, record.key)
            found = self._compared(reference, record, audit.feeds, outputs, audit.sha256)
            update = {"values": found.values, "problem": found.problem, "software": found.software}
            audit = audit.model_copy(update={**update, "device": self._device.id})
        audit = audit.model_copy(update={"elapsed_ns": clock.now_ns() - begin_ns})
        return self._written(record.model_copy(update={"audit": audit}), columns)

    def _drawn(self, record: schema.Record) -> tuple[schema.Record, dict[str, npt.NDArray[Any]]]:
        """The record with the feeds that are audited, and the columns of their outputs, which are in no file yet; empty
        if they were drawn before."""
        audit = record.audit
        assert audit is not None  # it is pending
        if audit.feeds:
            return record, {}
        try:
            columns = draw(handed_at(self._folder, record.key), audit.sha256)
        except WrongOutput as error:
            changed = audit.model_copy(update={"problem": str(error), "sha256": ""})
            return record.model_copy(update={"audit": changed}), {}
        drawn = audit.model_copy(update={"feeds": tuple(columns["serials"].tolist())})
        return record.model_copy(update={"audit": drawn}), columns

    def _written(self, record: schema.Record, columns: Mapping[str, npt.NDArray[Any]]) -> schema.Record:
        """The record with the hash of its drawn outputs, which are written."""
        audit = record.audit
        if not columns or audit is None:
            return record
        sha256 = _write(kept_at(self._folder, record.key), columns, np.savez_compressed)
        return record.model_copy(update={"audit": audit.model_copy(update={"sha256": sha256})})

    def _compared(
        self, reference: Worker, record: schema.Record, feeds: Sequence[int], outputs: Path, sha256: str
    ) -> OutputsCompared:
        """Compares the outputs for these feeds, in a file with this hash that may hold more."""
        assert record.audit is not None and record.batch is not None and record.seed is not None  # an audit was drawn
        # Each feed is a stage: thirty of them may take longer than a hang is given.
        compare = reference.call(AdapterCalls.compare_outputs, self._timeout_s, per_stage=True)
        return compare(
            key=REFERENCE,
            batch=record.batch,
            pool=seeds.pool(record.seed),
            seeds={feed: _seed(record, feed) for feed in feeds},
            outputs=str(outputs),
            sha256=sha256,
        )

    def _repeated(self, record: schema.Record) -> schema.Record:
        """The record with the difference that the CPU's reference makes on the first feed."""
        audit = record.audit
        assert audit is not None  # it was just made
        if not audit.values:
            return record
        with self._open(record, CPU) as reference:
            outputs = kept_at(self._folder, record.key)
            found = self._compared(reference, record, audit.feeds[:1], outputs, audit.sha256)
        outcome: dict[str, Any] = {"problem": found.problem}
        if found.values:
            outcome["disagreement"] = abs(found.values[0] - audit.values[0])
        return record.model_copy(update={"audit": audit.model_copy(update=outcome)})


def auditor(
    equipment: Equipment,
    folder: Path,
    tier: schema.Tier,
    logs: Path | None = None,
    clean: Worker | None = None,
    own: Mapping[str, Worker] = MappingProxyType({}),
) -> Auditor:
    """The auditor of a run. Its reference runs on the CPU; at the server tier on the largest accelerator that its
    adapter reaches. logs, clean, own: see `Auditor`."""
    device = CPU
    if tier == "server":
        reached = [found for (_, adapter), found in equipment.devices.items() if adapter == REFERENCE]
        fit = [found for found in reached if found.kind != "cpu" and "fp32" in found.precisions]
        device = max(fit, key=lambda found: found.memory_bytes or 0, default=device)
    return Auditor(folder, lambda record: equipment.choice(record.route), device, equipment.timeout_s, logs, clean, own)


def _seed(record: schema.Record, feed: int) -> int:
    """What the nonce of a feed is derived from: the window's seed, or the secret of its turn."""
    assert record.seed is not None  # it was audited
    if record.scenario == "server":
        assert record.rate_per_s is not None  # it is a server
        due_ns = int(seeds.schedule(record.rate_per_s, seeds.arrivals(record.seed), feed + 1)[-1])
        return seeds.secret(record.seed, due_ns // seeds.SLOT_NS)
    in_turns = record.stamped and record.scenario != "mixed"  # of a mix the parent hands out each nonce
    return seeds.secret(record.seed, feed) if in_turns else record.seed


def _words(failure: schema.Failure) -> str:
    return f"the reference could not be run: {failure.message}; {failure.hint}".removesuffix("; ")
