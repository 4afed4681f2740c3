"""Paths that copy in a known time on a clock that jumps, and paths that copy wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from mixmark.harness.capabilities.paths.contract import Copy, DataPath
from mixmark.harness.capabilities.paths.facts import PathRecord
from mixmark.harness.capabilities.paths.host_paths import HostCopy
from mixmark.harness.capabilities.paths.measuring import Bytes
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.contracts.device_ids import on
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import Absent, Found, Result
from mixmark.harness.resources import clock

PATH = DataPath(id="fake/copy", source="host", destination="gpu:0", host_pages="pinned", through_caches=False)
BACK = PATH.model_copy(update={"id": "fake/back", "source": "gpu:0", "destination": "host"})


def with_paths(result: Result, *records: PathRecord) -> Result:
    """The result, as if its run had measured these paths."""
    found = (Found(experiment="paths", facts=each.model_dump(mode="json")) for each in records)
    return result.model_copy(update={"experiments": {"paths": {}}, "found": tuple(found)})


def on_host(host: str, record: PathRecord) -> PathRecord:
    """A path of a host, with the names of a run over several."""
    names = {name: on(host, getattr(record.path, name)) for name in ("id", "source", "destination")}
    return record.model_copy(update={"path": record.path.model_copy(update=names)})


class Known(PathProcess):
    """A path of known latency and bandwidth, as the parent sees it. Each call takes `call_ns`."""

    def __init__(self, latency_ns: float, ns_per_byte: float, call_ns: int = 100_000) -> None:
        self.latency_ns, self.ns_per_byte, self.call_ns = latency_ns, ns_per_byte, call_ns
        self.source, self.destination = np.zeros(0, np.uint8), np.zeros(0, np.uint8)

    def open(self, path: str, size_bytes: int, blocks: int) -> None:
        self.size_bytes = size_bytes
        self.source, self.destination = (np.zeros(size_bytes * blocks, np.uint8) for _ in range(2))

    def put(self, data: Bytes) -> None:
        self.source[:] = data

    def poison(self, byte: int) -> None:
        self.destination[:] = byte

    def copy(self, times: int, word_at: int) -> int:
        clock.sleep((self.call_ns + times * (self.latency_ns + self.size_bytes * self.ns_per_byte)) / 1e9)
        if times:
            self.arrive()
        return int.from_bytes(self.destination[word_at : word_at + 8].tobytes(), "little")

    def arrive(self) -> None:
        self.destination[:] = self.source

    def take(self) -> Bytes:
        return self.destination.copy()


class Corrupting(Known):
    def arrive(self) -> None:
        super().arrive()
        self.destination[1000] ^= 1


class Once(Known):
    """Copies the first block alone, however many it is asked for."""

    def arrive(self) -> None:
        self.destination[: self.size_bytes] = self.source[: self.size_bytes]


class Short(Known):
    def arrive(self) -> None:
        self.destination[:4000] = self.source[:4000]


class Repeating(Known):
    """Keeps the bytes that each memory was given first."""

    def put(self, data: Bytes) -> None:
        if not self.source.any():
            super().put(data)


class Late(Known):
    """Acknowledges a copy whose bytes arrive a tenth of a second later."""

    def arrive(self) -> None:
        self.due = clock.now_ns() + 10**8

    def take(self) -> Bytes:
        if clock.now_ns() >= self.due:
            super().arrive()
        return super().take()


class Plain(HostCopy):
    def __init__(self, size_bytes: int, blocks: int) -> None:
        source, destination = (np.zeros(blocks * size_bytes, np.uint8) for _ in range(2))
        super().__init__(source, destination, blocks)


class Fakes:
    """A plugin: a path that works, one that dies, one that raises, and one that the machine lacks."""

    name = "fakes"
    ids: tuple[str, ...] = ("fakes/fine", "fakes/raises", "fakes/dies")
    lacks: tuple[Absent, ...] = (Absent(kind="path", name="fakes/none", reason="no path: there is no second memory"),)

    def paths(self) -> Iterable[DataPath | Absent]:
        known = (DataPath(id=id, source="host", destination="host", through_caches=True) for id in self.ids)
        return *known, *self.lacks

    @contextmanager
    def open(self, path: str, size_bytes: int, blocks: int) -> Iterator[Copy]:
        yield Failing(path, size_bytes, blocks)


class One(Fakes):
    """Has the path that works."""

    ids: tuple[str, ...] = ("fakes/fine",)
    lacks: tuple[Absent, ...] = ()


class DiesFirst(One):
    """Has the path that works behind the one that dies."""

    ids = ("fakes/dies", "fakes/fine")


class Brief(One):
    """Returns one byte too few of a destination, or of the word of a reply."""

    lacks_of_word = False

    @contextmanager
    def open(self, path: str, size_bytes: int, blocks: int) -> Iterator[Copy]:
        yield BriefCopy(size_bytes, blocks, self.lacks_of_word)


class BriefWord(Brief):
    lacks_of_word = True


class BriefCopy(Plain):
    def __init__(self, size_bytes: int, blocks: int, lacks_of_word: bool) -> None:
        super().__init__(size_bytes, blocks)
        self.lacks_of_word = lacks_of_word

    def take(self, offset: int, count: int) -> Array:
        return super().take(offset, count - ((count == 8) == self.lacks_of_word))


class Twice(One):
    ids = ("fakes/fine", "fakes/fine")


class Foreign(One):
    ids = ("host/copy",)


class Hiding(One):
    """Claims what only the run knows: that its mix cannot be run."""

    ids = ()
    lacks = (Absent(kind="mix", name="fakes/edge-1", reason="no mix"),)


class Failing(Plain):
    def __init__(self, path: str, size_bytes: int, blocks: int) -> None:
        super().__init__(size_bytes, blocks)
        self.path, self.size_bytes = path, size_bytes

    def copy(self, times: int) -> None:
        if self.path == "fakes/dies" and self.size_bytes > 4096:
            import os

            os._exit(3)
        if self.path == "fakes/raises":
            raise RuntimeError("the engine is lost")
        clock.sleep(times / 1e4)
        super().copy(times)
