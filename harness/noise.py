"""The machine's noise floor: how far two measurements of the same thing lie apart here. Kept between runs."""

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
    """Remembers the floor of this machine, by rename. Raises ResultError where that cannot be written."""
    target = path()
    content = {"noise_floor": floor, "created_utc": created_utc, "machine": _machine()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(content, allow_nan=False))
        fresh.replace(target)
    except OSError as error:
        raise ResultError(f"cannot keep the noise floor in {target}: {error.strerror}") from error
    return target


def recall() -> float | None:
    """The floor that `mixmark selftest` measured on this machine; None where it did not, or on another one."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        content = json.loads(path().read_text())
        floor = float(content["noise_floor"])
        if content["machine"] == _machine() and 0 <= floor < 10:
            return floor
    return None


def _machine() -> list[str | int | None]:
    return [processor.name(), os.cpu_count(), memory.total_bytes()]
