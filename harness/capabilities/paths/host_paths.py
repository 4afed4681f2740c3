"""Paths of the host's memory: by its processor, also with a conversion, between two processes and NUMA nodes."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import HOST_POOL, Absent
from mixmark.harness.resources import cpus
from mixmark.harness.resources.files import text

NODES = Path("/sys/devices/system/node")
TRIALS = 5
Bytes = npt.NDArray[np.uint8]


def _by_loop(source: Bytes, destination: Bytes) -> None:
    """By numpy's vector loop."""
    np.positive(source.view(np.uint64), out=destination.view(np.uint64))


def _by_memmove(source: Bytes, destination: Bytes) -> None:
    """By libc's memmove."""
    np.copyto(destination, source)


def _faster(source: Bytes, destination: Bytes) -> Callable[[Bytes, Bytes], None]:
    """Returns the one of the two that copies these arrays faster. Neither is so at every size: on an AMD EPYC memmove
    has 2.9 GB/s for 64 KiB where the loop has 24, since it takes `rep movsb`, and 12.8 for 256 MiB where the loop has
    7.5, since it writes past the caches."""

    def typical_ns(copy: Callable[[Bytes, Bytes], None]) -> float:
        found = []
        for _ in range(TRIALS):
            begin_ns = time.perf_counter_ns()
            copy(source, destination)
            found.append(time.perf_counter_ns() - begin_ns)
        return median(found)

    _by_memmove(source, destination)  # the first copy touches the pages
    return min(_by_loop, _by_memmove, key=typical_ns)


class HostCopy:
    """Two arrays in one process."""

    def __init__(self, source: Bytes, destination: Bytes) -> None:
        self.source, self.destination = source, destination

    def put(self, end: End, offset: int, data: Array) -> None:
        memory = self.source if end == "source" else self.destination
        memory[offset : offset + len(data)] = data

    def copy(self, times: int) -> None:
        for _ in range(times):
            self._faster(self.source, self.destination)

    @cached_property
    def _faster(self) -> Callable[[Bytes, Bytes], None]:
        return _faster(self.source, self.destination)

    def take(self, offset: int, count: int) -> Array:
        return self.destination[offset : offset + count]


class FormatCopy(HostCopy):
    """bf16 to fp32, which has all values of bf16. Both are kept as integers, so that no NaN is changed."""

    def __init__(self, size_bytes: int) -> None:
        self._values, self._converted = np.zeros(size_bytes // 2, np.uint16), np.zeros(size_bytes // 2, np.uint32)
        super().__init__(self._values.view(np.uint8), self._converted.view(np.uint8))

    def put(self, end: End, offset: int, data: Array) -> None:
        if end == "source":
            return super().put(end, offset, data)
        values = data.view(np.uint16)
        self._converted[offset // 2 : offset // 2 + len(values)] = values.astype(np.uint32) << 16

    def copy(self, times: int) -> None:
        for _ in range(times):
            np.left_shift(self._values, 16, out=self._converted, dtype=np.uint32)

    def take(self, offset: int, count: int) -> Array:
        values = self._converted[offset // 2 : (offset + count + 1) // 2] >> 16
        return values.astype(np.uint16).view(np.uint8)[offset % 2 :][:count]


class LayoutCopy(HostCopy):
    """[heads, tokens, width] to [tokens, heads, width], as between two engines' layouts of a KV cache."""

    HEADS, HEAD_BYTES = 8, 128  # 64 values of 16 bits

    def __init__(self, size_bytes: int) -> None:
        super().__init__(np.zeros(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8))
        self._tokens = size_bytes // (self.HEADS * self.HEAD_BYTES)
        self._rows = self.destination.reshape(-1, self.HEAD_BYTES)

    def put(self, end: End, offset: int, data: Array) -> None:
        if end == "source":
            return super().put(end, offset, data)
        self._rows[self._moved(offset, len(data))] = data.reshape(-1, self.HEAD_BYTES)

    def copy(self, times: int) -> None:
        source = self.source.reshape(self.HEADS, self._tokens, self.HEAD_BYTES).transpose(1, 0, 2)
        for _ in range(times):
            np.copyto(self._rows.reshape(source.shape), source)

    def take(self, offset: int, count: int) -> Array:
        return self._rows[self._moved(offset, count)].reshape(-1)[offset % self.HEAD_BYTES :][:count]

    def _moved(self, offset: int, count: int) -> npt.NDArray[np.int64]:
        """The rows of the destination that hold these bytes of the source."""
        rows = np.arange(offset // self.HEAD_BYTES, -(-(offset + count) // self.HEAD_BYTES))
        return rows % self._tokens * self.HEADS + rows // self._tokens


class ProcessCopy(HostCopy):
    """The source's process writes into shared memory, and another process copies from there into its own."""

    def __init__(self, source: Bytes, shared: Bytes, destination: Bytes, peer: Connection) -> None:
        super().__init__(source, destination)
        self._shared, self._peer = shared, peer

    def copy(self, times: int) -> None:
        for _ in range(times):
            self._faster(self.source, self._shared)
            self._peer.send_bytes(b"c")
            self._peer.recv_bytes()


def _receive(connection: Connection, other: Connection, shared: Bytes, destination: Bytes) -> None:
    """The other process: copies whenever the first says so, until that is gone. other: the first process's end."""
    other.close()
    faster = _faster(shared, destination)
    while connection.recv_bytes() == b"c":
        faster(shared, destination)
        connection.send_bytes(b"d")


class HostPaths:
    """The host's memory, copied by its processor."""

    name = "host"

    def paths(self) -> Iterable[DataPath | Absent]:
        yield _path("copy")
        yield _path("bf16-fp32", converts="number format")
        yield _path("heads-tokens", converts="layout")
        if sys.platform != "win32":
            yield _path("process", route="staged")
        else:
            yield Absent(kind="path", name="host/process", reason="the system shares no memory with a forked process")
        shown = self._nodes()
        nodes = [name for name, threads in shown.items() if threads]
        for name in (name for name in shown if name not in nodes):
            reason = "no path: a first write by a processor of it places its memory, and this process may use none"
            yield Absent(kind="path", name=f"host/{name}", reason=reason)
        if len(shown) < 2:
            yield Absent(kind="path", name="host/node", reason="no path: the system shows one NUMA node")
        for first in nodes if len(nodes) > 1 else ():
            for second in nodes:
                yield _path(f"{first}-{second}", source=f"host/{first}", destination=f"host/{second}")

    def open(self, path: str, size_bytes: int) -> AbstractContextManager[Copy]:
        if path == "host/process":
            return _between_processes(size_bytes)
        if path == "host/bf16-fp32":
            return nullcontext(FormatCopy(size_bytes))
        if path == "host/heads-tokens":
            return nullcontext(LayoutCopy(size_bytes))
        first, _, second = path.removeprefix("host/").partition("-")
        return _in_process(size_bytes, self._nodes().get(first), self._nodes().get(second))

    def _nodes(self) -> dict[str, set[int]]:
        """The usable hardware threads of each NUMA node; a node may have none, such as one of CXL memory."""
        if sys.platform != "linux":
            return {}
        folders = sorted(NODES.glob("node*"))
        return {each.name: {*cpus.listed(text(each / "cpulist"))} & {*cpus.usable()} for each in folders}


def _path(id: str, **more: str) -> DataPath:
    """A path of host memory; from and to the whole of it, unless more is said."""
    ends = {"source": HOST_POOL, "destination": HOST_POOL, "through_caches": True}
    return DataPath.model_validate({"id": f"host/{id}", **ends, **more})


@contextmanager
def _in_process(size_bytes: int, first: set[int] | None, second: set[int] | None) -> Iterator[Copy]:
    """A page belongs to the node of the thread that first writes it. The source's node copies."""
    before: set[int] = set()
    if sys.platform == "linux" and first:
        before = os.sched_getaffinity(0)
    arrays = []
    try:
        for threads in (second, first):
            if sys.platform == "linux" and threads:
                os.sched_setaffinity(0, threads)
            arrays.append(np.full(size_bytes, 0, np.uint8))
        yield HostCopy(arrays[1], arrays[0])
    finally:
        if sys.platform == "linux" and before:
            os.sched_setaffinity(0, before)


@contextmanager
def _between_processes(size_bytes: int) -> Iterator[Copy]:
    if sys.platform == "win32":
        raise Unsupported("Windows forks no process")
    fork = multiprocessing.get_context("fork")
    shared, destination = (np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8) for _ in range(2))
    here, there = fork.Pipe()
    process = fork.Process(target=_receive, args=(there, here, shared, destination), daemon=True)
    process.start()
    there.close()
    try:
        yield ProcessCopy(np.zeros(size_bytes, np.uint8), shared, destination, here)
    finally:
        here.close()
        process.kill()
        process.join()
