"""The result folder: one journal line and one raw file after every cell, result.json at the end.

    result.json             the result without stamps and samples; it is written by a rename when the run ends
    journal.jsonl           the first line is the result as it began; each later line holds what was added together,
                            {"records": […]}, {"meterings": […]}, {"connections": […]} or {"phases": […]}; of a key
                            that comes twice, the later one counts. With records and meterings comes
                            {"sha256": {…}}, the hash of each of their raw files. {"resumed": [12]} says that the run
                            went on after twelve records
    raw/<key>.npz           the stamps of a record, and the record's key
    raw/<key>.outputs.npz   the audited outputs of a record, and the serial numbers of their feeds
    raw/<phase>.energy.npz  the samples of a metering, and the name of its phase

A crash loses only the cell that was running. Every OSError becomes a ResultError, and what was written stays.

A folder may come from anybody. Opening it takes a bounded time and memory (`MAX_…`), and ends in a Result whose parts
agree with each other, or in a ResultError.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
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
from mixmark.harness.judge.rules.consistency import contradictions
from mixmark.harness.plugins import locks
from mixmark.harness.record import suite_claims
from mixmark.harness.record.arrays import DAMAGE, Arrays, Budget

PLAIN = frozenset(np.dtype(name) for name in ("float32", "int32", "int64"))
COLUMNS = tuple(column.name for column in fields(Completions))
SAMPLES = tuple(column.name for column in fields(Samples))
KEYS = {"records": ("key",), "meterings": ("phase",), "connections": ("phase", "host"), "phases": ("name",)}
"""What tells the facts of a kind apart."""
ADDED = ("records", "meterings", "connections")
"""What the first line of a journal does not hold."""
EDITED = "it was edited or damaged; copy the result folder again, or run again"
LATER = ("finished",)
"""What result.json says otherwise than the journal, whose first line was written before the run."""
MAX_JSON_BYTES = 64 << 20  # of result.json, and of the journal
MAX_JSON_OBJECTS = 250_000  # in each of the two; a block of conditions is one, and takes a kB of memory
MAX_JSON_VALUES = 6_000_000  # in each of the two; a block of conditions has 22
MAX_RAW_BYTES = 512 << 20  # of all stamps and samples of a folder: 13 million feeds of one mark each
SLACK_BYTES = 1 << 21  # of a raw file, for its headers and its directory
MAX_OUTPUT_BYTES = 4 << 30  # of all audited outputs of a folder: 32 times what a worker keeps for one record


@dataclass
class _Source:
    """Where the raw files of a result are read from, and how much may still be read."""

    folder: Path
    sha256: Mapping[str, str]
    """The hash of each raw file, by its name."""
    raw: Budget = field(default_factory=lambda: Budget(MAX_RAW_BYTES))
    outputs: Budget = field(default_factory=lambda: Budget(MAX_OUTPUT_BYTES))


@dataclass(frozen=True)
class Store:
    """An open result folder, to which one process writes. When a call returns, what it added is safe on disk."""

    path: Path

    def append(self, *records: Record) -> None:
        """Adds all of the records or none: their stamps are written first, then the journal line that names them."""
        with _named(f"cannot write record {', '.join(record.key for record in records)} to {self.path}"):
            for record in records:
                if record.completions is not None:
                    columns = {name: getattr(record.completions, name) for name in COLUMNS}
                    with _replaced(self.path / "raw" / f"{record.key}.npz") as file:
                        np.savez(file, key=np.array(record.key), **columns)
            self._journal("records", records, [name for record in records for name in _raw_names(record)])

    def meter(self, metering: Metering) -> None:
        """Adds a metering: its samples are written first, then the journal line that names them."""
        with _named(f"cannot write the energy of {metering.phase} to {self.path}"):
            columns = {
                f"{name}_{number}": getattr(samples, name)
                for number, samples in enumerate(metering.samples.values())
                for name in SAMPLES
            }
            ids = np.array(list(metering.samples), np.str_)
            with _replaced(self.path / "raw" / f"{metering.phase}.energy.npz") as file:
                np.savez(file, key=np.array(metering.phase), domains=ids, **columns)
            self._journal("meterings", (metering,), (f"{metering.phase}.energy.npz",))

    def connect(self, *connections: Connection) -> None:
        """Adds how the hosts of a phase were reached; it comes before the records of the phase."""
        with _named(f"cannot write the connections of {connections[0].phase} to {self.path}"):
            self._journal("connections", connections)

    def plan(self, phase: Phase) -> None:
        """Adds a phase that was planned during the run; it follows the phases that were planned before."""
        with _named(f"cannot write the plan of {phase.name} to {self.path}"):
            self._journal("phases", (phase,))

    def went_on(self, records: int) -> None:
        """Adds a line that says that the run was resumed when there were so many records."""
        with _named(f"cannot write to {self.path}"):
            _append_line(self.path / "journal.jsonl", json.dumps({"resumed": [records]}).encode() + b"\n")

    def _journal(self, name: str, facts: Iterable[Fact], raw: Iterable[str] = ()) -> None:
        """Adds a line with the facts and the hashes of those raw files that exist."""
        line: dict[str, Any] = {name: [fact.model_dump(mode="json") for fact in facts]}
        sums = {}
        for each in (self.path / "raw" / one for one in raw):
            if each.exists():
                with each.open("rb") as file:
                    sums[each.name] = hashlib.file_digest(file, "sha256").hexdigest()
        if sums:
            line["sha256"] = sums
        _append_line(self.path / "journal.jsonl", json.dumps(line, allow_nan=False).encode() + b"\n")

    def finish(self, result: Result) -> None:
        """Writes result.json. `result.finished` says whether the run is over; otherwise it can be resumed."""
        with _named(f"cannot write {self.path / 'result.json'}"), _replaced(self.path / "result.json") as file:
            file.write(_dumped(result, indent=2))


def received(folder: Path, records: Sequence[Any], sha256: Mapping[str, str]) -> list[Record]:
    """The records that another host sent: their fields, and the raw files that lie in the folder, of which the hashes
    are told. Raises ResultError, or ValueError where a record is none."""
    source = _Source(folder, sha256)
    return [_record(source, each) for each in records]


def received_metering(folder: Path, metering: Any, sha256: Mapping[str, str]) -> Metering:
    """The same for a metering."""
    return _metering(_Source(folder, sha256), metering)


def sums(folder: Path) -> dict[str, str]:
    """The hash of each raw file of a result folder."""
    found = {}
    for each in (folder / "raw").iterdir():
        with each.open("rb") as file:
            found[each.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def refuse_used(path: Path) -> None:
    """Raises ResultError if there is something at the path other than an empty folder."""
    with _named(f"cannot write results to {path}"):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = "choose another --out" if live(path) else "continue its run with --resume, or choose another --out"
            raise ResultError(f"{path} exists and is not an empty folder", hint)


def create(path: Path, header: Result, needs_bytes: int = 0, source: Path | None = None) -> Store:
    """Makes a new folder for the run that `header` describes: an unfinished Result, which may hold what another run of
    the machine measured.

    source: the folder of that run, from which the outputs are copied that it kept.
    Raises ResultError if the folder is not empty, cannot be written, or the disk has less than `needs_bytes` free.
    """
    if header.finished:
        raise ValueError("the header of a run must be unfinished")
    refuse_used(path)
    with _named(f"cannot write results to {path}"):
        (path / "raw").mkdir(parents=True)
        free = shutil.disk_usage(path).free
        if free < needs_bytes:
            (path / "raw").rmdir()
            raise ResultError(
                f"the disk of {path} has {free / 1e9:.1f} GB free, but the run needs {needs_bytes / 1e9:.1f} GB",
                "free some space, or choose a folder on another disk with --out",
            )
        _append_line(path / "journal.jsonl", _dumped(header.model_copy(update={name: () for name in ADDED})))
        _sync_folder(path)
        measured = [] if source is None else [source / "raw" / f"{each.key}.outputs.npz" for each in header.records]
        for kept in measured:
            if kept.exists():
                shutil.copyfile(kept, path / "raw" / kept.name)
    store = Store(path)
    if header.records:
        store.append(*header.records)
    for metering in header.meterings:
        store.meter(metering)
    if header.connections:
        store.connect(*header.connections)
    return store


def resume(path: Path) -> Store:
    """Opens the folder of an unfinished run for more records; `open` reads what it holds. The journal gets a line that
    says so, in place of an incomplete last line."""
    before = open(path)
    if before.finished:
        raise ResultError(f"the run in {path} is finished", "there is nothing to resume; start a new run")
    journal = path / "journal.jsonl"
    with _named(f"cannot write to {path}"), journal.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    store = Store(path)
    store.went_on(len(before.records))
    return store


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the journal within the block, and at most as long as this process lives: the run in the folder goes on.

    Raises ResultError where another process has locked it.
    """
    with _named(f"cannot lock the run in {path}"):
        journal = (path / "journal.jsonl").open("r+b")
    with journal:
        if not locks.acquire(journal.fileno()):
            raise still_going_on(path)
        yield


def live(path: Path) -> bool:
    """Whether the run in the folder goes on now, in any process that shares the folder and its locks."""
    with suppress(OSError), (path / "journal.jsonl").open("rb") as journal:
        return not locks.acquire(journal.fileno(), shared=True)
    return False


def still_going_on(path: Path) -> ResultError:
    return ResultError(f"the run in {path} is still going on in another process", "wait until it has ended, or end it")


def open(path: Path) -> Result:
    """Reads the result in a folder, or at the path of a result.json, with its stamps and samples. The result of an
    unfinished run holds what was measured so far. Raises ResultError if the folder holds no consistent result."""
    folder = path.parent if path.name == "result.json" else path
    summary, journal = folder / "result.json", folder / "journal.jsonl"
    if not folder.is_dir():
        raise ResultError(f"{folder} is not a folder", "give the folder that `mixmark run --out` wrote")
    if not journal.exists():
        if summary.exists():
            raise ResultError(f"{folder} has no journal.jsonl", "copy the whole result folder, not only result.json")
        raise ResultError(f"{folder} holds no Mixmark result", "give the folder that `mixmark run --out` wrote")
    written = _parsed(summary, _read(summary)) if summary.exists() else None
    if written is not None:
        _check_version(summary, written)
    replayed, sha256 = _replayed(journal)
    if written is None or not written.get("finished"):
        return _joined(_Source(folder, sha256), journal, replayed)
    try:
        different = next(_differences(written, replayed), None)
    except RecursionError:
        different = "what is nested too deeply"
    if different:
        raise ResultError(f"{summary} and {journal.name} differ in {different}", EDITED)
    return _joined(_Source(folder, sha256), summary, written)


def export_json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of result.json."""
    return Result.model_json_schema(mode="serialization")


def _dumped(result: Result, indent: int | None = None) -> bytes:
    return json.dumps(result.model_dump(mode="json"), indent=indent, allow_nan=False).encode() + b"\n"


def _replayed(journal: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads the journal as a result, and the hashes of the raw files. A last line without a line end was cut off by a
    crash and is dropped."""
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
            found[name] |= {_key(name, fact): fact for fact in facts}
            sha256 |= sums
        else:
            raise ResultError(f"line {number} of {journal} is not a journal line of Mixmark", EDITED)
    planned = header.get("phases")
    later = [*(planned if isinstance(planned, list) else ()), *found.pop("phases").values()]
    added = {name: list(facts.values()) for name, facts in found.items()}
    return header | added | {"phases": later, "resumed": resumed}, sha256


def _differences(written: Mapping[str, Any], replayed: Mapping[str, Any]) -> Iterator[str]:
    """What result.json of a finished run says otherwise than its journal. Only that the run is finished, and why no mix
    could be planned, is known at the end."""
    for name in sorted((written.keys() | replayed.keys()) - {*LATER, "absent"}):
        one, other = written.get(name), replayed.get(name)
        if one == other:
            continue
        if name not in KEYS or not isinstance(one, list) or not isinstance(other, list):
            yield name
            continue
        keys = [[_key(name, fact) if isinstance(fact, dict) else () for fact in facts] for facts in (one, other)]
        changed = [key for key, *pair in zip(keys[0], one, other, strict=False) if pair[0] != pair[1]]
        yield f"{name}: {' on '.join(changed[0])[:80]}" if keys[0] == keys[1] else f"the list of {name}"
    before, after = replayed.get("absent", []), written.get("absent", [])
    known = isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before
    if not known or any(not isinstance(each, dict) or each.get("kind") != "mix" for each in after[len(before) :]):
        yield "absent"


def _key(name: str, fact: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(fact.get(each)) for each in KEYS[name])


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


def _joined(raw: _Source, source: Path, content: dict[str, Any]) -> Result:
    _check_version(source, content)
    records, meterings = content.pop("records", None), content.pop("meterings", None)
    if not isinstance(records, list) or not isinstance(meterings, list):
        raise ResultError(f"{source} has no list of records and meterings")
    try:
        header = Result.model_validate(content | {"records": ()})
        facts = {
            "records": tuple(_record(raw, each) for each in records),
            "meterings": tuple(_metering(raw, each) for each in meterings),
        }
        result = Result(**{name: getattr(header, name) for name in Result.model_fields} | facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "result"
        raise ResultError(f"{source} contradicts itself: {where}: {first['msg']}", EDITED) from error
    promised, unverified = suite_claims.promises(result)
    if problem := next(contradictions(result, promised), None):
        raise ResultError(f"{source} contradicts itself: {problem}", EDITED)
    return result.model_copy(update={"unverified": unverified, "live": not result.finished and live(raw.folder)})


def _raw_names(record: Record) -> Iterator[str]:
    """The names of the raw files of a record."""
    if record.completions is not None:
        yield f"{record.key}.npz"
        if record.audit is not None and record.audit.feeds:
            yield f"{record.key}.outputs.npz"


def _record(source: _Source, content: Any) -> Record:
    """Validates the record before its raw file is opened, because only a valid key is safe to use as a file name."""
    if not isinstance(content, dict) or content.get("error") is not None:
        return Record.model_validate(content)
    stand_in = Completions(*(np.array([value]) for value in (0, 0, 1, 0, 1)))
    record = Record.model_validate(content | {"completions": stand_in})
    key = record.key
    with _raw(source, f"{key}.npz", source.raw) as arrays:
        _check_owner(arrays, key, COLUMNS)
        shaped = [arrays.shaped(name) for name in COLUMNS]
        if any(each.dtype != np.int64 or len(each.shape) != 1 for each in shaped):
            raise ValueError("stamps must be columns of int64")
        completions = Completions(*(arrays.read(name) for name in COLUMNS))
    record = record.model_copy(update={"completions": completions})
    if record.audit is not None and record.audit.feeds:
        _outputs(source, record, record.audit)
    return record


def _outputs(source: _Source, record: Record, audit: Audit) -> None:
    """Checks that the audited outputs are stored, each with all of its units, so that anybody can audit them again."""
    with _raw(source, f"{record.key}.outputs.npz", source.outputs) as arrays:
        if arrays.names != {"serials", "befores", "outputs"}:
            raise ValueError("it must hold serials, befores and outputs")
        serials, befores, outputs = (arrays.shaped(name) for name in ("serials", "befores", "outputs"))
        count = (len(audit.feeds),)
        if befores.shape != (*count, DIGEST_BYTES) or befores.dtype != np.uint8:
            raise ValueError(f"befores must be a digest of {DIGEST_BYTES} bytes for each output")
        if serials.shape != count or outputs.shape[:1] != count or arrays.read("serials").tolist() != [*audit.feeds]:
            raise ValueError(f"it does not hold the outputs for the audited feeds {', '.join(map(str, audit.feeds))}")
        units = outputs.shape[1] if len(outputs.shape) > 1 else "no"
        if units != (record.feed_units or units):
            raise ValueError(f"an output has {units} units, but a feed has {record.feed_units}")
        if outputs.dtype not in PLAIN:
            raise ValueError(f"outputs must be float32, int32 or int64, but these are {outputs.dtype}")
        if not all(np.isfinite(values).all() for values in arrays.chunks("outputs")):
            raise ValueError("an output is not finite")


def _metering(source: _Source, content: Any) -> Metering:
    """Validates the metering before its raw file is opened, as `_record` does."""
    metering = Metering.model_validate(content)
    with _raw(source, f"{metering.phase}.energy.npz", source.raw) as arrays:
        (count,) = arrays.shaped("domains").shape
        named = [[f"{name}_{number}" for name in SAMPLES] for number in range(min(count, len(arrays.names)))]
        _check_owner(arrays, metering.phase, ("domains", *(name for each in named for name in each)))
        ids = [str(id) for id in arrays.read("domains").tolist()]
        if len(set(ids)) != len(ids):
            raise ValueError("two domains have the same name")
        samples = {}
        for id, names in zip(ids, named, strict=True):
            id.encode()  # a lone surrogate is no text
            shaped = [arrays.shaped(name) for name in names]
            if [each.dtype for each in shaped] != [np.int64, np.int64, np.float64] or len(shaped[0].shape) != 1:
                raise ValueError("samples must be columns of int64 stamps and float64 values")
            samples[id] = Samples(*(arrays.read(name) for name in names))
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
                raise ValueError("its hash is not the one in journal.jsonl")
            yield Arrays(file, budget)
    except DAMAGE as error:
        raise ResultError(f"{path} is damaged: {error}", "copy the result folder again, or run again") from error


def _check_owner(arrays: Arrays, key: str, names: Sequence[str]) -> None:
    """Raises ValueError where the arrays are of somebody else, or are not exactly these and the key."""
    if arrays.names != {"key", *names}:
        raise ValueError(f"it must hold key, {', '.join(names)}")
    found = str(arrays.read("key")) if arrays.shaped("key").shape == () else ""
    if found != key:
        raise ValueError(f"it belongs to {ascii(found)[:80]}, not to {key!r}")


def _read(path: Path) -> bytes:
    with _named(f"cannot read {path}"):
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
def _named(what: str) -> Iterator[None]:
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
