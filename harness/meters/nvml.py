"""Reads the energy counter and the power of NVIDIA GPUs through NVML (package nvidia-ml-py).

`domains` imports the package. A GPU is found by its UUID, because NVML and CUDA order GPUs differently. Counter and
power have one sensor, so comparing them shows whether power is read often enough, not whether the sensor is right. Both
cover the whole card; a MIG slice has neither.

It ran on one H200 and one H100 (driver 580.159.04, x86-64): counter and power changed ten times a second, and the
integral of the power was within 1 % of the counter over windows of 6 s to 70 s. Reading the counter took 3.5 to 6 ms of
a core, and the power 0.1 ms. MIG and GPUs before Hopper were tested on a fake library only.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mixmark.harness.contracts.errors import refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters.common import absent, domain_of, gpu_ids, library_reader

SOURCE = "docs.nvidia.com/deploy/nvml-api"
SECOND_NS = 1_000_000_000
POWER_AVERAGE, POWER_INSTANT = 185, 186  # fields of nvml.h, and their scopes
GPU = 0
DRIVER = "sudo modprobe nvidia, or install NVIDIA's driver, until nvidia-smi lists the GPU"


class Nvml:
    name = "nvml"

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_options("the meter nvml", options)
        self._reads: dict[str, Callable[[], float]] = {}

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        try:
            import pynvml as nvml  # here, because only metered machines need it

            nvml.nvmlInit()
        except Exception as error:  # no package, NVMLError, or what an old library lacks
            fix = "pip install nvidia-ml-py" if isinstance(error, ImportError) else DRIVER
            yield absent("nvml", f"{error}: {fix}")
            return
        yield from self._gpus(nvml, gpu_ids(devices))

    def read(self, domain: Domain) -> Sequence[Sample]:
        return (Sample(self._reads[domain.id]()),)

    def _gpus(self, nvml: Any, ids: Iterable[str]) -> Iterator[Domain | Absent]:
        for id in ids:
            uuid = id.removeprefix("gpu:")
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                if uuid.startswith("MIG-") or _mig(nvml, handle):
                    reason = "MIG is on, and NVML meters whole GPUs only: sudo nvidia-smi -mig 0, then reset the GPU"
                    yield absent(id, reason)
                    continue
                yield from self._domains(nvml, handle, id)
            except Exception as error:
                yield absent(id, f"NVML: {error}")

    def _domains(self, nvml: Any, handle: Any, id: str) -> Iterator[Domain | Absent]:
        """The domains of one GPU. The counter contains the power."""
        uuid = id.removeprefix("gpu:")
        parent = None
        counter = _works(_reader(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3))
        if counter:
            parent = f"nvml/{uuid}/energy"
            self._reads[parent] = counter
            yield domain_of(parent, (id,), "energy", f"nvmlDeviceGetTotalEnergyConsumption; {SOURCE}")
        powers = [
            ("NVML_FI_DEV_POWER_INSTANT, scope GPU", _field(nvml, handle, POWER_INSTANT), None),
            ("NVML_FI_DEV_POWER_AVERAGE, scope GPU", _field(nvml, handle, POWER_AVERAGE), SECOND_NS),
        ]
        if platform.machine() != "aarch64":  # on Grace Hopper it may be of the module (nvml.h)
            usage = _reader(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
            powers.append(("nvmlDeviceGetPowerUsage", usage, _averaging_ns(nvml, handle)))
        for source, read, averaging_ns in powers:
            power = _works(read)
            if power:
                name = f"nvml/{uuid}/power"
                self._reads[name] = power
                yield domain_of(name, (id,), "power", f"{source}; {SOURCE}", parent=parent, averaging_ns=averaging_ns)
                return
        if not parent:
            yield absent(id, "NVML reports neither its energy nor its power: the GPU or its driver lacks a sensor")


def _reader(read: Callable[[], float]) -> Callable[[], float]:
    return library_reader(read, "NVML")


def _field(nvml: Any, handle: Any, field: int) -> Callable[[], float]:
    """A reader of a field in watts; NVML returns an unsigned integer in milliwatts."""

    def read() -> float:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(field, GPU)])
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise OSError(f"NVML: error {value.nvmlReturn} for field {field}")
        return float(value.value.uiVal) / 1e3

    return _reader(read)


def _works(read: Callable[[], float]) -> Callable[[], float] | None:
    """The reader, if it reads more than zero. A driver may return zero for a missing sensor."""
    try:
        return read if read() > 0 else None
    except OSError:
        return None


def _mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except Exception:  # MIG is not supported, or the library does not know it
        return False


def _averaging_ns(nvml: Any, handle: Any) -> int | None:
    """The averaging time of power. By nvml.h one second on Ampere and newer, except GA100 (capability 8.0)."""
    try:
        return SECOND_NS if tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) > (8, 0) else None
    except Exception:  # also if the library lacks the call
        return None
