"""Reads the small text files of /proc and /sys. A file that is absent or unreadable is empty, never an error."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from mixmark.harness.contracts.text import plain

ROOT = Path("/")
MAX_TEXT = 200  # characters of one fact: it ends up on terminals and in tables
MAX_BYTES = 1 << 20
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


def line(path: Path) -> str | None:
    """The file's text as one printable line of at most MAX_TEXT characters; None where there is none."""
    return plain(text(path), MAX_TEXT) or None


def integer(path: Path) -> int | None:
    """The file's decimal number; None where it holds something else."""
    digits = text(path).strip()
    return int(digits) if re.fullmatch(r"-?\d{1,20}", digits, re.ASCII) else None


def table(path: Path, separator: str = ":") -> dict[str, str]:
    """The file's lines as names and values, e.g. `MemTotal: 8388608 kB`."""
    pairs = (each.partition(separator) for each in text(path).splitlines())
    return {key.strip(): plain(value, 10_000) for key, _, value in pairs}
