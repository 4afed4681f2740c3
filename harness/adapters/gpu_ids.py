"""The ids of GPUs: every adapter gives a GPU the same one, by which runs, meters and watchers know that it is one part.

A vendor's own UUID comes first, since its meter lists that. An engine that knows only the PCI address finds it here.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

SYSFS = Path("/sys/bus/pci/devices")
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086


def gpu_id(pci_address: str, unknown: str) -> str:
    """The id of the GPU at a PCI address, such as `0000:01:00.0`; `unknown` if nothing tells its UUID.

    NVIDIA's UUID comes from NVML. AMD's is the text of `unique_id`, as HIP and AMD SMI give it. Intel's consists of its
    vendor, device, revision and address, as in Level Zero's driver. Only the first and the last were tried, on files
    that were written by hand: the authors have none of these GPUs.
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
