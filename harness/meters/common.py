"""Shared functions of meters: options, the ids that a source covers, reads of sysfs and of libraries."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Device, Domain

UNITS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "J": 1.0, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6}
"""The watts or joules of one unit in which a meter may report."""
POWER = frozenset({"W", "mW", "kW"})
"""The units of power; the others are of energy."""


def choice_option(meter: str, options: Mapping[str, str], name: str, allowed: Iterable[str]) -> str | None:
    """The option. None if it was not given. Raises UsageError for another word."""
    value = options.get(name)
    if value is not None and value not in (words := list(allowed)):
        raise UsageError(f"the meter {meter} takes {name} {', '.join(words)}, not {value!r}")
    return value


def number_option(meter: str, options: Mapping[str, str], name: str, signed: bool = False) -> float | None:
    """The option as a number; `1%` is 0.01. None if it was not given. Raises UsageError for other text."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (not signed and value <= 0):
        raise UsageError(f"the meter {meter} takes a number for {name}, not {text!r}")
    return value


def host_ids(devices: Iterable[Device]) -> list[str]:
    """The ids of the host's processor, even if no adapter reaches it, and of its slices."""
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
    """The integer in a file, read faster than by Path.read_text. Raises OSError, also if it is not an integer."""
    handle = os.open(path, os.O_RDONLY)
    try:
        text = os.read(handle, 64)
    finally:
        os.close(handle)
    try:
        return int(text)
    except ValueError:
        raise OSError(f"{path} is not a number: {text!r}") from None


def library_reader(read: Callable[[], float], library: str) -> Callable[[], float]:
    """Returns a function like `read` that raises OSError for every error, also if the library lacks a call or takes
    other arguments: the source then lacks this reading and no other."""

    def call() -> float:
        try:
            return read()
        except OSError:
            raise
        except Exception as error:  # a vendor's library may raise anything
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
    """A domain of the boundary `devices`. id: the meter's name, a slash and a name."""
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
