"""The noise floor of this machine: how far two measurements of the same thing differ. It is stored between runs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from harness.errors import ResultError
from harness.watch import memory, processor


def path() -> Path:
    return Path(platformdirs.user_data_dir("mixmark")) / "noise-floor.json"


def keep(floor: float, created_utc: str) -> Path:
    """Stores the noise floor of this machine; returns the path of the file. Raises ResultError if that fails."""
    target = path()
    content = {"noise_floor": floor, "created_utc": created_utc, "machine": _machine()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(content, allow_nan=False))
        fresh.replace(target)
    except OSError as error:
        raise ResultError(f"cannot store the noise floor in {target}: {error.strerror}") from error
    return target


def recall() -> float | None:
    """Returns the noise floor that `mixmark selftest` measured, or None if it was not measured on this machine."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        content = json.loads(path().read_text())
        floor = float(content["noise_floor"])
        if content["machine"] == _machine() and 0 <= floor < 10:
            return floor
    return None


def _machine() -> list[str | int | None]:
    return [processor.name(), os.cpu_count(), memory.total_bytes()]
