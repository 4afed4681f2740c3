"""What sources cover, by the ids of devices: the host's processor, its GPUs, or all of the machine."""

from __future__ import annotations

from collections.abc import Iterable

from harness.schema import HOST_PROCESSOR, Device


def host(devices: Iterable[Device]) -> list[str]:
    """The processor, and what an adapter made of it; it is there also where no adapter reaches it."""
    return sorted({HOST_PROCESSOR} | {each.id for each in devices if each.on_host})


def gpus(devices: Iterable[Device]) -> list[str]:
    return sorted({part for each in devices for part in each.silicon if part.startswith("gpu:")})


def everything(devices: Iterable[Device]) -> tuple[str, ...]:
    return (*sorted({part for each in devices for part in (each.id, *each.silicon)}), "memory", "node")
