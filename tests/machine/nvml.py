"""NVIDIA's library with one GPU, made up."""

from __future__ import annotations

from types import SimpleNamespace


class FakeNvml(SimpleNamespace):
    """pids: the processes that compute on the GPU. driver: whether one is installed."""

    NVMLError = LookupError
    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def __init__(self, pids: list[int], driver: bool = True) -> None:
        processes = [SimpleNamespace(pid=pid) for pid in pids]
        super().__init__(
            closed=0,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetUUID=lambda device: "GPU-1",
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: 0x44,
            nvmlDeviceGetComputeRunningProcesses=lambda device: processes,
            nvmlDeviceGetClockInfo=lambda device, kind: 1700,
            nvmlDeviceGetTemperature=lambda device, kind: 66,
            nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=37, memory=5),
        )
        self.driver = driver

    def nvmlInit(self) -> None:
        if not self.driver:
            raise LookupError

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlDeviceGetEnforcedPowerLimit(self, device: int) -> int:
        raise LookupError  # not supported
