"""The host's processor as a device, and the ids of GPUs, the same for all adapters.

Runs, meters and watchers identify a GPU by its id: the vendor's UUID, which the vendor's meter lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from mixmark.harness.contracts.errors import Unsupported, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import HOST_POOL, HOST_PROCESSOR, Device, Precision
from mixmark.harness.resources import memory, processor
from mixmark.harness.resources.cpus import cores as cores

SYSFS = Path("/sys/bus/pci/devices")
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of x86, x86 and Arm; other processors emulate bf16 through fp32


@dataclass(frozen=True)
class Place:
    """A device and the runtime's name of it."""

    device: Device
    name: str


Found = TypeVar("Found", bound=Place)


def reached(places: Iterable[Found], device: Device, runtime: str, suite: Suite, precision: str) -> Found:
    """The place of a device. Raises Unsupported if the runtime does not reach the device, or does not offer the suite
    there in the precision."""
    for place in places:
        if place.device.id == device.id:
            if precision not in (offered := place.device.offers(suite.name)):
                raise Unsupported(f"{runtime} computes {suite.name} on {device.id} in {', '.join(offered)} only")
            return place
    raise Unsupported(f"{runtime} does not reach {device.id}")


def cpu(precisions: tuple[Precision, ...]) -> Device:
    """All cores as one device. memory_bytes is the installed memory; the limit of a container may be lower."""
    return Device(
        id=HOST_PROCESSOR,
        kind="cpu",
        name=processor.name() or "",
        memory_pool=HOST_POOL,
        memory_bytes=memory.installed_bytes(),
        precisions=precisions,
    )


def threads_option(adapter: str, options: Mapping[str, str]) -> int | None:
    """The size of the CPU's thread pool, for an adapter whose only option is `threads`; None if it is not given.

    Raises UsageError for any other option, and for a value that is not a positive integer.
    """
    refuse_options(f"adapter {adapter}", options, ["threads"])
    given = options.get("threads")
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise UsageError(f"adapter {adapter}: threads is {given!r}", hint="give a number of threads, 1 or more")
    return None if given is None else int(given)


def multiplies_bf16() -> bool:
    """Whether the processor has instructions that multiply bf16; False if unknown."""
    return not BF16.isdisjoint(flags())


def flags() -> frozenset[str]:
    """The processor's extensions that multiply matrices faster, as Linux names them; empty if unknown."""
    return frozenset(processor.flags(processor.threads()))


def gpu_id(pci_address: str, unknown: str) -> str:
    """The id of the GPU at a PCI address, such as `0000:01:00.0`; `unknown` if its UUID cannot be found.

    NVIDIA's UUID is read through NVML. AMD's UUID is the text of `unique_id`, as in HIP and AMD SMI. Intel's UUID
    consists of vendor, device, revision and address, as in Level Zero's driver. NVIDIA's and Intel's were tested on
    files that were written by hand: the authors have none of these GPUs.
    """
    folder = SYSFS / pci_address.lower()
    try:
        vendor = int((folder / "vendor").read_text(), 16)
        if vendor == NVIDIA:
            return f"gpu:{_nvidia_uuid(pci_address)}"
        if vendor == AMD:
            serial = (folder / "unique_id").read_text().strip().lower().zfill(16)
            return f"gpu:GPU-{UUID(bytes=serial.encode())}"
        if vendor == INTEL:
            return f"gpu:GPU-{_intel_uuid(folder, pci_address)}"
    except (OSError, ValueError, ImportError):  # no such file, no driver, or no NVML
        pass
    return unknown


def pci_address(card: str) -> str:
    """The PCI address of a card of Linux's graphics drivers, such as `card0`; empty if it has none."""
    device = Path("/sys/class/drm", card, "device")
    return device.resolve().name if device.exists() else ""


def nvidia_gpus(precisions: tuple[Precision, ...]) -> Iterator[Device]:
    """The CUDA devices that this process may use, listed through NVML, which claims no device memory."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return  # the build is for CUDA, but the machine has no driver
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if visible == [""] or str(index) in visible or uuid in visible:
            yield Device(
                id=f"gpu:{uuid}",
                kind="gpu",
                name=pynvml.nvmlDeviceGetName(handle),
                memory_pool=f"gpu:{uuid}",
                memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                precisions=precisions,
            )
    pynvml.nvmlShutdown()


def _nvidia_uuid(pci_address: str) -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid: str = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(pci_address.encode()))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from error
    return uuid


def _intel_uuid(folder: Path, pci_address: str) -> UUID:
    domain, bus, place = pci_address.split(":")
    device, function = place.split(".")
    words = [int((folder / name).read_text(), 16) for name in ("vendor", "device", "revision")] + [int(domain, 16)]
    head = b"".join(word.to_bytes(2, "little") for word in words)
    return UUID(bytes=head + bytes([int(bus, 16), int(device, 16), int(function, 16)]) + bytes(5))
