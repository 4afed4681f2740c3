"""Paths of the host's memory: by its processor, also with a conversion, between two processes and NUMA nodes."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

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
Pair = tuple[Any, Any]
Copying = Callable[[Any, Any], None]


def _by_loop(source: Array, destination: Array) -> None:
    """By numpy's vector loop."""
    np.positive(source, out=destination)


def _by_memmove(source: Array, destination: Array) -> None:
    """By libc's memmove, if neither array has gaps."""
    np.copyto(destination, source)


def _widened(source: Array, destination: Array) -> None:
    """bf16 to fp32, which has all values of bf16. Both are kept as integers, so that no NaN is changed."""
    np.left_shift(source, 16, out=destination, dtype=np.uint32)


def _faster(blocks: Sequence[Pair]) -> Copying:
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


def _rows(blocks: int, source: Array, destination: Array) -> Iterator[Pair]:
    """Each block of the source and its place in the destination."""
    return zip(source.reshape(blocks, -1), destination.reshape(blocks, -1), strict=True)


class HostCopy:
    """Two arrays in one process."""

    def __init__(
        self, source: Bytes, destination: Bytes, blocks: Iterable[Pair], copying: Copying | None = None
    ) -> None:
        """blocks: what `copying` takes, of each block. copying: None means the faster one of two."""
        self.source, self.destination = source, destination
        self._blocks = [*blocks]
        self._copying = copying or _faster(self._blocks)

    def put(self, end: End, offset: int, data: Array) -> None:
        memory = self.source if end == "source" else self.destination
        memory[offset : offset + len(data)] = data

    def copy(self, times: int) -> None:
        copying = self._copying
        for source, destination in islice(cycle(self._blocks), times):
            copying(source, destination)

    def take(self, offset: int, count: int) -> Array:
        return self.destination[offset : offset + count]


class FormatCopy(HostCopy):
    """bf16 to fp32."""

    def __init__(self, size_bytes: int, blocks: int) -> None:
        values = size_bytes * blocks // 2
        self._values, self._converted = np.zeros(values, np.uint16), np.zeros(values, np.uint32)
        rows = _rows(blocks, self._values, self._converted)
        super().__init__(self._values.view(np.uint8), self._converted.view(np.uint8), rows, _widened)

    def put(self, end: End, offset: int, data: Array) -> None:
        if end == "source":
            return super().put(end, offset, data)
        values = data.view(np.uint16)
        self._converted[offset // 2 : offset // 2 + len(values)] = values.astype(np.uint32) << 16

    def take(self, offset: int, count: int) -> Array:
        values = self._converted[offset // 2 : (offset + count + 1) // 2] >> 16
        return values.astype(np.uint16).view(np.uint8)[offset % 2 :][:count]


class LayoutCopy(HostCopy):
    """[heads, tokens, width] to [tokens, heads, width], as between two engines' layouts of a KV cache."""

    HEADS, HEAD_BYTES = 8, 128  # 64 values of 16 bits

    def __init__(self, size_bytes: int, blocks: int) -> None:
        self._tokens = size_bytes // (self.HEADS * self.HEAD_BYTES)
        source, destination = (np.zeros(size_bytes * blocks, np.uint8) for _ in range(2))
        moved = source.reshape(blocks, self.HEADS, self._tokens, self.HEAD_BYTES).swapaxes(1, 2)
        pairs = zip(moved, destination.reshape(moved.shape), strict=True)
        super().__init__(source, destination, pairs, _by_memmove)
        self._rows = self.destination.reshape(-1, self.HEAD_BYTES)

    def put(self, end: End, offset: int, data: Array) -> None:
        if end == "source":
            return super().put(end, offset, data)
        self._rows[self._moved(offset, len(data))] = data.reshape(-1, self.HEAD_BYTES)

    def take(self, offset: int, count: int) -> Array:
        return self._rows[self._moved(offset, count)].reshape(-1)[offset % self.HEAD_BYTES :][:count]

    def _moved(self, offset: int, count: int) -> npt.NDArray[np.int64]:
        """The rows of the destination that hold these bytes of the source."""
        rows = np.arange(offset // self.HEAD_BYTES, -(-(offset + count) // self.HEAD_BYTES))
        heads, tokens = np.divmod(rows, self._tokens)  # the heads of all blocks
        blocks, heads = np.divmod(heads, self.HEADS)
        return (blocks * self._tokens + tokens) * self.HEADS + heads


class Piece(ctypes.Structure):
    """A piece of a process's memory: `iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("count", ctypes.c_size_t))


def _piece(memory: Array) -> Any:
    return ctypes.byref(Piece(memory.ctypes.data, memory.nbytes))


def _until_gone(connection: Connection, other: Connection) -> None:
    """The child: waits for the end of the process that copies. other: that process's end."""
    other.close()
    with suppress(EOFError):
        connection.recv_bytes()


class HostPaths:
    """The host's memory, copied by its processor."""

    name = "host"

    def paths(self) -> Iterable[DataPath | Absent]:
        yield _path("copy")
        yield _path("bf16-fp32", converts="number format")
        yield _path("heads-tokens", converts="layout")
        try:
            with _between_processes(8, 1) as copy:
                copy.copy(1)
            yield _path("process")
        except Unsupported as error:
            yield Absent(kind="path", name="host/process", reason=f"no path: {error}")
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

    def open(self, path: str, size_bytes: int, blocks: int) -> AbstractContextManager[Copy]:
        if path == "host/process":
            return _between_processes(size_bytes, blocks)
        if path == "host/bf16-fp32":
            return nullcontext(FormatCopy(size_bytes, blocks))
        if path == "host/heads-tokens":
            return nullcontext(LayoutCopy(size_bytes, blocks))
        first, _, second = path.removeprefix("host/").partition("-")
        return _in_process(size_bytes, blocks, self._nodes().get(first), self._nodes().get(second))

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
        yield HostCopy(source, destination, _rows(blocks, source.view(np.uint64), destination.view(np.uint64)))
    finally:
        if sys.platform == "linux" and before:
            os.sched_setaffinity(0, before)


@contextmanager
def _between_processes(size_bytes: int, blocks: int) -> Iterator[Copy]:
    """From this process into the memory of a child, by one call of Linux for each copy. The child's memory is shared,
    so that it is also read and written here. Raises Unsupported if the system has no such call; so does a copy if the
    system refuses it."""
    if sys.platform != "linux":
        raise Unsupported("only Linux copies from one process to another in one call")
    libc, fork = ctypes.CDLL(None, use_errno=True), multiprocessing.get_context("fork")
    size = size_bytes * blocks
    source, destination = np.zeros(size, np.uint8), np.frombuffer(mmap.mmap(-1, size), np.uint8)
    here, there = fork.Pipe()
    child = fork.Process(target=_until_gone, args=(there, here), daemon=True)
    child.start()
    there.close()

    def copying(own: Any, of_child: Any) -> None:
        if libc.process_vm_writev(child.pid, own, 1, of_child, 1, 0) < 0:
            raise Unsupported(f"the system refuses process_vm_writev: {os.strerror(ctypes.get_errno())}")

    rows = _rows(blocks, source, destination)  # the child has the same addresses
    pieces = ((_piece(own), _piece(of_child)) for own, of_child in rows)
    try:
        yield HostCopy(source, destination, pieces, copying)
    finally:
        here.close()
        child.kill()
        child.join()
