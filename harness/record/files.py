"""Writes files that a crash cannot leave half written, and turns every OSError into a ResultError."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mixmark.harness.contracts.errors import ResultError


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns an OSError into a ResultError that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise ResultError(f"{what}: {error.strerror or error}", "free disk space or fix the permissions") from error


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
    sync_folder(path.parent)


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


def sync_folder(path: Path) -> None:
    """Makes a rename survive a power cut. Only POSIX can open a folder."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
