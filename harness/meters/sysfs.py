"""Reads a number from a small file of sysfs, for the meters rapl and hwmon."""

from __future__ import annotations

import os
from pathlib import Path


def number(path: Path) -> int:
    """The file's integer, read faster than by Path.read_text. Raises OSError, also if it holds anything else."""
    handle = os.open(path, os.O_RDONLY)
    try:
        text = os.read(handle, 64)
    finally:
        os.close(handle)
    try:
        return int(text)
    except ValueError:
        raise OSError(f"{path} holds no number: {text!r}") from None
