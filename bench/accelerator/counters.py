"""What NVML returns for the first GPU, in the form of tests/meters/logs: python -m bench.accelerator.counters FILE

`fields`, `rest` and `work` are described there; `read_us` has the CPU time and the elapsed time of one read of the
counter, of the powers and of the counter as a field. The work is products of matrices by torch, 4 s of 15.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from bench.accelerator import absent
from mixmark.harness.meters.nvml import GPU, POWER_AVERAGE, POWER_INSTANT

ENERGY = 83  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: a field may be read for less than the counter's own function
FIELDS = (POWER_AVERAGE, POWER_INSTANT, ENERGY)
SCOPES = (GPU, 1, 2)
READS = 50


def watched(seconds: float, interval_s: float, reads: list[Callable[[], int]]) -> Iterator[list[int]]:
    """[ms, values …] each interval."""
    begin_s = time.monotonic()
    while (now_s := time.monotonic()) < begin_s + seconds:
        yield [round((now_s - begin_s) * 1e3), *(read() for read in reads)]
        time.sleep(max(0, now_s + interval_s - time.monotonic()))


def cost_us(read: Callable[[], int]) -> list[float]:
    cpu_ns, begin_ns = time.thread_time_ns(), time.monotonic_ns()
    for _ in range(READS):
        read()
    return [round(each / READS / 1e3, 1) for each in (time.thread_time_ns() - cpu_ns, time.monotonic_ns() - begin_ns)]


def work(seconds: float) -> None:
    import torch

    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(20):
            square @ square
        torch.cuda.synchronize()


def main() -> None:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as error:  # NVMLError exists only where the import succeeds
        absent(f"NVML reaches no GPU: {error}; an NVIDIA driver and the package nvidia-ml-py are needed")
    fields = {}
    for field in FIELDS:
        for scope in SCOPES:
            (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])
            fields[f"{field} {scope}"] = [value.nvmlReturn, value.value.uiVal, value.valueType]

    def field_mw(field: int) -> Callable[[], int]:
        return lambda: int(nvml.nvmlDeviceGetFieldValues(handle, [(field, GPU)])[0].value.uiVal)

    def energy_mj() -> int:
        return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))

    def power_mw() -> int:
        return int(nvml.nvmlDeviceGetPowerUsage(handle))

    reads = [energy_mj, power_mw, field_mw(POWER_INSTANT), field_mw(POWER_AVERAGE)]
    timed = (*reads, field_mw(ENERGY))
    found = {
        "name": nvml.nvmlDeviceGetName(handle),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "capability": nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "mig": None,
        "fields": fields,
        "read_us": dict(zip(("energy", "usage", "instant", "average", "field"), map(cost_us, timed), strict=True)),
    }
    with suppress(nvml.NVMLError):
        found["mig"] = nvml.nvmlDeviceGetMigMode(handle)
    rest = list(watched(3, 0.002, reads))
    found["rest"] = [row for n, row in enumerate(rest) if not n or row[1:] != rest[n - 1][1:]]
    load = multiprocessing.get_context("spawn").Process(target=work, args=(4,))
    load.start()  # a thread would hold up the reads
    found["work"] = list(watched(15, 0.1, [energy_mj, field_mw(POWER_INSTANT)]))
    load.join()
    file = Path(sys.argv[1])
    file.write_text(json.dumps(found))
    print({name: value for name, value in found.items() if name not in ("rest", "work")})


if __name__ == "__main__":
    main()
