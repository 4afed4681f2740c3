"""Shared functions of meters: the ids that a source covers, reads of sysfs and of libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Absent, Boundary, Device, Domain


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


def absent(name: str, reason: str, covers: tuple[str, ...] = ()) -> Absent:
    """A source of energy that cannot be read."""
    return Absent(kind="meter", name=name, reason=reason, covers=covers)


def read_integer(path: Path) -> int:
    """The integer in a file. Raises OSError, also if it is not an integer."""
    text = path.read_text(errors="replace")
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


def domain_of(
    id: str,
    covers: tuple[str, ...],
    quantity: Literal["energy", "power"],
    source: str,
    boundary: Boundary = "devices",
    **facts: Any,
) -> Domain:
    """A domain. id: begins with the meter's name. facts: further fields; by default energy is of a counter and power is
    integrated."""
    method = "integrated" if quantity == "power" else "counter"
    known = {"id": id, "meter": id.split("/")[0], "covers": covers, "quantity": quantity, "source": source}
    return Domain.model_validate({**known, "boundary": boundary, "method": method, **facts})
