"""Paths of the host's memory, copied by its processor, also between NUMA nodes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import HOST_POOL, Absent
from mixmark.harness.resources import cpus
from mixmark.harness.resources.files import text

NODES = Path("/sys/devices/system/node")
TRIALS = 5
Bytes = npt.NDArray[np.uint8]
Copying = Callable[[Array, Array], None]


def _by_loop(source: Array, destination: Array) -> None:
    """By numpy's vector loop."""
    np.positive(source, out=destination)


def _by_memmove(source: Array, destination: Array) -> None:
    """By libc's memmove, if neither array has gaps."""
    np.copyto(destination, source)


def _faster(blocks: Sequence[tuple[Array, Array]]) -> Copying:
    """Returns the one of the two that copies these blocks faster. Neither is so at every size: on an AMD EPYC memmove
    has 2.9 GB/s for 64 KiB where the loop has 24, since it takes `rep movsb`, and 12.8 for 256 MiB where the loop has
    7.5, since it writes past the caches."""

    def typical_ns(copy: Copying) -> float:
        found = []
        for _ in range(TRIALS):
            begin_ns = time.perf_counter_ns()
            for source, destination in blocks:
                copy(source, destination)
            found.append(time.perf_counter_ns() - begin_ns)
        return median(found)

    typical_ns(_by_memmove)  # the first copy touches the pages
    return min(_by_loop, _by_memmove, key=typical_ns)


class HostCopy:
    """Two arrays in one process."""

    def __init__(self, source: Bytes, destination: Bytes, blocks: int) -> None:
        self._source, self._destination = source, destination
        rows = (memory.view(np.uint64).reshape(blocks, -1) for memory in (source, destination))
        self._blocks = [*zip(*rows, strict=True)]
        self._copying = _faster(self._blocks)

    def put(self, end: End, offset: int, data: Array) -> None:
        memory = self._source if end == "source" else self._destination
        memory[offset : offset + len(data)] = data

    def copy(self, times: int) -> None:
        copying = self._copying
        for source, destination in islice(cycle(self._blocks), times):
            copying(source, destination)

    def take(self, offset: int, count: int) -> Array:
        return self._destination[offset : offset + count]


class HostPaths:
    """The host's memory, copied by its processor."""

    name = "host"

    def paths(self) -> Iterable[DataPath | Absent]:
        yield _path("copy", HOST_POOL, HOST_POOL)
        shown = self._nodes()
        nodes = [name for name, threads in shown.items() if threads]
        for name in (name for name in shown if name not in nodes):
            reason = "no path: a first write by a processor of it places its memory, and this process may use none"
            yield Absent(kind="path", name=f"host/{name}", reason=reason)
        if len(shown) < 2:
            yield Absent(kind="path", name="host/node", reason="no path: the system shows one NUMA node")
        for first in nodes if len(nodes) > 1 else ():
            for second in nodes:
                yield _path(f"{first}-{second}", f"host/{first}", f"host/{second}")

    def open(self, path: str, size_bytes: int, blocks: int) -> AbstractContextManager[Copy]:
        first, _, second = path.removeprefix("host/").partition("-")
        return _in_process(size_bytes, blocks, self._nodes().get(first), self._nodes().get(second))

    def _nodes(self) -> dict[str, set[int]]:
        """The usable hardware threads of each NUMA node; a node may have none, such as one of CXL memory."""
        if sys.platform != "linux":
            return {}
        folders = sorted(NODES.glob("node*"))
        return {each.name: {*cpus.listed(text(each / "cpulist"))} & {*cpus.usable()} for each in folders}


def _path(id: str, source: str, destination: str) -> DataPath:
    return DataPath(id=f"host/{id}", source=source, destination=destination, through_caches=True)


@contextmanager
def _in_process(size_bytes: int, blocks: int, first: set[int] | None, second: set[int] | None) -> Iterator[Copy]:
    """A page belongs to the node of the thread that first writes it. The source's node copies."""
    before: set[int] = set()
    if sys.platform == "linux" and first:
        before = os.sched_getaffinity(0)
    arrays = []
    try:
        for threads in (second, first):
            if sys.platform == "linux" and threads:
                os.sched_setaffinity(0, threads)
            arrays.append(np.full(size_bytes * blocks, 0, np.uint8))
        destination, source = arrays
        yield HostCopy(source, destination, blocks)
    finally:
        if sys.platform == "linux" and before:
            os.sched_setaffinity(0, before)
