"""The result folder: one journal line and one raw file after every cell, result.json at the end.

    result.json             the result without stamps and samples; it is written by a rename when the run ends
    journal.jsonl           the first line is the result as it began; each later line holds what was added together,
                            {"records": […]}, {"meterings": […]} or {"phases": […]}; of a key that comes twice,
                            the later one counts
    raw/<key>.npz           the stamps of a record, and the record's key
    raw/<phase>.energy.npz  the samples of a metering, and the name of its phase

A crash loses only the cell that was running. Every OSError becomes a ResultError, and what was written stays.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import ValidationError

from harness.errors import ResultError
from harness.judge.coherent import contradictions
from harness.schema import SCHEMA, Audit, Completions, Fact, Metering, Phase, Record, Result, Samples

PLAIN = frozenset(np.dtype(name) for name in ("float32", "int32", "int64"))
COLUMNS = tuple(column.name for column in fields(Completions))
SAMPLES = tuple(column.name for column in fields(Samples))
KEYS = {"records": "key", "meterings": "phase", "phases": "name"}
# What numpy and zipfile raise on a damaged or hostile file; RuntimeError covers encrypted and unknown members.
DAMAGE = (ValueError, LookupError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
MAX_JSON_BYTES = 64 << 20  # a record is a few kB
MAX_RAW_BYTES = 1 << 30  # uncompressed; five minutes at 100,000 marks/s take half of it


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
            self._journal("records", *records)

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
            self._journal("meterings", metering)

    def plan(self, phase: Phase) -> None:
        """Adds a phase that was planned during the run; it follows the phases that were planned before."""
        with _named(f"cannot write the plan of {phase.name} to {self.path}"):
            self._journal("phases", phase)

    def _journal(self, name: str, *facts: Fact) -> None:
        dumped = [fact.model_dump(mode="json") for fact in facts]
        line = json.dumps({name: dumped}, allow_nan=False).encode() + b"\n"
        _append_line(self.path / "journal.jsonl", line)

    def finish(self, result: Result) -> None:
        """Writes result.json. `result.finished` says whether the run is over; otherwise it can be resumed."""
        with _named(f"cannot write {self.path / 'result.json'}"), _replaced(self.path / "result.json") as file:
            file.write(_dumped(result, indent=2))


def create(path: Path, header: Result, needs_bytes: int = 0) -> Store:
    """Makes a new folder for the run that `header` describes: an unfinished Result without records and meterings.

    Raises ResultError if the folder is not empty, cannot be written, or the disk has less than `needs_bytes` free.
    """
    if header.records or header.meterings or header.finished:
        raise ValueError("the header of a run must be unfinished and without records and meterings")
    with _named(f"cannot write results to {path}"):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ResultError(
                f"{path} exists and is not an empty folder", "continue its run with --resume, or choose another --out"
            )
        (path / "raw").mkdir(parents=True)
        free = shutil.disk_usage(path).free
        if free < needs_bytes:
            (path / "raw").rmdir()
            raise ResultError(
                f"the disk of {path} has {free / 1e9:.1f} GB free, but the run needs {needs_bytes / 1e9:.1f} GB",
                "free some space, or choose a folder on another disk with --out",
            )
        _append_line(path / "journal.jsonl", _dumped(header))
        _sync_folder(path)
    return Store(path)


def resume(path: Path) -> Store:
    """Opens the folder of an unfinished run for more records; `open` reads what it holds. An incomplete last line of
    the journal is removed."""
    if open(path).finished:
        raise ResultError(f"the run in {path} is finished", "there is nothing to resume; start a new run")
    journal = path / "journal.jsonl"
    if not journal.is_file():
        raise ResultError(f"{path} has no journal.jsonl", "start a new run")
    with _named(f"cannot write to {path}"), journal.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    return Store(path)


def open(path: Path) -> Result:
    """Reads the result in a folder, or at the path of a result.json, with its stamps and samples. The result of an
    unfinished run holds what was measured so far. Raises ResultError if the folder holds no consistent result."""
    folder = path.parent if path.name == "result.json" else path
    summary, journal = folder / "result.json", folder / "journal.jsonl"
    if not folder.is_dir():
        raise ResultError(f"{folder} is not a folder", "give the folder that `mixmark run --out` wrote")
    written = _parsed(summary, _read(summary)) if summary.exists() else None
    if written is not None and (written.get("finished") or not journal.exists()):
        return _joined(folder, summary, written)
    if journal.exists():
        return _joined(folder, journal, _replayed(journal))
    raise ResultError(f"{folder} holds no Mixmark result", "give the folder that `mixmark run --out` wrote")


def export_json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of result.json."""
    return Result.model_json_schema(mode="serialization")


def _dumped(result: Result, indent: int | None = None) -> bytes:
    return json.dumps(result.model_dump(mode="json"), indent=indent, allow_nan=False).encode() + b"\n"


def _replayed(journal: Path) -> dict[str, Any]:
    """Reads the journal as a result. A last line without a line end was cut off by a crash and is dropped."""
    lines = _read(journal).split(b"\n")[:-1]
    if not lines:
        raise ResultError(f"{journal} is empty", "start a new run in another folder")
    header, *added = [_parsed(journal, line, number) for number, line in enumerate(lines, 1)]
    _check_version(journal, header)
    found: dict[str, dict[str, Any]] = {name: {} for name in KEYS}
    for number, line in enumerate(added, 2):
        [(name, facts)] = line.items() if len(line) == 1 else [("", None)]
        if name not in KEYS or not isinstance(facts, list) or not all(isinstance(fact, dict) for fact in facts):
            raise ResultError(
                f"line {number} of {journal} is not a journal line of Mixmark", "it was edited; run again"
            )
        found[name] |= {str(fact.get(KEYS[name])): fact for fact in facts}
    planned = header.get("phases")
    later = [*(planned if isinstance(planned, list) else ()), *found.pop("phases").values()]
    return header | {name: list(facts.values()) for name, facts in found.items()} | {"phases": later}


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


def _joined(folder: Path, source: Path, content: dict[str, Any]) -> Result:
    _check_version(source, content)
    records, meterings = content.pop("records", None), content.pop("meterings", None)
    if not isinstance(records, list) or not isinstance(meterings, list):
        raise ResultError(f"{source} has no list of records and meterings")
    try:
        header = Result.model_validate(content | {"records": ()})
        facts = {
            "records": tuple(_record(folder, each) for each in records),
            "meterings": tuple(_metering(folder, each) for each in meterings),
        }
        result = Result(**{name: getattr(header, name) for name in Result.model_fields} | facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "result"
        raise ResultError(
            f"{source} contradicts itself: {where}: {first['msg']}", "it was edited or damaged; run again"
        ) from error
    if problem := next(contradictions(result), None):
        raise ResultError(f"{source} contradicts itself: {problem}", "it was edited or damaged; run again")
    return result


def _record(folder: Path, content: Any) -> Record:
    """Validates the record before its raw file is opened, because only a valid key is safe to use as a file name."""
    if not isinstance(content, dict) or content.get("error") is not None:
        return Record.model_validate(content)
    stand_in = Completions(*(np.array([value]) for value in (0, 0, 1, 0, 1)))
    key = Record.model_validate(content | {"completions": stand_in}).key
    with _raw(folder / "raw" / f"{key}.npz") as arrays:
        _check_owner(arrays, key)
        columns = [arrays[name] for name in COLUMNS]
        if any(column.dtype != np.int64 for column in columns):
            raise ValueError("stamps must be int64")
        completions = Completions(*columns)
    record = Record.model_validate(content | {"completions": completions})
    if record.audit is not None and record.audit.feeds:
        _answers(folder / "raw" / f"{key}.answers.npz", record, record.audit)
    return record


def _answers(path: Path, record: Record, audit: Audit) -> None:
    """Checks that the audited answers are stored, each with all of its units, so that anybody can audit them again."""
    with _raw(path) as arrays:
        serials, answers = arrays["serials"], arrays["answers"]
        if serials.tolist() != list(audit.feeds) or len(answers) != len(serials):
            raise ValueError(f"it does not hold the answers to the audited feeds {', '.join(map(str, audit.feeds))}")
        units = answers.shape[1] if answers.ndim > 1 else "no"
        if units != (record.feed_units or units):
            raise ValueError(f"an answer has {units} units, but a feed has {record.feed_units}")
        if answers.dtype not in PLAIN:
            raise ValueError(f"answers must be float32, int32 or int64, but these are {answers.dtype}")
        if not np.isfinite(answers).all():
            raise ValueError("an answer is not finite")


def _metering(folder: Path, content: Any) -> Metering:
    """Validates the metering before its raw file is opened, as `_record` does."""
    metering = Metering.model_validate(content)
    with _raw(folder / "raw" / f"{metering.phase}.energy.npz") as arrays:
        _check_owner(arrays, metering.phase)
        samples = {}
        for number, id in enumerate(arrays["domains"].ravel().tolist()):
            columns = [arrays[f"{name}_{number}"] for name in SAMPLES]
            if [column.dtype for column in columns] != [np.int64, np.int64, np.float64]:
                raise ValueError("samples must be int64 stamps and float64 values")
            samples[str(id)] = Samples(*columns)
    return metering.model_copy(update={"samples": samples})


@contextmanager
def _raw(path: Path) -> Iterator[Any]:
    """Opens the arrays of a raw file. Every error while they are read becomes a ResultError."""
    try:
        if not path.is_file():  # a device or a pipe could block for ever
            raise ResultError(f"{path} is missing", "copy the whole result folder, raw/ included")
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_RAW_BYTES:
                raise ValueError(f"it holds more than {MAX_RAW_BYTES >> 20} MiB of raw data")
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except DAMAGE as error:
        raise ResultError(f"{path} is damaged: {error}", "copy the result folder again, or run again") from error


def _check_owner(arrays: Any, key: str) -> None:
    if str(arrays["key"]) != key:
        raise ValueError(f"it belongs to {str(arrays['key'])[:80]!r}, not to {key!r}")


def _read(path: Path) -> bytes:
    with _named(f"cannot read {path}"):
        if not path.is_file():
            raise ResultError(f"{path} is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ResultError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB, so it is not a Mixmark result")
    return content


def _parsed(path: Path, text: bytes, line: int | None = None) -> dict[str, Any]:
    where = path if line is None else f"line {line} of {path}"
    try:
        content = json.loads(
            text, parse_constant=_refused, parse_int=_whole, parse_float=_real, object_pairs_hook=_object
        )
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
