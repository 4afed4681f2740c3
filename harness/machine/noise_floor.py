"""Stores the noise floor of this machine, which is how far two measurements of the same thing differ.

Each tier has its own, because a short measurement of a small network scatters more than a long one of a large network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs
from pydantic import BaseModel, ConfigDict

from mixmark.harness.contracts.errors import ResultError, explained
from mixmark.harness.contracts.schema import NoiseFloor, Tier
from mixmark.harness.resources import cpus, memory, processor


class _Kept(BaseModel):
    """The content of the file: the latest floor of each tier, and the machine that was measured."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    machine: tuple[str | int | None, ...]
    floors: dict[Tier, NoiseFloor] = {}


def path() -> Path:
    """Returns the file that holds the floors. Raises ResultError if this user has no home folder."""
    try:
        folder = Path(platformdirs.user_data_dir("mixmark"))
    except RuntimeError:  # newer releases of platformdirs raise it; older ones return a path that begins with ~
        folder = Path("~")
    if not folder.is_absolute():
        raise ResultError("cannot store a noise floor: this user has no home folder", "set HOME or XDG_DATA_HOME")
    return folder / "noise-floor.json"


def keep(floor: NoiseFloor) -> Path:
    """Stores the noise floor of this machine at a tier, in place of an earlier one; returns the path of the file.

    Raises ResultError if the file cannot be written. Floors of other tiers stay.
    """
    target = path()
    content = _Kept(machine=machine(), floors={**_read().floors, floor.tier: floor})
    elsewhere = "set XDG_DATA_HOME to a folder that can be written"
    with explained(f"cannot store the noise floor in {target}", elsewhere, ResultError):
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_text(content.model_dump_json())
        fresh.replace(target)
    return target


def floors() -> Mapping[Tier, NoiseFloor]:
    """The latest floor of each tier that was measured on this machine."""
    return _read().floors


def _read() -> _Kept:
    """The content of the file; empty if the file is missing, damaged, or of another machine. An unknown processor is
    like no other."""
    with suppress(OSError, ValueError, ResultError, RecursionError):
        kept = _Kept.model_validate(json.loads(path().read_text()))
        if kept.machine == machine() and kept.machine[0]:
            return kept
    return _Kept(machine=machine())


def machine() -> tuple[str | int | None, ...]:
    """What a floor holds for. A quota or an affinity makes another machine of it."""
    limit = cpus.quota()
    return processor.name(), len(cpus.usable()), str(limit and limit.cpus), memory.total_bytes()
