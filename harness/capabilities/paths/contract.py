"""What a plugin of paths has: `from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End, Paths`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from mixmark.harness.capabilities.paths.facts import DataPath
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import Absent

__all__ = ["Copy", "DataPath", "End", "Paths"]

End = Literal["source", "destination"]


class Copy(Protocol):
    """The two memories of an open path, of equally many blocks each. The harness writes both, times `copy`, and
    compares the whole destination."""

    def put(self, end: End, offset: int, data: Array) -> None:
        """Writes uint8 data into one of the memories, from a byte on."""

    def copy(self, times: int) -> None:
        """Copies so many blocks, one after the other, each from its place in the source to the same place in the
        destination. The first block follows the last one. Returns once every byte has arrived. It does nothing if
        `times` is 0."""

    def take(self, offset: int, count: int) -> Array:
        """The bytes of the destination from an offset on, as uint8 on the host."""


class Paths(Protocol):
    """The ways between the memories that a vendor's software reaches. The class is called without arguments, in a
    worker. It times nothing."""

    name: str

    def paths(self) -> Iterable[DataPath | Absent]:
        """The paths of this machine, and the paths that it lacks, with the reason."""

    def open(self, path: str, size_bytes: int, blocks: int) -> AbstractContextManager[Copy]:
        """Allocates the two memories of a path. Leaving the context frees them. Raises MemoryError or Unsupported if
        the path cannot copy so much.

        path: an id of `paths`. size_bytes: of a block, which is one copy. blocks: of each memory.
        """
