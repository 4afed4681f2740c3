"""Paths of torch's accelerators. They are written from torch's documentation: the authors have run none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import TYPE_CHECKING

from mixmark.harness.adapters.torch import _devices, _import
from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import HOST_POOL, Absent

if TYPE_CHECKING:
    from torch import Tensor


class TorchCopy:
    """Two tensors of equally many blocks."""

    def __init__(self, source: Tensor, destination: Tensor, blocks: int) -> None:
        self._source, self._destination = source, destination
        self._blocks = [*zip(source.view(blocks, -1), destination.view(blocks, -1), strict=True)]

    def put(self, end: End, offset: int, data: Array) -> None:
        import torch

        memory = self._source if end == "source" else self._destination
        memory[offset : offset + len(data)].copy_(torch.from_numpy(data))

    def copy(self, times: int) -> None:
        """Streams keep the order of copies that are not waited for. Pageable memory needs no wait; pinned memory and a
        second accelerator do."""
        import torch

        for source, destination in islice(cycle(self._blocks), times):
            destination.copy_(source, non_blocking=True)
        for memory in (self._source, self._destination):
            if memory.device.type != "cpu":
                torch.get_device_module(memory.device.type).synchronize(memory.device)

    def take(self, offset: int, count: int) -> Array:
        taken: Array = self._destination[offset : offset + count].cpu().numpy()
        return taken


class TorchPaths:
    """Between the host and each accelerator, and between accelerators."""

    name = "torch"

    def paths(self) -> Iterable[DataPath | Absent]:
        found = self._paths()
        if found:
            return [path for path, _ in found.values()]
        return [Absent(kind="path", name="torch", reason="no path: torch reaches no accelerator")]

    def _paths(self) -> dict[str, tuple[DataPath, tuple[str, str]]]:
        """Each path with torch's names of its two memories; `pinned` is pinned host memory."""
        _import()
        devices = [(place.device, place.name) for place in _devices() if place.name != "cpu"]
        found: dict[str, tuple[DataPath, tuple[str, str]]] = {}

        def add(source: str, destination: str, names: tuple[str, str], **more: object) -> None:
            id = f"torch/{len(found)}"
            ends = {"id": id, "source": source, "destination": destination, **more}
            found[id] = DataPath.model_validate(ends), names

        for device, name in devices:
            for pages, host in (("pageable", "cpu"), ("pinned", "pinned")):
                add(HOST_POOL, device.id, (host, name), host_pages=pages, through_caches=True)
                add(device.id, HOST_POOL, (name, host), host_pages=pages, through_caches=True)
            for other, other_name in devices:
                if other.id != device.id:
                    add(device.id, other.id, (name, other_name), through_caches=False)
        return found

    @contextmanager
    def open(self, path: str, size_bytes: int, blocks: int) -> Iterator[Copy]:
        import torch

        _, names = self._paths()[path]
        count = size_bytes * blocks
        empty = [torch.empty(count, dtype=torch.uint8, device=name.replace("pinned", "cpu")) for name in names]
        source, destination = (
            each.pin_memory() if name == "pinned" else each for each, name in zip(empty, names, strict=True)
        )
        yield TorchCopy(source, destination, blocks)
