"""The process of a plugin of paths: the class that serves its calls, and the parent's side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mixmark.harness.capabilities.paths.contract import Copy, Paths
from mixmark.harness.capabilities.paths.facts import DataPath
from mixmark.harness.contracts.errors import MixmarkError, PluginError
from mixmark.harness.contracts.schema import Absent
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins.registry import Plugin, PluginKind
from mixmark.harness.resources.files import regular
from mixmark.harness.worker.messages import Natural, Positive, Setup
from mixmark.harness.worker.plugin_process import PluginProcess
from mixmark.harness.worker.services import plugin_of

EXCHANGED_BYTES = 64 << 20  # the largest file between the two processes
COPYING_S = 60.0  # a page that the system swapped out comes back slowly
WORD_BYTES = 8


class PathService:
    """Paths, one of them open. Its methods are the calls."""

    def __init__(self, setup: Setup, parent: object) -> None:
        self.paths: Paths = plugin_of(setup).load()()
        self._open = ExitStack()
        self._copy: Copy

    def list_paths(self) -> tuple[DataPath | Absent, ...]:
        """The paths, and those that this machine lacks."""
        return tuple(self.paths.paths())

    def open_path(self, *, path: str, size_bytes: Positive, blocks: Positive) -> None:
        """Allocates the memories of a path, after those of the path before are freed."""
        self._open.close()
        self._copy = self._open.enter_context(self.paths.open(path, size_bytes, blocks))
        self._size_bytes = size_bytes * blocks

    def put(self, *, offset: Natural, file: str) -> None:
        """Writes the bytes of a file into the source."""
        self._copy.put("source", offset, np.fromfile(file, np.uint8))

    def poison(self, *, byte: Annotated[int, Field(ge=0, le=255)]) -> None:
        """Fills the destination with a byte."""
        self._copy.put("destination", 0, np.full(self._size_bytes, byte, np.uint8))

    def copy(self, *, times: Natural, word_at: Natural) -> int:
        """Copies, and returns the word of the destination at an offset: the reply needs a part of the copy that the
        worker cannot foresee. The parent times the call."""
        self._copy.copy(times)
        word = np.asarray(self._copy.take(word_at, WORD_BYTES), np.uint8).tobytes()
        if len(word) != WORD_BYTES:
            raise ValueError(f"take({word_at}, {WORD_BYTES}) returned {len(word)} bytes")
        return int.from_bytes(word, "little")

    def take(self, *, offset: Natural, count: Positive, file: str) -> None:
        """Writes bytes of the destination into a file."""
        np.asarray(self._copy.take(offset, count), np.uint8).tofile(file)


class PathProcess(PluginProcess):
    """A plugin of paths, also a built-in one, as the parent sees it. Raises PluginError."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin)
        self._folder = tempfile.TemporaryDirectory(prefix="mixmark-")
        self._file = Path(self._folder.name) / "bytes"

    def paths(self) -> tuple[DataPath | Absent, ...]:
        """Raises PluginError also for a name that comes twice or is not the plugin's: a run knows paths, and what it
        lacks, by name."""
        found, names = self.load(PathService.list_paths), set[str]()
        for each in found:
            name = f"path {each.id}" if isinstance(each, DataPath) else f"{each.label}/"
            if name in names or not name.startswith(f"path {self._plugin.name}/"):
                why = "is listed twice" if name in names else "is not the plugin's own"
                needed = f"each path needs a name of its own that begins with {self._plugin.name}/"
                raise PluginError(f"{plain(name.rstrip('/'), 100)} {why}", needed)
            names.add(name)
        return found

    def open(self, path: str, size_bytes: int, blocks: int) -> None:
        """In a new process if the last path ended it."""
        if self.gone:
            self.end()
            super().__init__(self._plugin)
        self.call(PathService.open_path, COPYING_S, path=path, size_bytes=size_bytes, blocks=blocks)
        self._size = size_bytes * blocks

    def put(self, data: npt.NDArray[np.uint8]) -> None:
        for offset in range(0, len(data), EXCHANGED_BYTES):
            with self._exchanging():
                data[offset : offset + EXCHANGED_BYTES].tofile(self._file)
            self.call(PathService.put, COPYING_S, offset=offset, file=str(self._file))

    def poison(self, byte: int) -> None:
        self.call(PathService.poison, COPYING_S, byte=byte)

    def copy(self, times: int, word_at: int) -> int:
        return self.call(PathService.copy, COPYING_S, times=times, word_at=word_at)

    def take(self) -> npt.NDArray[np.uint8]:
        """The destination, its end first: the bytes that arrive last are read before they have time to."""
        taken = np.empty(self._size, np.uint8)
        for offset in reversed(range(0, self._size, EXCHANGED_BYTES)):
            part = taken[offset : offset + EXCHANGED_BYTES]
            self.call(PathService.take, COPYING_S, offset=offset, count=len(part), file=str(self._file))
            with self._exchanging():
                content = regular(self._file, len(part))
                if len(content) < len(part):
                    raise ValueError(f"{len(content)} of {len(part)} bytes were returned")
            part[:] = np.frombuffer(content, np.uint8)
        return taken

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise MixmarkError(f"cannot exchange the bytes of a path: {error}") from error

    def close(self) -> None:
        self.end()
        self._folder.cleanup()


KIND = PluginKind(("name", "paths", "open"), (PathService, PathService))
