"""Writes files that a crash cannot leave half written, and reads JSON strictly and within limits.

A result folder may come from anyone. Every OSError becomes a ResultError.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from mixmark.harness.contracts import errors
from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.resources.files import foreign, regular, sync

MAX_JSON_BYTES = 256 << 20  # of result.json, and of the journal: 1,000 hosts have 66 MB in a simulation
MAX_JSON_OBJECTS = 1_000_000  # in each of the two; a block of conditions is one, and takes a kB of memory
MAX_JSON_VALUES = 24_000_000  # in each of the two; a block of conditions has 22


def sha256_of(path: Path) -> str:
    """The hash of a regular file. Raises OSError."""
    with foreign(path.parent, path.name, sys.maxsize) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


explained = partial(errors.explained, raised=ResultError)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
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
    sync(path.parent)


def append_line(path: Path, line: bytes) -> None:
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


def read_limited(path: Path) -> bytes:
    """The bytes of a JSON file or a list of hashes. Raises ResultError if it holds more than a result can."""
    with explained(f"cannot read {path}"):
        content = regular(path, MAX_JSON_BYTES)
    if content.count(b"{") + content.count(b"[") > MAX_JSON_OBJECTS or content.count(b",") > MAX_JSON_VALUES:
        raise ResultError(f"{path} holds more than {MAX_JSON_OBJECTS} objects or {MAX_JSON_VALUES} values")
    return content


def parse_json(path: Path, text: bytes, line: int | None = None) -> dict[str, Any]:
    """The JSON object in a text. path, line: named in the ResultError."""
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
    """Refuses an object with a repeated name, because programs differ in the value that they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is repeated in an object")
    return found
