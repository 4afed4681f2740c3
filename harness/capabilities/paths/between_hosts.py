"""Paths over several hosts: each host measures its own, and the leading process passes bytes on from one to another.

Paths between hosts lead through the messages of their agents, since nothing else connects the hosts of every launcher.
So what is measured is the engine that carries the messages, twice, with the leading process in between.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from mixmark.harness.capabilities.paths.facts import DataPath, PathRecord
from mixmark.harness.capabilities.paths.measuring import HELD, SIZES, WORD, Bytes, Data, measure, measured, name_of
from mixmark.harness.contracts.device_ids import host_of, on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import HOST_POOL, Absent, Metering
from mixmark.harness.measure.executor import HostCalls
from mixmark.harness.resources.memory import available_bytes
from mixmark.harness.worker.calls import Message
from mixmark.harness.worker.messages import Natural

LARGEST_BYTES = 16 << 20  # four messages: more would only take longer
PART_BYTES = 4 << 20  # of a memory in one message
BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class MemoryPart(Message):
    """Bytes of a host's memory, at most PART_BYTES."""

    base64: str = Field(pattern=BASE64, max_length=PART_BYTES // 3 * 4 + 4)

    @classmethod
    def of(cls, data: bytes | memoryview) -> MemoryPart:
        return cls.model_construct(base64=b64encode(data).decode())  # which needs no check

    def data(self) -> bytes:
        return b64decode(self.base64)


class OnHost:
    """What a host does for its paths, and for those between hosts. Its methods are calls."""

    def __init__(self) -> None:
        self._found: Iterator[PathRecord | Absent] | None = None
        self._memory = bytearray()

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        """Measures the next path between the host's own memories. None after the last one. known: what the first call
        leaves out."""
        if self._found is None:  # without meters: a host may read the meters of its neighbours
            self._found = (each for each in measure(known) if not isinstance(each, Metering))
        return next(self._found, None)

    def fill_memory(self, *, size_bytes: Natural, byte: Annotated[int, Field(ge=0, le=255)]) -> None:
        """Allocates the memory that is copied from or to, in place of the one before, and fills it with a byte."""
        self._memory = bytearray([byte]) * size_bytes

    def write_memory(self, *, offset: Natural, part: MemoryPart) -> None:
        data = part.data()
        memoryview(self._memory)[offset : offset + len(data)] = data  # unlike a bytearray, it never grows

    def read_memory(self, *, offset: Natural, count: Natural) -> MemoryPart:
        return MemoryPart.of(memoryview(self._memory)[offset : offset + count])


def measure_all(hosts: HostCalls, known: Sequence[PathRecord | Absent]) -> Iterator[PathRecord | Absent]:
    """Measures the paths of each host, one host after the other since several may share a machine, and then the paths
    between hosts. A host that sends no reply has an absence for the rest of its paths.

    known: what to leave out.
    """
    known_names = {*map(name_of, known)}
    for host in hosts.present:
        own = tuple(each for each in known if host_of(name_of(each)) == host)
        if (rest := on(host, "paths")) in known_names:
            continue
        try:
            while found := hosts.ask(OnHost.measure_path, host, known=own):
                yield type(found).model_validate(found.model_dump())  # its host may make a name too long
        except (MixmarkError, ValueError) as error:
            yield Absent(kind="path", name=rest, reason=f"no path: {error}")
    copies = HostCopies(hosts)
    data = Data(secrets.randbits(64))
    for path in copies.paths():
        if path.id not in known_names:
            sizes = [size for size in SIZES if size <= LARGEST_BYTES]
            yield measured(path, copies, data, available_bytes() // HELD, sizes=sizes)


class HostCopies:
    """The paths between hosts, as `measuring.Copies` describes them. A copy is over when the agent of the
    destination has replied that all bytes are in its memory.

    Each host has a path to the next one in the list and back, and so have the last and the first: all pairs of up to
    three hosts. Every way to and from the leading process is measured, in a time that grows with the hosts alone.
    """

    def __init__(self, hosts: HostCalls) -> None:
        self._hosts, present = hosts, [*hosts.present]
        ring = [pair for pair in zip(present, present[1:] + present[:1], strict=True) if len({*pair}) == 2]
        both_ways = dict.fromkeys(ends for pair in ring for ends in (pair, pair[::-1]))
        self._ends = {f"hosts/{source}:{destination}": (source, destination) for source, destination in both_ways}

    def paths(self) -> tuple[DataPath, ...]:
        return tuple(
            DataPath(
                id=id,
                source=on(source, HOST_POOL),
                destination=on(destination, HOST_POOL),
                route="staged",
                through_caches=False,
            )
            for id, (source, destination) in self._ends.items()
        )

    def open(self, path: str, size_bytes: int, blocks: int) -> None:
        (self._source, self._destination), self._block, self._size = self._ends[path], size_bytes, size_bytes * blocks
        self._fill(self._source, 0)
        self._fill(self._destination, 0)

    def put(self, data: Bytes) -> None:
        for offset, count in self._parts(0, self._size):
            self._write(self._source, offset, MemoryPart.of(data[offset : offset + count].tobytes()))
        self._read(self._source, 0, WORD)  # an agent serves one call after the other, so all is written

    def poison(self, byte: int) -> None:
        self._fill(self._destination, byte)

    def copy(self, times: int, word_at: int) -> int:
        for number in range(times):
            for offset, count in self._parts(number * self._block % self._size, self._block):
                self._write(self._destination, offset, self._read(self._source, offset, count))
            self._read(self._destination, 0, WORD)
        return int.from_bytes(self._bytes(word_at, WORD), "little")

    def take(self) -> Bytes:
        return np.frombuffer(b"".join(self._bytes(*part) for part in self._parts(0, self._size)), np.uint8)

    def _parts(self, begin: int, count: int) -> Iterator[tuple[int, int]]:
        """The offset and the size of each message with these bytes."""
        end = begin + count
        return ((offset, min(PART_BYTES, end - offset)) for offset in range(begin, end, PART_BYTES))

    def _fill(self, host: str, byte: int) -> None:
        self._hosts.ask(OnHost.fill_memory, host, size_bytes=self._size, byte=byte)

    def _write(self, host: str, offset: int, part: MemoryPart) -> None:
        """Does not wait for the reply: the next part is read meanwhile."""
        self._hosts.send(OnHost.write_memory, host, offset=offset, part=part)

    def _read(self, host: str, offset: int, count: int) -> MemoryPart:
        return self._hosts.ask(OnHost.read_memory, host, offset=offset, count=count)

    def _bytes(self, offset: int, count: int) -> bytes:
        """Bytes of the destination. Raises MixmarkError if its agent sends fewer or more."""
        if len(data := self._read(self._destination, offset, count).data()) != count:
            raise MixmarkError(f"the host {self._destination} sent {len(data)} bytes of {count}")
        return data
