"""The ids of the devices that an energy source covers: the host's processor, its GPUs, or the whole machine."""

from __future__ import annotations

from collections.abc import Iterable

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Device


def host(devices: Iterable[Device]) -> list[str]:
    """The host's processor and its slices. The processor counts even if no adapter reaches it."""
    return sorted({HOST_PROCESSOR} | {part_of(part) for device in devices if device.on_host for part in device.silicon})


def gpus(devices: Iterable[Device]) -> list[str]:
    """The ids of all GPUs, including those inside groups and slices."""
    return sorted({part_of(part) for device in devices for part in device.silicon if part.startswith("gpu:")})


def everything(devices: Iterable[Device]) -> tuple[str, ...]:
    """All devices and their parts, the memory, and the node as a whole."""
    return (
        *sorted({part for device in devices for part in (device.id, *map(part_of, device.silicon))}),
        "memory",
        "node",
    )
