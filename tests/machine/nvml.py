"""NVIDIA's library with one GPU, made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

GPU = {
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x44,
    "nvmlDeviceGetClockInfo": 1700,
    "nvmlDeviceGetTemperature": 66,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=5),
}


class FakeNvml:
    """pids: the processes that compute on the GPU. driver: whether one is installed. answers: what each function of the
    library returns; one that is not named is not supported."""

    NVMLError = LookupError

    def __init__(self, pids: Sequence[int] = (), driver: bool = True, answers: Mapping[str, object] = GPU) -> None:
        processes = [SimpleNamespace(pid=pid) for pid in pids]
        own = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": 0, "nvmlInit": None}
        self.answers: dict[str, object] = {**own, "nvmlDeviceGetComputeRunningProcesses": processes, **answers}
        if not driver:
            del self.answers["nvmlInit"]
        self.closed = 0

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def __getattr__(self, name: str) -> int | Callable[..., object]:
        def answer(*_: object) -> object:
            return self.answers[name]  # a KeyError is a LookupError

        return 0 if name.startswith("NVML_") else answer
