"""What powercap and hwmon have in common: a number in a small file, read ten times a second."""

from __future__ import annotations

import os
from pathlib import Path


def number(path: Path) -> int:
    """Raises OSError, also where it is no number. Cheaper than Path.read_text."""
    handle = os.open(path, os.O_RDONLY)
    try:
        text = os.read(handle, 64)
    finally:
        os.close(handle)
    try:
        return int(text)
    except ValueError:
        raise OSError(f"{path} holds no number: {text!r}") from None
