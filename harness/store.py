"""The result folder: one journal line and one raw file after every cell, result.json at the end.

    result.json             the result without stamps and samples, written by rename when the run ends
    journal.jsonl           first line: the result as it began; then a line for what came to it together,
                            {"records": […]}, {"meterings": […]} or {"phases": […]}; the last of a key wins
    raw/<key>.npz           the stamps of a record, and its key
    raw/<phase>.energy.npz  the samples of a metering, and its phase

A crash costs the cell that was running. Every OSError becomes a ResultError, and nothing already written is lost.
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
    """An open result folder; one process writes to it. What was added is on disk for good when a call returns."""

    path: Path

    def append(self, *records: Record) -> None:
        """All or none: the stamps first, then the line that names them."""
        with _named(f"cannot write record {', '.join(record.key for record in records)} to {self.path}"):
            for record in records:
                if record.completions is not None:
                    columns = {name: getattr(record.completions, name) for name in COLUMNS}
                    with _replaced(self.path / "raw" / f"{record.key}.npz") as file:
                        np.savez(file, key=np.array(record.key), **columns)
            self._journal("records", *records)

    def meter(self, metering: Metering) -> None:
        """The samples first, then the line that names them."""
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
        """One that was planned while the run went on; it comes behind those that were planned before."""
        with _named(f"cannot write the plan of {phase.name} to {self.path}"):
            self._journal("phases", phase)

    def _journal(self, name: str, *facts: Fact) -> None:
        dumped = [fact.model_dump(mode="json") for fact in facts]
        line = json.dumps({name: dumped}, allow_nan=False).encode() + b"\n"
        _append_line(self.path / "journal.jsonl", line)

    def finish(self, result: Result) -> None:
        """Writes result.json; result.finished says whether the run is over or can be resumed."""
        with _named(f"cannot write {self.path / 'result.json'}"), _replaced(self.path / "result.json") as file:
            file.write(_dumped(result, indent=2))


def create(path: Path, header: Result, needs_bytes: int = 0) -> Store:
    """A new folder for the run that `header` describes, a Result without records and meterings that is not finished.

    Raises ResultError where the folder holds something, cannot be written, or the disk has not `needs_bytes` left.
    """
    if header.records or header.meterings or header.finished:
        raise ValueError("the header of a run has no records and no meterings and is not finished")
    with _named(f"cannot write results to {path}"):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ResultError(f"{path} exists and is not an empty folder", "--resume it, or choose another --out")
        (path / "raw").mkdir(parents=True)
        free = shutil.disk_usage(path).free
        if free < needs_bytes:
            (path / "raw").rmdir()
            raise ResultError(
                f"{path} has {free / 1e9:.1f} GB of disk left, the run needs {needs_bytes / 1e9:.1f} GB",
                "free some space, or choose a folder on another disk with --out",
            )
        _append_line(path / "journal.jsonl", _dumped(header))
        _sync_folder(path)
    return Store(path)


def resume(path: Path) -> Store:
    """An unfinished folder, to append to; `open` tells what it holds. A torn last line is cut off."""
    if open(path).finished:
        raise ResultError(f"{path} is finished", "there is nothing to resume: start a new run")
    journal = path / "journal.jsonl"
    if not journal.is_file():
        raise ResultError(f"{path} has no journal.jsonl", "start a new run")
    with _named(f"cannot write to {path}"), journal.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    return Store(path)


def open(path: Path) -> Result:
    """The result in a folder, or of a path to its result.json; stamps joined, partial where the run did not finish."""
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
    """JSON Schema of result.json."""
    return Result.model_json_schema(mode="serialization")


def _dumped(result: Result, indent: int | None = None) -> bytes:
    return json.dumps(result.model_dump(mode="json"), indent=indent, allow_nan=False).encode() + b"\n"


def _replayed(journal: Path) -> dict[str, Any]:
    """The journal as a result; a line without its end was torn by a crash and is dropped."""
    lines = _read(journal).split(b"\n")[:-1]
    if not lines:
        raise ResultError(f"{journal} is empty", "start a new run in another folder")
    header, *added = [_parsed(journal, line, number) for number, line in enumerate(lines, 1)]
    _check_version(journal, header)
    found: dict[str, dict[str, Any]] = {name: {} for name in KEYS}
    for number, line in enumerate(added, 2):
        [(name, facts)] = line.items() if len(line) == 1 else [("", None)]
        if name not in KEYS or not isinstance(facts, list) or not all(isinstance(fact, dict) for fact in facts):
            raise ResultError(f"line {number} of {journal} is not of a Mixmark journal", "it was edited; run again")
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
            f"{source} has schema {version}, from {age} Mixmark; this one reads {SCHEMA}",
            "update Mixmark" if version > SCHEMA else "read it with the Mixmark that wrote it",
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
            f"{source} does not hold together: {where}: {first['msg']}", "it was edited or damaged; run again"
        ) from error
    if problem := next(contradictions(result), None):
        raise ResultError(f"{source} does not hold together: {problem}", "it was edited or damaged; run again")
    return result


def _record(folder: Path, content: Any) -> Record:
    """Validated before its raw file is touched: only then is its key known to be a plain file name."""
    if not isinstance(content, dict) or content.get("error") is not None:
        return Record.model_validate(content)
    stand_in = Completions(*(np.array([value]) for value in (0, 0, 1, 0, 1)))
    key = Record.model_validate(content | {"completions": stand_in}).key
    with _raw(folder / "raw" / f"{key}.npz") as arrays:
        _of(arrays, key)
        columns = [arrays[name] for name in COLUMNS]
        if any(column.dtype != np.int64 for column in columns):
            raise ValueError("stamps are int64")
        completions = Completions(*columns)
    record = Record.model_validate(content | {"completions": completions})
    if record.audit is not None and record.audit.feeds:
        _answers(folder / "raw" / f"{key}.answers.npz", record, record.audit)
    return record


def _answers(path: Path, record: Record, audit: Audit) -> None:
    """They are there, those to the feeds that were audited, each with its units: so anybody can audit them again."""
    with _raw(path) as arrays:
        serials, answers = arrays["serials"], arrays["answers"]
        if serials.tolist() != list(audit.feeds) or len(answers) != len(serials):
            raise ValueError(f"its answers are not those to feeds {', '.join(map(str, audit.feeds))}")
        units = answers.shape[1] if answers.ndim > 1 else "no"
        if units != (record.feed_units or units):
            raise ValueError(f"an answer has {units} units, and not {record.feed_units}")
        if answers.dtype not in PLAIN:
            raise ValueError(f"answers are numbers, and these are {answers.dtype}")
        if not np.isfinite(answers).all():
            raise ValueError("an answer is not finite")


def _metering(folder: Path, content: Any) -> Metering:
    """As a record."""
    metering = Metering.model_validate(content)
    with _raw(folder / "raw" / f"{metering.phase}.energy.npz") as arrays:
        _of(arrays, metering.phase)
        samples = {}
        for number, id in enumerate(arrays["domains"].ravel().tolist()):
            columns = [arrays[f"{name}_{number}"] for name in SAMPLES]
            if [column.dtype for column in columns] != [np.int64, np.int64, np.float64]:
                raise ValueError("samples are int64 stamps and float64 values")
            samples[str(id)] = Samples(*columns)
    return metering.model_copy(update={"samples": samples})


@contextmanager
def _raw(path: Path) -> Iterator[Any]:
    """The arrays of a raw file. What goes wrong with them inside becomes a ResultError."""
    try:
        if not path.is_file():  # neither absent nor a device or a pipe
            raise ResultError(f"{path} is missing", "copy the whole result folder, raw/ included")
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_RAW_BYTES:
                raise ValueError(f"more than {MAX_RAW_BYTES >> 20} MiB of raw data")
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except DAMAGE as error:
        raise ResultError(f"{path} is damaged: {error}", "copy the result folder again, or run again") from error


def _of(arrays: Any, key: str) -> None:
    if str(arrays["key"]) != key:
        raise ValueError(f"it belongs to {str(arrays['key'])[:80]!r}")


def _read(path: Path) -> bytes:
    with _named(f"cannot read {path}"):
        if not path.is_file():
            raise ResultError(f"{path} is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ResultError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB: not a Mixmark result")
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
        raise ValueError(f"{text[:20]}… is beyond any run")
    return number


def _real(text: str) -> float:
    """So that no product or quotient of two figures is infinite."""
    number = float(text)
    if number and not 1e-100 < abs(number) < 1e100:
        raise ValueError(f"{text[:20]} is beyond any run")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a name that comes twice each reader would believe another value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


@contextmanager
def _named(what: str) -> Iterator[None]:
    """An OSError inside becomes a ResultError that says what could not be done."""
    try:
        yield
    except OSError as error:
        raise ResultError(f"{what}: {error.strerror or error}", "free disk space or fix the permissions") from error


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A file that is there whole or not at all."""
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
    """Whole or not at all: where the disk fills up inside the line, the part already written is cut off again."""
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
    """So that a rename survives a power cut; only POSIX lets one open a folder."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
