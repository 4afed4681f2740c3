"""Reads the raw files of a result folder: the timestamps and outputs of a record, the samples of a metering.

Each file is compared with its hash, its size is limited, and it must hold exactly the arrays that a run writes. Every
error becomes a ResultError. Sizes are limited before anything is unpacked, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import DIGEST_BYTES, Audit, Completions, Metering, Record, Samples
from mixmark.harness.resources.files import DAMAGE, foreign

MAX_MEMBERS = 16_384  # a metering has three arrays a domain
MAX_DIRECTORY_BYTES = 1 << 20  # zipfile reads the whole directory of a zip into memory
ZIP_END = struct.Struct("<4s4H2LH")  # the record at the end of a zip, without a comment
ZIP64_LOCATOR = struct.Struct("<4sLQL")
PLAIN = frozenset(np.dtype(name) for name in ("float32", "int32", "int64"))
COLUMNS = tuple(column.name for column in fields(Completions))
"""The columns that a raw file of timestamps may lack."""
SAMPLES = tuple(column.name for column in fields(Samples))
MAX_RAW_BYTES = 512 << 20  # of all timestamps and samples of a folder: 13 million feeds of one timestamp each
SLACK_BYTES = 1 << 21  # of a raw file, for its headers and its directory
MAX_OUTPUT_BYTES = 4 << 30  # of all audited outputs of a folder: 32 times what a worker keeps for one record


@dataclass
class Budget:
    """The number of bytes of arrays that may still be unpacked."""

    left_bytes: int

    def take(self, size_bytes: int) -> None:
        """Raises ValueError if too few bytes are left."""
        if size_bytes > self.left_bytes:
            raise ValueError(f"it holds {size_bytes} bytes of arrays, and the folder may hold {self.left_bytes} more")
        self.left_bytes -= size_bytes


class Arrays:
    """The arrays of one open file."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        """Raises ValueError if the file holds more members, or more bytes, than it may."""
        _check_directory(file)
        self._archive = zipfile.ZipFile(file)
        members = self._archive.infolist()
        self.names = frozenset(member.filename.removesuffix(".npy") for member in members)
        if len(self.names) != len(members) or len(members) > MAX_MEMBERS:
            raise ValueError(f"it holds more than {MAX_MEMBERS} arrays, or two of one name")
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("its members are neither stored nor deflated")
        budget.take(sum(member.file_size for member in members))  # zipfile unpacks no more than this of a member

    def read(self, name: str) -> npt.NDArray[Any]:
        """Raises KeyError for an unknown name, ValueError for a member that is no plain array."""
        with self._archive.open(f"{name}.npy") as member:
            try:
                array = np.lib.format.read_array(member, allow_pickle=False)
            except Exception as error:  # numpy parses a header as Python, and raises whatever its tokenizer does
                raise ValueError(f"{name} is no plain array: {error}") from error
            if not array.itemsize or member.read(1):
                raise ValueError(f"{name} has another size than its header says")
        return array


def _check_taken(taken: npt.NDArray[Any], serials: npt.NDArray[Any], audit: Audit) -> None:
    """What a stage continued: an output of another share for each of its audited feeds."""
    count = len(audit.feeds)
    if serials.shape != (count,) or serials.dtype != np.int64 or taken.shape[:1] != (count,):
        raise ValueError("taken must be an output of the stage before for each output, with the number of its feed")
    if taken.dtype not in PLAIN or not all(np.isfinite(output).all() for output in taken):
        raise ValueError("taken must be finite values of float32, int32 or int64")


def _check_directory(file: BinaryIO) -> None:
    """Raises ValueError if the directory of the zip is too large to be read, or is not where numpy writes it."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - ZIP_END.size - ZIP64_LOCATOR.size))
    tail = file.read()
    end = tail[-ZIP_END.size :]
    if len(end) < ZIP_END.size or not end.startswith(b"PK\x05\x06") or tail.startswith(b"PK\x06\x07"):
        raise ValueError("it does not end as a raw file does")
    *_, directory_bytes, _, comment_bytes = ZIP_END.unpack(end)
    if directory_bytes > MAX_DIRECTORY_BYTES or comment_bytes:
        raise ValueError("its directory is longer than any raw file's")
    file.seek(0)


@dataclass
class RawFiles:
    """The raw files of one folder, and how much may still be read of them."""

    folder: Path
    sha256: Mapping[str, str]
    """The hash of each raw file, by its name."""
    raw: Budget = field(default_factory=lambda: Budget(MAX_RAW_BYTES))
    outputs: Budget = field(default_factory=lambda: Budget(MAX_OUTPUT_BYTES))

    def record(self, content: Any) -> Record:
        """Validates the record before its raw file is opened, because only a valid key is safe to use as a file
        name."""
        if not isinstance(content, dict) or content.get("error") is not None:
            return Record.model_validate(content)
        stand_in = Completions(*(np.array([value]) for value in (0, 0, 1, 0, 1)))
        record = Record.model_validate(content | {"completions": stand_in})
        key = record.key
        with self._arrays(f"{key}.npz", self.raw) as arrays:
            _check_owner(arrays, key, COLUMNS)
            columns = {name: arrays.read(name) for name in COLUMNS}
            if any(column.dtype != np.int64 or column.ndim != 1 for column in columns.values()):
                raise ValueError("timestamps must be columns of int64")
            completions = Completions(**columns)
        record = record.model_copy(update={"completions": completions})
        if record.audit is not None and record.audit.feeds:
            self._check_outputs(record, record.audit)
        return record

    def _check_outputs(self, record: Record, audit: Audit) -> None:
        """Checks that the audited outputs are stored, each with all of its units, so that the audit can be repeated."""
        with self._arrays(f"{record.key}.outputs.npz", self.outputs) as arrays:
            taken = arrays.names & {"taken", "taken_serials"}  # of a stage that continued the stage before
            if arrays.names - taken != {"serials", "previous_digests", "outputs"} or len(taken) == 1:
                raise ValueError("it must hold serials, previous_digests and outputs")
            if taken:
                _check_taken(arrays.read("taken"), arrays.read("taken_serials"), audit)
            serials, previous_digests, outputs = (
                arrays.read(name) for name in ("serials", "previous_digests", "outputs")
            )
            count = (len(audit.feeds),)
            if previous_digests.shape != (*count, DIGEST_BYTES) or previous_digests.dtype != np.uint8:
                raise ValueError(f"previous_digests must be a digest of {DIGEST_BYTES} bytes for each output")
            if serials.shape != count or outputs.shape[:1] != count or serials.tolist() != [*audit.feeds]:
                raise ValueError(
                    f"it does not hold the outputs for the audited feeds {', '.join(map(str, audit.feeds))}"
                )
            units = outputs.shape[1] if len(outputs.shape) > 1 else "none"
            if units != (record.feed_units or units):
                raise ValueError(f"units of an output: {units}, of a feed: {record.feed_units}")
            if outputs.dtype not in PLAIN:
                raise ValueError(f"outputs must be float32, int32 or int64, but these are {outputs.dtype}")
            if not all(np.isfinite(output).all() for output in outputs):
                raise ValueError("an output is not finite")

    def metering(self, content: Any) -> Metering:
        """Validates the metering before its raw file is opened, as `record` does."""
        metering = Metering.model_validate(content)
        with self._arrays(f"{metering.phase}.energy.npz", self.raw) as arrays:
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
    def _arrays(self, name: str, budget: Budget) -> Iterator[Arrays]:
        """Opens the arrays of a raw file. Every error while they are read becomes a ResultError."""
        path = self.folder / "raw" / name
        try:
            with foreign(self.folder, f"raw/{name}", budget.left_bytes + SLACK_BYTES) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != self.sha256.get(name):
                    raise ValueError("its hash is not the one that was written with it")
                yield Arrays(file, budget)
        except FileNotFoundError as error:
            raise ResultError(f"{path} is missing", "copy the whole result folder, raw/ included") from error
        except DAMAGE as error:
            raise ResultError(f"{path} is damaged: {error}", "copy the result folder again, or run again") from error


def _check_owner(arrays: Arrays, key: str, names: Sequence[str]) -> None:
    """Raises ValueError if the arrays belong to another key, or are not exactly these and the key."""
    if arrays.names != {"key", *names}:
        raise ValueError(f"it must hold key, {', '.join(names)}")
    owner = arrays.read("key")
    if owner.shape != () or str(owner) != key:
        raise ValueError(f"it belongs to {ascii(str(owner.reshape(-1)[:1]))[:80]}, not to {key!r}")
