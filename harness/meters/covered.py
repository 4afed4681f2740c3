"""The ids of the devices that an energy source covers: the host's processor, its GPUs, or the whole machine."""

from __future__ import annotations

from collections.abc import Iterable

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Device


def host(devices: Iterable[Device]) -> list[str]:
    """The host's processor and its slices. The processor counts even where no adapter reaches it."""
    return sorted({HOST_PROCESSOR} | {part_of(part) for each in devices if each.on_host for part in each.silicon})


def gpus(devices: Iterable[Device]) -> list[str]:
    """The ids of all GPUs, those of which a device is a group or a slice too."""
    return sorted({part_of(part) for each in devices for part in each.silicon if part.startswith("gpu:")})


def everything(devices: Iterable[Device]) -> tuple[str, ...]:
    """All devices and what they are made of, the memory, and the node as a whole."""
    return (*sorted({part for each in devices for part in (each.id, *map(part_of, each.silicon))}), "memory", "node")
