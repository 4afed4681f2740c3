"""Copies of 64 MiB by a path of Mixmark, beside numpy's memcpy and torch's own loop.

Run: python -m bench.capabilities.paths [ROUNDS]   (6)

The path `host/copy` copies in its worker and is timed by the parent, as in `mixmark run --paths`. The other loops run
and are timed in this process, on the same two arrays. The path takes memcpy or numpy's vector loop, whichever is
faster at this size. The loops alternate. Each copies once before it is timed, since the first copy of a process that
slept takes up to a tenth longer; a path is measured right after its worker has written its memories. All of it is
done with PROCESSES workers, each time in memory that is allocated anew, since where the pages lie changes a rate by a
tenth. A ratio is the median over all rounds: above 1 the path is faster. The machine must do nothing else, since the
loops use caches and memory differently.

On an AMD EPYC with AVX2 torch's own loop copies 64 MiB 7 % faster than either of the path's two, in one process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from statistics import median

import numpy as np

from mixmark.harness.capabilities.paths.measuring import Bytes, Data
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.plugins import registry

SIZE = 64 << 20
COPIES = 8
PROCESSES = 8
GOAL = 0.97


def timed_ns(copy: Callable[[int], object]) -> int:
    copy(1)
    begin_ns = time.perf_counter_ns()
    copy(COPIES)
    return time.perf_counter_ns() - begin_ns


def memcpy(source: Bytes, destination: Bytes, copies: int) -> None:
    for _ in range(copies):
        np.copyto(destination, source)


def times_of(rounds: int) -> list[dict[str, float]]:
    """The times of each loop in nanoseconds, in memory that is allocated anew."""
    import torch

    torch.set_num_threads(1)  # memcpy has one thread
    source, destination = Data(1).next(SIZE), np.zeros(SIZE, np.uint8)
    torch_source, torch_destination = torch.from_numpy(source), torch.from_numpy(destination)
    with closing(PathProcess(registry.find("paths")["host"])) as process:
        process.paths()
        process.open("host/copy", SIZE, 1)
        process.put(source)
        loops: dict[str, Callable[[int], object]] = {
            "host/copy": lambda copies: process.copy(copies, 0),
            "memcpy": lambda copies: memcpy(source, destination, copies),
            "torch": lambda copies: [torch_destination.copy_(torch_source) for _ in range(copies)],
        }
        call_ns = median(timed_ns(lambda _: process.copy(0, 0)) for _ in range(rounds))
        times = [{name: timed_ns(loop) for name, loop in loops.items()} for _ in range(rounds)]
    return [each | {"host/copy": each["host/copy"] - call_ns} for each in times]


def main(rounds: int) -> bool:
    times = [each for _ in range(PROCESSES) for each in times_of(rounds)]
    for name in times[0]:
        print(f"{name}: {COPIES * SIZE / median(each[name] for each in times):.2f} GB/s")
    ratios = {name: median(each[name] / each["host/copy"] for each in times) for name in tuple(times[0])[1:]}
    for name, ratio in ratios.items():
        print(f"host/copy beside {name}: {ratio:.3f} (goal: at least {GOAL})")
    return min(ratios.values()) >= GOAL


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 6) else 1)
