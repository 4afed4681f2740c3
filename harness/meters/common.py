"""Functions that several meters share: options, the ids that a source covers, reads of sysfs and of libraries."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Device, Domain


def choice_option(meter: str, options: Mapping[str, str], name: str, allowed: Iterable[str]) -> str | None:
    """The option. None: it was not given. Raises UsageError for another word."""
    value = options.get(name)
    if value is not None and value not in (words := list(allowed)):
        raise UsageError(f"the meter {meter} takes {name} {', '.join(words)}, and not {value!r}")
    return value


def number_option(meter: str, options: Mapping[str, str], name: str, signed: bool = False) -> float | None:
    """The option as a number; `1%` is 0.01. None: it was not given. Raises UsageError."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (not signed and value <= 0):
        raise UsageError(f"the meter {meter} takes a number for {name}, and not {text!r}")
    return value


def host_ids(devices: Iterable[Device]) -> list[str]:
    """The host's processor and its slices. The processor counts even if no adapter reaches it."""
    return sorted({HOST_PROCESSOR} | {part_of(part) for device in devices if device.on_host for part in device.silicon})


def gpu_ids(devices: Iterable[Device]) -> list[str]:
    """The ids of all GPUs, including those inside groups and slices."""
    return sorted({part_of(part) for device in devices for part in device.silicon if part.startswith("gpu:")})


def all_ids(devices: Iterable[Device]) -> tuple[str, ...]:
    """All devices and their parts, the memory, and the node as a whole."""
    return (
        *sorted({part for device in devices for part in (device.id, *map(part_of, device.silicon))}),
        "memory",
        "node",
    )


def read_integer(path: Path) -> int:
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


def library_reader(read: Callable[[], float], library: str, *errors: type[Exception]) -> Callable[[], float]:
    """The same call, but with OSError in place of the library's own errors."""

    def call() -> float:
        try:
            return read()
        except errors as error:
            raise OSError(f"{library}: {error}") from error

    return call


def card_domain(
    id: str,
    covers: tuple[str, ...],
    quantity: Literal["energy", "power"],
    source: str,
    parent: str | None = None,
    averaging_ns: int | None = None,
) -> Domain:
    """A domain of the boundary `devices`. id: begins with the meter's name and a slash."""
    return Domain(
        id=id,
        meter=id.split("/")[0],
        covers=covers,
        boundary="devices",
        quantity=quantity,
        method="integrated" if quantity == "power" else "counter",
        averaging_ns=averaging_ns,
        parent=parent,
        source=source,
    )
