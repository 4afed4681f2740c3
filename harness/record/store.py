"""Writes and reads a result folder: one line and one raw file after each measurement, result.json at the end.

While a run goes on, the journal is the result:

    journal.jsonl           the first line is the result as it began. Each later line holds facts that were added
                            together, {"records": […]}, {"meterings": […]}, {"connections": […]} or {"phases": […]};
                            the later of two facts with the same key counts. {"sha256": {…}} beside records and
                            meterings holds the hashes of their raw files. {"resumed": [12]} says that the run was
                            resumed after twelve records
    raw/<key>.npz           the timestamps of a record, and the record's key
    raw/<key>.outputs.npz   the audited outputs of a record, and the serial numbers of their feeds
    raw/<phase>.energy.npz  the samples of a metering, and the name of its phase

When it is over, two files replace the journal:

    result.json             all facts but timestamps and samples
    SHA256SUMS              the hashes of result.json and of each raw file, for `sha256sum -c`

A crash loses only the measurement that was running. Every OSError becomes a ResultError, and everything that was
written stays.

A folder may come from anyone. Opening it takes bounded time and memory (`MAX_…`), compares the hashes and checks the
schema; whether its facts agree with each other is judged later (`judge.rules.consistency`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import ValidationError

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import (
    DIGEST_BYTES,
    SCHEMA,
    Audit,
    Completions,
    Connection,
    Fact,
    Metering,
    Phase,
    Record,
    Result,
    Samples,
)
from mixmark.harness.plugins import locks
from mixmark.harness.record.arrays import DAMAGE, MAX_MEMBERS, Arrays, Budget

JOURNAL, SUMMARY, SUMS = "journal.jsonl", "result.json", "SHA256SUMS"
PLAIN = frozenset(np.dtype(name) for name in ("float32", "int32", "int64"))
COLUMNS = tuple(column.name for column in fields(Completions))
SAMPLES = tuple(column.name for column in fields(Samples))
KEYS = {"records": ("key",), "meterings": ("phase",), "connections": ("phase", "host"), "phases": ("name",)}
"""The fields that identify a fact, by its kind."""
ADDED = ("records", "meterings", "connections")
"""The kinds of facts that the first line of a journal does not hold."""
EDITED = "it was edited or damaged; copy the result folder again, or run again"
MAX_JSON_BYTES = 64 << 20  # of result.json, and of the journal
MAX_JSON_OBJECTS = 250_000  # in each of the two; a block of conditions is one, and takes a kB of memory
MAX_JSON_VALUES = 6_000_000  # in each of the two; a block of conditions has 22
MAX_RAW_BYTES = 512 << 20  # of all timestamps and samples of a folder: 13 million feeds of one timestamp each
SLACK_BYTES = 1 << 21  # of a raw file, for its headers and its directory
MAX_OUTPUT_BYTES = 4 << 30  # of all audited outputs of a folder: 32 times what a worker keeps for one record
SUM = re.compile(r"([0-9a-f]{64})  (result\.json|raw/[a-z0-9.-]+\.npz)")
"""A line of SHA256SUMS."""


@dataclass
class _Source:
    """The folder that raw files are read from, and how much may still be read."""

    folder: Path
    sha256: Mapping[str, str]
    """The hash of each raw file, by its name."""
    raw: Budget = field(default_factory=lambda: Budget(MAX_RAW_BYTES))
    outputs: Budget = field(default_factory=lambda: Budget(MAX_OUTPUT_BYTES))


@dataclass(frozen=True)
class Store:
    """A result folder to which one process writes. When a call returns, what it added is safe on disk."""

    path: Path

    def append(self, *records: Record) -> None:
        """Adds all of the records or none: their timestamps are written before the journal line that names them."""
        with _explained(f"cannot write record {', '.join(record.key for record in records)} to {self.path}"):
            for record in records:
                if record.completions is not None:
                    columns = {name: getattr(record.completions, name) for name in COLUMNS}
                    with _replaced(self.path / "raw" / f"{record.key}.npz") as file:
                        np.savez(file, key=np.array(record.key), **columns)
            self._add("records", records, [name for record in records for name in _names_of(record)])

    def meter(self, metering: Metering) -> None:
        """Adds a metering: its samples are written before the journal line that names them."""
        with _explained(f"cannot write the energy of {metering.phase} to {self.path}"):
            columns = {
                f"{name}_{number}": getattr(samples, name)
                for number, samples in enumerate(metering.samples.values())
                for name in SAMPLES
            }
            ids = np.array(list(metering.samples), np.str_)
            with _replaced(self.path / "raw" / f"{metering.phase}.energy.npz") as file:
                np.savez(file, key=np.array(metering.phase), domains=ids, **columns)
            self._add("meterings", (metering,), (f"{metering.phase}.energy.npz",))

    def connect(self, *connections: Connection) -> None:
        """Adds how the hosts of a phase were reached, before the records of the phase."""
        with _explained(f"cannot write the connections of {connections[0].phase} to {self.path}"):
            self._add("connections", connections)

    def plan(self, phase: Phase) -> None:
        """Adds a phase that was planned during the run, after the phases that were planned before."""
        with _explained(f"cannot write the plan of {phase.name} to {self.path}"):
            self._add("phases", (phase,))

    def _add(self, name: str, facts: Iterable[Fact], raw: Iterable[str] = ()) -> None:
        """Adds a line with the facts and the hashes of those raw files that exist."""
        line: dict[str, Any] = {name: [fact.model_dump(mode="json") for fact in facts]}
        paths = [self.path / "raw" / file for file in raw]
        if sha256 := {path.name: _sha256(path) for path in paths if path.exists()}:
            line["sha256"] = sha256
        _append_line(self.path / JOURNAL, json.dumps(line, allow_nan=False).encode() + b"\n")

    def finish(self, result: Result) -> None:
        """Replaces the journal of a finished run by result.json and the hashes. A run that is not finished can be
        resumed from its journal, so nothing is written of it."""
        if not result.finished:
            return
        with _explained(f"cannot write {self.path / SUMMARY}"):
            _, known = _replayed(self.path / JOURNAL)
            content = json.dumps(result.model_dump(mode="json"), indent=2, allow_nan=False).encode() + b"\n"
            sha256 = {name: known[name] for name in raw_names(result) if name in known}
            with _replaced(self.path / SUMMARY) as file:
                file.write(content)
            with _replaced(self.path / SUMS) as file:  # from here on the folder is finished
                file.write(checksums(hashlib.sha256(content).hexdigest(), sha256))
            (self.path / JOURNAL).unlink()


def checksums(summary: str, raw: Mapping[str, str]) -> bytes:
    """The content of SHA256SUMS. summary: the hash of result.json. raw: the hash of each raw file, by its name."""
    lines = [(SUMMARY, summary), *sorted((f"raw/{name}", sha256) for name, sha256 in raw.items())]
    return "".join(f"{sha256}  {path}\n" for path, sha256 in lines).encode()


def raw_names(result: Result) -> Iterator[str]:
    """The names of the files in raw/ that belong to a result."""
    for record in result.records:
        yield from _names_of(record)
    yield from (f"{metering.phase}.energy.npz" for metering in result.meterings)


def _names_of(record: Record) -> Iterator[str]:
    if record.completions is not None:
        yield f"{record.key}.npz"
        if record.audit is not None and record.audit.feeds:
            yield f"{record.key}.outputs.npz"


def received(folder: Path, records: Sequence[Any], sha256: Mapping[str, str]) -> list[Record]:
    """The records that another host sent: their fields as JSON, and their raw files in the folder with these hashes.
    Raises ResultError, or ValueError for an invalid record."""
    source = _Source(folder, sha256)
    return [_record(source, record) for record in records]


def received_metering(folder: Path, metering: Any, sha256: Mapping[str, str]) -> Metering:
    """The metering that another host sent; see `received`."""
    return _metering(_Source(folder, sha256), metering)


def sums(folder: Path) -> dict[str, str]:
    """The hash of each raw file of a result folder."""
    return {path.name: _sha256(path) for path in (folder / "raw").iterdir()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def results_below(folder: Path) -> list[Path]:
    """The result folders in a folder, sorted."""
    return sorted({path.parent for name in (SUMS, JOURNAL) for path in folder.glob(f"*/{name}")})


def refuse_used(path: Path) -> None:
    """Raises ResultError if the path exists and is not an empty folder."""
    with _explained(f"cannot write results to {path}"):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = "choose another --out" if live(path) else "continue its run with --resume, or choose another --out"
            raise ResultError(f"{path} exists and is not an empty folder", hint)


def create(path: Path, header: Result, needs_bytes: int = 0, source: Path | None = None) -> Store:
    """Makes a new folder for the run that `header` describes: an unfinished Result, which may hold the measurements of
    another run of the machine.

    source: the folder of that run, from which its audited outputs are copied.
    Raises ResultError if the folder is not empty, cannot be written, or the disk has less than `needs_bytes` free.
    """
    if header.finished:
        raise ValueError("the header of a run must be unfinished")
    refuse_used(path)
    with _explained(f"cannot write results to {path}"):
        (path / "raw").mkdir(parents=True)
        free = shutil.disk_usage(path).free
        if free < needs_bytes:
            (path / "raw").rmdir()
            raise ResultError(
                f"the disk of {path} has {free / 1e9:.1f} GB free, but the run needs {needs_bytes / 1e9:.1f} GB",
                "free some space, or choose a folder on another disk with --out",
            )
        first = header.model_copy(update={name: () for name in ADDED}).model_dump(mode="json")
        _append_line(path / JOURNAL, json.dumps(first, allow_nan=False).encode() + b"\n")
        _sync_folder(path)
        measured = [] if source is None else [source / "raw" / f"{each.key}.outputs.npz" for each in header.records]
        for outputs in measured:
            if outputs.exists():
                shutil.copyfile(outputs, path / "raw" / outputs.name)
    store = Store(path)
    if header.records:
        store.append(*header.records)
    for metering in header.meterings:
        store.meter(metering)
    if header.connections:
        store.connect(*header.connections)
    return store


def resume(path: Path) -> Store:
    """Opens the folder of an unfinished run for more records. Removes an incomplete last line from the journal, and
    adds a line that says after how many records the run was resumed."""
    before = open(path)
    if before.finished:
        raise ResultError(f"the run in {path} is finished", "there is nothing to resume; start a new run")
    journal = path / JOURNAL
    with _explained(f"cannot write to {path}"):
        with journal.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        _append_line(journal, json.dumps({"resumed": [len(before.records)]}).encode() + b"\n")
    return Store(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the journal within the block, and at most as long as this process lives: the run in the folder goes on.

    Raises ResultError if another process has locked it.
    """
    with _explained(f"cannot lock the run in {path}"):
        journal = (path / JOURNAL).open("r+b")
    with journal:
        if not locks.acquire(journal.fileno()):
            raise still_going_on(path)
        yield


def live(path: Path) -> bool:
    """Whether the run in the folder goes on now, in any process that shares the folder and its locks."""
    with suppress(OSError), (path / JOURNAL).open("rb") as journal:
        return not locks.acquire(journal.fileno(), shared=True)
    return False


def still_going_on(path: Path) -> ResultError:
    return ResultError(f"the run in {path} is still going on in another process", "wait until it has ended, or end it")


def open(path: Path) -> Result:
    """Reads the result in a folder, or at the path of a result.json, with its timestamps and samples. The result of an
    unfinished run holds the measurements so far. Raises ResultError for a folder that holds no result, or one that does
    not match its hashes or the schema."""
    folder = path.parent if path.name == SUMMARY else path
    if not folder.is_dir():
        raise ResultError(f"{folder} is not a folder", "give the folder that `mixmark run --out` wrote")
    if (folder / SUMS).exists():
        content, sha256 = _finished(folder)
        return _result(_Source(folder, sha256), folder / SUMMARY, content)
    if (folder / JOURNAL).exists():
        content, sha256 = _replayed(folder / JOURNAL)
        result = _result(_Source(folder, sha256), folder / JOURNAL, content)
        return result.model_copy(update={"live": live(folder)})
    if (folder / SUMMARY).exists():
        raise ResultError(f"{folder} has no {SUMS}", f"copy the whole result folder, not only {SUMMARY}")
    raise ResultError(f"{folder} holds no Mixmark result", "give the folder that `mixmark run --out` wrote")


def export_json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of result.json."""
    return Result.model_json_schema(mode="serialization")


def _finished(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The content of result.json, and the hash of each raw file by its name."""
    lines = _read(folder / SUMS).decode(errors="replace").splitlines()
    found = [SUM.fullmatch(line) for line in lines]
    sha256 = {line[2]: line[1] for line in found if line}
    if len(sha256) != len(lines):
        raise ResultError(f"{folder / SUMS} is not a list of hashes of Mixmark", EDITED)
    text = _read(folder / SUMMARY)
    if hashlib.sha256(text).hexdigest() != sha256.get(SUMMARY):
        raise ResultError(f"{folder / SUMMARY} is damaged: its hash is not the one in {SUMS}", EDITED)
    content = _parsed(folder / SUMMARY, text)
    _check_version(folder / SUMMARY, content)
    return content, {path.removeprefix("raw/"): digest for path, digest in sha256.items()}


def _replayed(journal: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The journal as an unfinished result, and the hash of each raw file by its name. A last line without a line end
    was cut off by a crash and is dropped."""
    text = _read(journal)
    lines = io.BytesIO(text[: text.rfind(b"\n") + 1])
    if not (first := lines.readline()):
        raise ResultError(f"{journal} is empty", "start a new run in another folder")
    header = _parsed(journal, first, 1)
    _check_version(journal, header)
    found: dict[str, dict[tuple[str, ...], Any]] = {name: {} for name in KEYS}
    resumed: list[Any] = []
    sha256: dict[str, str] = {}
    for number, text in enumerate(lines, 2):
        line = _parsed(journal, text, number)
        sums = line.pop("sha256", {})
        [(name, facts)] = line.items() if len(line) == 1 else [("", None)]
        if not isinstance(facts, list) or not isinstance(sums, dict):
            raise ResultError(f"line {number} of {journal} is not a journal line of Mixmark", EDITED)
        if name == "resumed" and not sums:
            resumed += facts
        elif name in KEYS and all(isinstance(fact, dict) for fact in facts):
            found[name] |= {tuple(str(fact.get(part)) for part in KEYS[name]): fact for fact in facts}
            sha256 |= sums
        else:
            raise ResultError(f"line {number} of {journal} is not a journal line of Mixmark", EDITED)
    planned = header.get("phases")
    phases = [*(planned if isinstance(planned, list) else ()), *found.pop("phases").values()]
    added = {name: list(facts.values()) for name, facts in found.items()}
    return header | added | {"phases": phases, "resumed": resumed, "finished": False}, sha256


def _check_version(source: Path, content: dict[str, Any]) -> None:
    version = content.get("schema_version")
    if version != SCHEMA:
        if not isinstance(version, int):
            raise ResultError(f"{source} is not a Mixmark result: it has no schema_version")
        age = "a newer" if version > SCHEMA else "an older"
        raise ResultError(
            f"{source} has schema {version} and was written by {age} version of Mixmark; this one reads {SCHEMA}",
            "update Mixmark" if version > SCHEMA else "read it with the version of Mixmark that wrote it",
        )


def _result(raw: _Source, source: Path, content: dict[str, Any]) -> Result:
    records, meterings = content.pop("records", None), content.pop("meterings", None)
    if not isinstance(records, list) or not isinstance(meterings, list):
        raise ResultError(f"{source} has no list of records and meterings")
    try:
        header = Result.model_validate(content | {"records": ()})
        facts = {
            "records": tuple(_record(raw, record) for record in records),
            "meterings": tuple(_metering(raw, metering) for metering in meterings),
        }
        return Result(**{name: getattr(header, name) for name in Result.model_fields} | facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "result"
        raise ResultError(f"{source} breaks the schema: {where}: {first['msg']}", EDITED) from error


def _record(source: _Source, content: Any) -> Record:
    """Validates the record before its raw file is opened, because only a valid key is safe to use as a file name."""
    if not isinstance(content, dict) or content.get("error") is not None:
        return Record.model_validate(content)
    stand_in = Completions(*(np.array([value]) for value in (0, 0, 1, 0, 1)))
    record = Record.model_validate(content | {"completions": stand_in})
    key = record.key
    with _raw(source, f"{key}.npz", source.raw) as arrays:
        _check_owner(arrays, key, COLUMNS)
        columns = [arrays.read(name) for name in COLUMNS]
        if any(column.dtype != np.int64 or column.ndim != 1 for column in columns):
            raise ValueError("timestamps must be columns of int64")
        completions = Completions(*columns)
    record = record.model_copy(update={"completions": completions})
    if record.audit is not None and record.audit.feeds:
        _check_outputs(source, record, record.audit)
    return record


def _check_outputs(source: _Source, record: Record, audit: Audit) -> None:
    """Checks that the audited outputs are stored, each with all of its units, so that the audit can be repeated."""
    with _raw(source, f"{record.key}.outputs.npz", source.outputs) as arrays:
        if arrays.names != {"serials", "previous_digests", "outputs"}:
            raise ValueError("it must hold serials, previous_digests and outputs")
        serials, previous_digests, outputs = (arrays.read(name) for name in ("serials", "previous_digests", "outputs"))
        count = (len(audit.feeds),)
        if previous_digests.shape != (*count, DIGEST_BYTES) or previous_digests.dtype != np.uint8:
            raise ValueError(f"previous_digests must be a digest of {DIGEST_BYTES} bytes for each output")
        if serials.shape != count or outputs.shape[:1] != count or serials.tolist() != [*audit.feeds]:
            raise ValueError(f"it does not hold the outputs for the audited feeds {', '.join(map(str, audit.feeds))}")
        units = outputs.shape[1] if len(outputs.shape) > 1 else "no"
        if units != (record.feed_units or units):
            raise ValueError(f"an output has {units} units, but a feed has {record.feed_units}")
        if outputs.dtype not in PLAIN:
            raise ValueError(f"outputs must be float32, int32 or int64, but these are {outputs.dtype}")
        if not all(np.isfinite(output).all() for output in outputs):
            raise ValueError("an output is not finite")


def _metering(source: _Source, content: Any) -> Metering:
    """Validates the metering before its raw file is opened, as `_record` does."""
    metering = Metering.model_validate(content)
    with _raw(source, f"{metering.phase}.energy.npz", source.raw) as arrays:
        domains = arrays.read("domains")
        if domains.ndim != 1 or domains.dtype.kind != "U" or len(domains) > MAX_MEMBERS:
            raise ValueError("domains must be a column of names")
        ids = [str(id) for id in domains]
        if len(set(ids)) != len(ids):
            raise ValueError("two domains have the same name")
        names = [f"{name}_{number}" for number in range(len(ids)) for name in SAMPLES]
        _check_owner(arrays, metering.phase, ("domains", *names))
        samples = {}
        for number, id in enumerate(ids):
            id.encode()  # a lone surrogate is no text
            columns = [arrays.read(f"{name}_{number}") for name in SAMPLES]
            types = [column.dtype for column in columns]
            if types != [np.int64, np.int64, np.float64] or any(column.ndim != 1 for column in columns):
                raise ValueError("samples must be columns of int64 timestamps and float64 values")
            samples[id] = Samples(*columns)
    return metering.model_copy(update={"samples": samples})


@contextmanager
def _raw(source: _Source, name: str, budget: Budget) -> Iterator[Arrays]:
    """Opens the arrays of a raw file. Every error while they are read becomes a ResultError."""
    path = source.folder / "raw" / name
    try:
        if not path.is_file():  # a device or a pipe could block for ever
            raise ResultError(f"{path} is missing", "copy the whole result folder, raw/ included")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > budget.left_bytes + SLACK_BYTES:
                raise ValueError(f"the raw files of a folder hold at most {MAX_RAW_BYTES >> 20} MiB")
            if hashlib.file_digest(file, "sha256").hexdigest() != source.sha256.get(name):
                raise ValueError("its hash is not the one that was written with it")
            yield Arrays(file, budget)
    except DAMAGE as error:
        raise ResultError(f"{path} is damaged: {error}", "copy the result folder again, or run again") from error


def _check_owner(arrays: Arrays, key: str, names: Sequence[str]) -> None:
    """Raises ValueError if the arrays belong to another key, or are not exactly these and the key."""
    if arrays.names != {"key", *names}:
        raise ValueError(f"it must hold key, {', '.join(names)}")
    owner = arrays.read("key")
    if owner.shape != () or str(owner) != key:
        raise ValueError(f"it belongs to {ascii(str(owner.reshape(-1)[:1]))[:80]}, not to {key!r}")


def _read(path: Path) -> bytes:
    with _explained(f"cannot read {path}"):
        if not path.is_file():
            raise ResultError(f"{path} is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ResultError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB, so it is not a Mixmark result")
    if content.count(b"{") + content.count(b"[") > MAX_JSON_OBJECTS or content.count(b",") > MAX_JSON_VALUES:
        raise ResultError(f"{path} holds more than {MAX_JSON_OBJECTS} objects or {MAX_JSON_VALUES} values")
    return content


def _parsed(path: Path, text: bytes, line: int | None = None) -> dict[str, Any]:
    where = path if line is None else f"line {line} of {path}"
    try:
        content = json.loads(
            text.decode(), parse_constant=_refused, parse_int=_whole, parse_float=_real, object_pairs_hook=_object
        )
        if b"\\ud" in text.lower():  # half of a pair is no text, and no file or terminal takes it
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{where} is not valid JSON: {error}", "it is truncated or damaged; run again") from error
    if not isinstance(content, dict):
        raise ResultError(f"{where} is not a Mixmark result")
    return content


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _whole(text: str) -> int:
    if abs(number := int(text)) >= 1 << 63:
        raise ValueError(f"{text[:20]}… is larger than any number of a run")
    return number


def _real(text: str) -> float:
    """Limits a number so far that no product or quotient of two numbers is infinite."""
    number = float(text)
    if number and not 1e-100 < abs(number) < 1e100:
        raise ValueError(f"{text[:20]} is larger or smaller than any number of a run")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses an object with a repeated name, because programs differ in which of the values they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is repeated in an object")
    return found


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns an OSError into a ResultError that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise ResultError(f"{what}: {error.strerror or error}", "free disk space or fix the permissions") from error


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that appears only when it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _append_line(path: Path, line: bytes) -> None:
    """Appends the whole line or nothing: if the disk fills up, the part that was written is removed again."""
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _sync_folder(path: Path) -> None:
    """Makes a rename survive a power cut. Only POSIX can open a folder."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
