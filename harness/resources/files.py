"""Reads the small text files of /proc and /sys, where a file that is absent or unreadable is empty and never an error,
and the files of folders that another process or another person wrote."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.text import plain

ROOT = Path("/")
MAX_TEXT = 200  # characters of one fact: it ends up on terminals and in tables
MAX_BYTES = 1 << 20
MAX_ARCHIVE_BYTES = 1 << 30
DAMAGE = (ValueError, LookupError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""The errors that a damaged or hostile .npz file raises; RuntimeError covers encrypted members."""
CHUNK_BYTES = 1 << 16


def text(path: Path | str, limit_bytes: int = MAX_BYTES) -> str:
    """The file's text, at most `limit_bytes` of it.

    It uses bare system calls, because the watch reads two files of every thread once a second. O_NONBLOCK keeps a pipe
    that lies where a file should be from stopping the reader.
    """
    content = b""
    with suppress(OSError, ValueError):  # ValueError: the name of the path holds a null byte
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            while len(content) < limit_bytes and (chunk := os.read(file, min(CHUNK_BYTES, limit_bytes - len(content)))):
                content += chunk
        finally:
            os.close(file)
    return content.decode(errors="replace")


class NotRead(OSError):
    """A file that no process may be made to read."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextmanager
def foreign(folder: Path, name: str, most_bytes: int) -> Iterator[BufferedReader]:
    """Opens a file of a folder that may come from anyone. name: below the folder, with /. Raises OSError unless it is a
    regular file of at most that size, inside the folder and behind no link: a pipe would block for ever."""
    path = os.path.join(os.path.realpath(folder), *name.split("/"))
    if os.path.realpath(path) != path:
        raise NotRead(errno.ELOOP, f"{name} is a link, or lies outside of its folder")
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotRead(errno.EINVAL, f"{name} is not a regular file")
        if status.st_size > most_bytes:
            raise NotRead(errno.EFBIG, f"{name} is larger than {filesize(most_bytes)}")
        yield file


def regular(path: Path, most_bytes: int) -> bytes:
    """The content of a file that another process wrote. Raises OSError as `foreign`."""
    with foreign(path.parent, path.name, most_bytes) as file:
        return file.read(most_bytes)


def archive(path: Path, most_bytes: int = MAX_ARCHIVE_BYTES) -> bytes:
    """The content of an .npz file that another process wrote. Raises OSError as `foreign`, and ValueError if it
    unpacks to more than its size."""
    content = regular(path, most_bytes)
    with zipfile.ZipFile(io.BytesIO(content)) as members:  # workers write them without compression
        if sum(member.file_size for member in members.infolist()) > len(content):
            raise ValueError(f"{path.name} unpacks to more than its size")
    return content


def line(path: Path) -> str | None:
    """The file's text as one printable line of at most MAX_TEXT characters; None if it has no text."""
    return plain(text(path), MAX_TEXT) or None


def integer(path: Path) -> int | None:
    """The file's decimal number; None if it holds something else."""
    digits = text(path).strip()
    return int(digits) if re.fullmatch(r"-?\d{1,20}", digits, re.ASCII) else None


def table(path: Path, separator: str = ":") -> dict[str, str]:
    """The file's lines as names and values, e.g. `MemTotal: 8388608 kB`."""
    pairs = (each.partition(separator) for each in text(path).splitlines())
    return {key.strip(): plain(value, 10_000) for key, _, value in pairs}


def sync(path: Path) -> None:
    """Makes a file, or a rename in a folder, survive a power cut. Only POSIX can open a folder."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
