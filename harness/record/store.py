"""Writes and reads a result folder: one line and one raw file after each measurement, result.json at the end.

While a run goes on, the journal is the result:

    journal.jsonl           the first line is the result as it began. Each later line holds facts that were added
                            together, {"records": […]}, {"meterings": […]}, {"connections": […]} or {"phases": […]};
                            the later of two facts with the same key counts. {"sha256": {…}} beside records and
                            meterings holds the hashes of their raw files. {"found": […]} and {"absent": […]} add what
                            an experiment found out, or could not. {"begun": ["mixed"]} says that the windows of a
                            phase open, {"resumed": [12]} that the run was resumed after twelve records
    raw/<key>.npz           the timestamps of a record, and the record's key
    raw/<key>.outputs.npz   the audited outputs of a record, and the serial numbers of their feeds
    raw/<phase>.energy.npz  the samples of a metering, and the name of its phase

When it is over, two files replace the journal:

    result.json             all facts but timestamps and samples
    SHA256SUMS              the hashes of result.json and of each raw file, for `sha256sum -c`

A crash loses only the measurement that was running. Every OSError becomes a ResultError, and everything that was
written stays. The hashes are taken of the bytes as they were written, and kept in memory: a file that another
process changes during the run cannot become part of the result.

A folder may come from anyone. Opening it takes bounded time and memory, compares the hashes and checks the schema;
whether its facts agree with each other is judged later (`judge.rules.consistency`)."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import ValidationError

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.schema import SCHEMA, Fact, Metering, Record, Result
from mixmark.harness.plugins import locks
from mixmark.harness.record import files
from mixmark.harness.record.raw_files import SAMPLES, RawFiles
from mixmark.harness.resources.files import foreign, sync

RESULTS = Path("results")
"""The folder for the result folders of runs without --out."""
JOURNAL, SUMMARY, SUMS = "journal.jsonl", "result.json", "SHA256SUMS"
KEYS = {"records": ("key",), "meterings": ("phase",), "connections": ("phase", "host"), "phases": ("name",)}
"""The fields that identify a fact, by its kind."""
LINE_ENDS = "git does that with core.autocrlf: set `* -text` in .gitattributes, and check the folder out again"
EDITED = "it was edited or damaged; copy the result folder again, or run again"
ELSEWHERE = "choose another folder with --out"
SUM = re.compile(r"([0-9a-f]{64})  (result\.json|raw/[a-z0-9.-]+\.npz)")
"""A line of SHA256SUMS."""


@dataclass(frozen=True)
class Store:
    """A result folder to which one process writes. When a call returns, what it added is safe on disk."""

    path: Path
    sha256: dict[str, str] = field(default_factory=dict)
    """The hash of each raw file as it was written, by its name."""

    def append(self, *records: Record) -> None:
        """Adds all of the records or none: their timestamps are written before the journal line that names them."""
        with files.explained(f"cannot write record {', '.join(record.key for record in records)} to {self.path}"):
            sha256: dict[str, str] = {}
            for record in records:
                if record.completions is not None:
                    columns = {"key": np.array(record.key), **vars(record.completions)}
                    sha256[f"{record.key}.npz"] = self._write(f"{record.key}.npz", columns)
                    if record.audit is not None and record.audit.feeds:
                        sha256[f"{record.key}.outputs.npz"] = record.audit.sha256
            self._add("records", records, sha256)

    def meter(self, metering: Metering) -> None:
        """Adds a metering: its samples are written before the journal line that names them."""
        with files.explained(f"cannot write the energy of {metering.phase} to {self.path}"):
            columns = {
                f"{name}_{number}": getattr(samples, name)
                for number, samples in enumerate(metering.samples.values())
                for name in SAMPLES
            }
            ids = np.array(list(metering.samples), np.str_)
            name = f"{metering.phase}.energy.npz"
            sha256 = self._write(name, {"key": np.array(metering.phase), "domains": ids, **columns})
            self._add("meterings", (metering,), {name: sha256})

    def add(self, name: str, *facts: Fact | str) -> None:
        """Adds facts that have no raw files to a field of the result, all of them or none."""
        with files.explained(f"cannot write the {name} to {self.path}"):
            self._add(name, facts)

    def _write(self, name: str, columns: Mapping[str, np.ndarray[Any, Any]]) -> str:
        """Writes a raw file and returns its hash."""
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **columns)
        with files.replaced(self.path / "raw" / name) as file:
            file.write(content.getbuffer())
        return hashlib.sha256(content.getbuffer()).hexdigest()

    def _add(self, name: str, facts: Iterable[Fact | str], sha256: Mapping[str, str] = MappingProxyType({})) -> None:
        """Adds a line with the facts and the hashes of their raw files."""
        added = [fact if isinstance(fact, str) else fact.model_dump(mode="json") for fact in facts]
        line: dict[str, Any] = {name: added}
        if sha256:
            line["sha256"] = dict(sha256)
        files.append_line(self.path / JOURNAL, json.dumps(line, allow_nan=False).encode() + b"\n")
        self.sha256.update(sha256)

    def finish(self, result: Result) -> None:
        """Replaces the journal of a finished run by result.json and the hashes. A run that is not finished can be
        resumed from its journal, so nothing is written of it. Raises ResultError if a raw file is not as it was
        written."""
        if not result.finished:
            return
        with files.explained(f"cannot write {self.path / SUMMARY}"):
            sha256 = {name: self.sha256[name] for name in raw_names(result)}
            for name, written in sha256.items():
                if files.sha256_of(self.path / "raw" / name) != written:
                    changed = f"another process changed {self.path / 'raw' / name} while the run went on"
                    raise ResultError(changed, "run again; nothing that an adapter started may write to this folder")
            content = json.dumps(result.model_dump(mode="json"), indent=2, allow_nan=False).encode() + b"\n"
            with files.replaced(self.path / SUMMARY) as file:
                file.write(content)
            with files.replaced(self.path / SUMS) as file:  # from here on the folder is finished
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
    source = RawFiles(folder, sha256)
    return [source.record(record) for record in records]


def received_metering(folder: Path, metering: Any, sha256: Mapping[str, str]) -> Metering:
    """The metering that another host sent; see `received`."""
    return RawFiles(folder, sha256).metering(metering)


def sums(folder: Path) -> dict[str, str]:
    """The hash of each raw file of a result folder."""
    return {path.name: files.sha256_of(path) for path in (folder / "raw").iterdir()}


def results_below(folder: Path) -> list[Path]:
    """The result folders in a folder, sorted."""
    return sorted({path.parent for name in (SUMS, JOURNAL) for path in folder.glob(f"*/{name}")})


def results_of(folder: Path) -> list[Path]:
    """The result folders of an entry of a board, results/1, results/2, …, in their order; for any other folder,
    itself."""
    inside = [path for path in folder.glob("results/*") if re.fullmatch("[1-9][0-9]{0,3}", path.name)]
    return sorted(inside, key=lambda path: int(path.name)) or [folder]


def newest(folder: Path) -> Path | None:
    """The result folder in a folder that was written last; None if there is none."""

    def written_ns(result: Path) -> int:
        return max(path.stat().st_mtime_ns for name in (SUMS, JOURNAL) if (path := result / name).exists())

    return max(results_below(folder), key=written_ns, default=None)


def refuse_used(path: Path) -> None:
    """Raises ResultError if the path exists and is not an empty folder."""
    with files.explained(f"cannot write results to {path}", ELSEWHERE):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = "choose another --out" if live(path) else "continue its run with --resume, or choose another --out"
            raise ResultError(f"{path} exists and is not an empty folder", hint)


def create(path: Path, header: Result, needs_bytes: int = 0) -> Store:
    """Makes a new folder for the run that `header` describes: an unfinished Result without measurements.

    Raises ResultError if the folder is not empty, cannot be written, or the disk has less than `needs_bytes` free.
    """
    if header.finished:
        raise ValueError("the header of a run must be unfinished")
    refuse_used(path)
    with files.explained(f"cannot write results to {path}", ELSEWHERE):
        (path / "raw").mkdir(parents=True)
        free = shutil.disk_usage(path).free
        if free < needs_bytes:
            (path / "raw").rmdir()
            raise ResultError(
                f"the disk of {path} has {filesize(free)} free, but the run needs {filesize(needs_bytes)}",
                "free some space, or choose a folder on another disk with --out",
            )
        files.append_line(path / JOURNAL, json.dumps(header.model_dump(mode="json"), allow_nan=False).encode() + b"\n")
        sync(path)
    return Store(path)


def resume(path: Path) -> Store:
    """Opens the folder of an unfinished run for more records. Removes an incomplete last line from the journal, and
    adds a line that says after how many records the run was resumed."""
    before = open(path)
    if before.finished:
        raise ResultError(f"the run in {path} is finished", "there is nothing to resume; start a new run")
    journal = path / JOURNAL
    with files.explained(f"cannot write to {path}"):
        with journal.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        files.append_line(journal, json.dumps({"resumed": [len(before.records)]}).encode() + b"\n")
        return Store(path, _replayed(journal)[1])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the journal within the block, and at most as long as this process lives: the run in the folder goes on.

    Raises ResultError if another process has locked it.
    """
    with files.explained(f"cannot lock the run in {path}"):
        journal = (path / JOURNAL).open("r+b")
    with journal:
        if not locks.acquire(journal.fileno()):
            raise still_going_on(path)
        yield


def live(path: Path) -> bool:
    """Whether the run in the folder goes on now, in any process that shares the folder and its locks."""
    with suppress(OSError), foreign(path, JOURNAL, sys.maxsize) as journal:
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
        return _result(RawFiles(folder, sha256), folder / SUMMARY, content)
    if (folder / JOURNAL).exists():
        content, sha256 = _replayed(folder / JOURNAL)
        result = _result(RawFiles(folder, sha256), folder / JOURNAL, content)
        return result.model_copy(update={"live": live(folder)})
    if (folder / SUMMARY).exists():
        raise ResultError(f"{folder} has no {SUMS}", f"copy the whole result folder, not only {SUMMARY}")
    raise ResultError(f"{folder} holds no Mixmark result", "give the folder that `mixmark run --out` wrote")


def _finished(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The content of result.json, and the hash of each raw file by its name."""
    lines = files.read_limited(folder / SUMS).decode(errors="replace").splitlines()
    found = [SUM.fullmatch(line) for line in lines]
    sha256 = {line[2]: line[1] for line in found if line}
    if len(sha256) != len(lines):
        raise ResultError(f"{folder / SUMS} is not a list of hashes of Mixmark", EDITED)
    text = files.read_limited(folder / SUMMARY)
    if hashlib.sha256(text).hexdigest() != sha256.get(SUMMARY):
        if hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest() == sha256.get(SUMMARY):
            raise ResultError(f"the line endings of {folder / SUMMARY} were changed", LINE_ENDS)
        raise ResultError(f"{folder / SUMMARY} is damaged: its hash is not the one in {SUMS}", EDITED)
    content = files.parse_json(folder / SUMMARY, text)
    _check_version(folder / SUMMARY, content)
    return content, {path.removeprefix("raw/"): digest for path, digest in sha256.items()}


def _replayed(journal: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The journal as an unfinished result, and the hash of each raw file by its name. A last line without a line end
    was cut off by a crash and is dropped."""
    text = files.read_limited(journal)
    lines = io.BytesIO(text[: text.rfind(b"\n") + 1])
    if not (first := lines.readline()):
        raise ResultError(f"{journal} is empty", "start a new run in another folder")
    header = files.parse_json(journal, first, 1)
    _check_version(journal, header)
    found: dict[str, dict[tuple[str, ...], Any]] = {name: {} for name in KEYS}
    told: dict[str, list[Any]] = {"resumed": []}
    for name in ("begun", "found", "absent"):
        told[name] = [*before] if isinstance(before := header.get(name), list) else []
    sha256: dict[str, str] = {}
    for number, text in enumerate(lines, 2):
        line = files.parse_json(journal, text, number)
        sums = line.pop("sha256", {})
        [(name, facts)] = line.items() if len(line) == 1 else [("", None)]
        if not isinstance(facts, list) or not isinstance(sums, dict):
            raise ResultError(f"line {number} of {journal} is not a journal line of Mixmark", EDITED)
        if name in told and not sums:
            told[name] += facts
        elif name in KEYS and all(isinstance(fact, dict) for fact in facts):
            found[name] |= {tuple(str(fact.get(part)) for part in KEYS[name]): fact for fact in facts}
            sha256 |= sums
        else:
            raise ResultError(f"line {number} of {journal} is not a journal line of Mixmark", EDITED)
    planned = header.get("phases")
    phases = [*(planned if isinstance(planned, list) else ()), *found.pop("phases").values()]
    added = {name: list(facts.values()) for name, facts in found.items()}
    return header | added | told | {"phases": phases, "finished": False}, sha256


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


def _result(raw: RawFiles, source: Path, content: dict[str, Any]) -> Result:
    records, meterings = content.pop("records", None), content.pop("meterings", None)
    if not isinstance(records, list) or not isinstance(meterings, list):
        raise ResultError(f"{source} has no list of records and meterings")
    try:
        header = Result.model_validate(content | {"records": ()})
        facts = {
            "records": tuple(raw.record(record) for record in records),
            "meterings": tuple(raw.metering(metering) for metering in meterings),
        }
        return Result(**{name: getattr(header, name) for name in Result.model_fields} | facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "result"
        raise ResultError(f"{source} breaks the schema: {where}: {first['msg']}", EDITED) from error
