"""Watches NVIDIA's GPUs through NVML (package nvidia-ml-py, imported when the watcher is built).

Without a driver it watches nothing. Values that a GPU does not report are left out. It ran on an H200 and an H100, at
rest and at work, and saw the H100's power cap hold it back; foreign processes, other reasons for low clocks and MIG
were tested on a fake library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from mixmark.harness.contracts.protocols import AcceleratorState, Check
from mixmark.harness.contracts.schema import ClockReason

# The bits of NVML's clock event reasons, nvml.h.
REASONS: dict[int, ClockReason] = {
    0x01: "idle",
    0x02: "clock setting",  # the clocks that an application or an administrator chose
    0x04: "power cap",
    0x08: "hardware protection",  # temperature, current or the power supply: the bits beside it may say which
    0x10: "synchronised clocks",  # with the other GPUs of its sync boost group
    0x20: "thermal limit",
    0x40: "thermal protection",
    0x80: "power supply protection",
    0x100: "clock setting",  # of a GPU that drives a display
}


class Nvidia:
    """Raises ImportError if the package is missing."""

    name = "nvidia"

    def __init__(self) -> None:
        import pynvml  # here, since finding this plugin must not load a driver's library

        self._nvml: Any = None
        with suppress(pynvml.NVMLError):  # there is no driver, so there is nothing to watch
            pynvml.nvmlInit()
            self._nvml = pynvml

    def disclose(self) -> Iterator[Mapping[str, str]]:
        return (gpu.facts() for gpu in self._gpus())

    def read(self) -> Iterator[AcceleratorState]:
        return (state for gpu in self._gpus() if (state := gpu.state()))

    def checks(self) -> Iterator[Check]:
        for gpu in self._gpus():
            facts = gpu.facts()
            name, uuid = f"gpu {facts.get('name', '')}".strip(), facts.get("id", "").removeprefix("gpu:")
            yield from filter(None, (_persistence(name, facts, uuid), _power_limit(name, facts, uuid)))

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _gpus(self) -> Iterator[_Gpu]:
        """The GPUs that NVML can open."""
        if self._nvml is None:
            return
        with suppress(self._nvml.NVMLError):
            for index in range(self._nvml.nvmlDeviceGetCount()):
                with suppress(self._nvml.NVMLError):
                    yield _Gpu(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index))


class _Gpu:
    """One GPU. Each call queries NVML again."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def state(self) -> AcceleratorState | None:
        """None if the GPU does not report its id, so that its state belongs to no device."""
        nvml, handle, query = self._nvml, self._handle, self._query
        uuid = query(lambda: nvml.nvmlDeviceGetUUID(handle))
        if uuid is None:
            return None
        return AcceleratorState(
            id=f"gpu:{uuid}",
            reasons=self.reasons(),
            clock_mhz=query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            temperature_c=query(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_cap_mw=query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
            pids=query(lambda: [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
            utilization_pct=query(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        )

    def reasons(self) -> tuple[ClockReason, ...] | None:
        # The older of the call's two names, the only one that drivers before 535 know.
        bits = self._query(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        return None if bits is None else tuple(dict.fromkeys(name for bit, name in REASONS.items() if bits & bit))

    def facts(self) -> dict[str, str]:
        nvml, handle = self._nvml, self._handle
        questions: dict[str, Callable[[], object]] = {
            "id": lambda: f"gpu:{nvml.nvmlDeviceGetUUID(handle)}",
            "name": lambda: nvml.nvmlDeviceGetName(handle),
            "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
            "cuda": lambda: "{}.{}".format(*divmod(nvml.nvmlSystemGetCudaDriverVersion() // 10, 100)),
            "firmware": lambda: nvml.nvmlDeviceGetVbiosVersion(handle),
            "compute_capability": lambda: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle))),
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "power_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            "power_limit_default_mw": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
            "clock_max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "clock_max_memory_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "pcie_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "pcie_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
            "ecc": lambda: "on" if nvml.nvmlDeviceGetEccMode(handle)[0] else "off",
            "mig": lambda: "on" if nvml.nvmlDeviceGetMigMode(handle)[0] else "off",
            "persistence": lambda: "on" if nvml.nvmlDeviceGetPersistenceMode(handle) else "off",
        }
        values = {name: self._query(question) for name, question in questions.items()}
        return {name: str(value) for name, value in values.items() if value is not None}

    def _query(self, question: Callable[[], Any]) -> Any:
        """NVML's value; None if it has none, e.g. for a sensor that the GPU lacks."""
        with suppress(self._nvml.NVMLError):
            return question()
        return None


def _persistence(name: str, facts: Mapping[str, str], uuid: str) -> Check | None:
    match facts.get("persistence"):
        case "on":
            return Check(f"{name} persistence", "ok", "on")
        case "off":
            message = "off: the driver unloads between runs, and clocks and settings with it"
            return Check(f"{name} persistence", "warn", message, f"sudo nvidia-smi -i {uuid} -pm 1")
    return None


def _power_limit(name: str, facts: Mapping[str, str], uuid: str) -> Check | None:
    limits = [facts.get(key, "") for key in ("power_limit_mw", "power_limit_default_mw")]
    if not all(limit.isdecimal() for limit in limits):
        return None
    limit_w, default_w = (int(limit) / 1000 for limit in limits)
    message = f"{limit_w:.0f} W, by default {default_w:.0f} W"
    if limit_w < default_w:
        return Check(f"{name} power limit", "warn", message, f"sudo nvidia-smi -i {uuid} -pl {default_w:.0f}")
    return Check(f"{name} power limit", "ok", message)
