"""Paths over several hosts: each host measures its own, and the leading process passes bytes on from one to another.

Paths between hosts lead through the messages of their agents, since nothing else connects the hosts of every launcher.
So what is measured is the engine that carries the messages, twice, with the leading process in between.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import numpy as np

from mixmark.harness.capabilities.hosts import names
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.messages import PART_BYTES, AgentCalls, MemoryPart
from mixmark.harness.contracts.device_ids import host_of, on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import HOST_POOL, Absent, DataPath, PathRecord
from mixmark.harness.measure.paths import HELD, SIZES, WORD, Bytes, Data, measured, name_of
from mixmark.harness.resources.memory import available_bytes

LARGEST_BYTES = 16 << 20  # four messages: more would only take longer


def measure(agents: Agents, known: Sequence[PathRecord | Absent]) -> Iterator[PathRecord | Absent]:
    """Measures the paths of each host, one host after the other since several may share a machine, and then the paths
    between hosts. A host that sends no reply has an absence for the rest of its paths.

    known: what to leave out.
    """
    known_names = {*map(name_of, known)}
    for host in agents.present:
        own = tuple(names.to_host(each) for each in known if host_of(name_of(each)) == host)
        if (rest := on(host, "paths")) in known_names:
            continue
        try:
            while found := agents.ask(AgentCalls.measure_path, host, known=own):
                yield type(found).model_validate(found.model_dump())  # its host may make a name too long
        except (MixmarkError, ValueError) as error:
            yield Absent(kind="path", name=rest, reason=f"no path: {error}")
    copies = HostCopies(agents)
    data = Data(secrets.randbits(64))
    for path in copies.paths():
        if path.id not in known_names:
            sizes = [size for size in SIZES if size <= LARGEST_BYTES]
            yield measured(path, copies, data, available_bytes() // HELD, sizes=sizes)


class HostCopies:
    """The paths between hosts, as `measure.paths.Copies` describes them. A copy is over when the agent of the
    destination has replied that all bytes are in its memory.

    Each host has a path to the next one in the list and back, and so have the last and the first: all pairs of up to
    three hosts. Every way to and from the leading process is measured, in a time that grows with the hosts alone.
    """

    def __init__(self, agents: Agents) -> None:
        self._agents, hosts = agents, agents.present
        ring = [(host, other) for host, other in zip(hosts, hosts[1:] + hosts[:1], strict=True) if host != other]
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

    def open(self, path: str, size_bytes: int) -> None:
        (self._source, self._destination), self._size = self._ends[path], size_bytes
        self._fill(self._source, 0)
        self._fill(self._destination, 0)

    def put(self, data: Bytes) -> None:
        for offset, count in self._parts():
            self._write(self._source, offset, MemoryPart.of(data[offset : offset + count].tobytes()))
        self._read(self._source, 0, WORD)  # an agent serves one call after the other, so all is written

    def poison(self, byte: int) -> None:
        self._fill(self._destination, byte)

    def copy(self, times: int, word_at: int) -> int:
        for _ in range(times):
            for offset, count in self._parts():
                self._write(self._destination, offset, self._read(self._source, offset, count))
            self._read(self._destination, 0, WORD)
        return int.from_bytes(self._bytes(word_at, WORD), "little")

    def take(self) -> Bytes:
        return np.frombuffer(b"".join(self._bytes(*part) for part in self._parts()), np.uint8)

    def _parts(self) -> Iterator[tuple[int, int]]:
        """The offset and the size of each message."""
        return ((offset, min(PART_BYTES, self._size - offset)) for offset in range(0, self._size, PART_BYTES))

    def _fill(self, host: str, byte: int) -> None:
        self._agents.ask(AgentCalls.fill_memory, host, size_bytes=self._size, byte=byte)

    def _write(self, host: str, offset: int, part: MemoryPart) -> None:
        """Does not wait for the reply: the next part is read meanwhile."""
        self._agents[host].send(AgentCalls.write_memory, offset=offset, part=part)

    def _read(self, host: str, offset: int, count: int) -> MemoryPart:
        return self._agents.ask(AgentCalls.read_memory, host, offset=offset, count=count)

    def _bytes(self, offset: int, count: int) -> bytes:
        """Bytes of the destination. Raises MixmarkError if its agent sends fewer or more."""
        if len(data := self._read(self._destination, offset, count).data()) != count:
            raise MixmarkError(f"the host {self._destination} sent {len(data)} bytes of {count}")
        return data
