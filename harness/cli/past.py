"""How long the pieces of past runs took on this machine, so that the next run can tell the time left from the first
minute on. Nothing depends on it: where the table is missing, damaged, of another machine or cannot be written, a run
guesses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import BaseModel, ConfigDict, Field

from mixmark.harness.contracts.schema import Result
from mixmark.harness.discover import noise_floor

LONGEST_S = 1e6  # a row that says more is damage
MAX_ROWS = 2000  # of a tier and preset; the oldest are forgotten
MAX_BYTES = 4 << 20  # a larger file is damage
MAX_NAME = 300  # characters of a row's name, in which a plugin may have named a device

Row = Annotated[str, Field(max_length=MAX_NAME)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]


class _Kept(BaseModel):
    """What is stored: the seconds of each row, by tier and preset, and the machine that they are of."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    machine: tuple[str | int | None, ...]
    rows: dict[str, dict[Row, Seconds]] = {}


def path() -> Path:
    """Returns the file that holds the times."""
    return Path(platformdirs.user_data_dir("mixmark")) / "past-times.json"


def recall(header: Result) -> Mapping[str, float]:
    """Returns the seconds of each row that runs of this tier and preset took on this machine."""
    return _read().rows.get(_runs(header), {})


def keep(header: Result, times: Mapping[str, float]) -> None:
    """Adds the rows of a run. A row that was known becomes the mean of the past and this time, so that one run on a
    loaded machine is soon forgotten."""
    fresh = {row: seconds for row, seconds in times.items() if len(row) <= MAX_NAME and 0 <= seconds <= LONGEST_S}
    if not fresh:
        return
    kept = _read()
    rows = kept.rows.get(_runs(header), {})
    fresh = {row: (rows.get(row, seconds) + seconds) / 2 for row, seconds in fresh.items()}
    newest = {**fresh, **{row: seconds for row, seconds in rows.items() if row not in fresh}}
    kept.rows[_runs(header)] = dict(islice(newest.items(), MAX_ROWS))
    target = path()
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_suffix(f".{os.getpid()}")
        written.write_text(kept.model_dump_json())
        written.replace(target)


def _runs(header: Result) -> str:
    return f"{header.tier} {header.preset}"


def _read() -> _Kept:
    """What is stored of this machine; nothing where the file is missing, damaged, or of another machine."""
    with suppress(OSError, ValueError, RecursionError):
        if path().stat().st_size <= MAX_BYTES:
            kept = _Kept.model_validate(json.loads(path().read_text()))
            if kept.machine == noise_floor.machine():
                return kept
    return _Kept(machine=noise_floor.machine())
