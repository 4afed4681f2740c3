"""Paths of torch's accelerators. They are written from torch's documentation: the authors have run none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice, pairwise
from typing import TYPE_CHECKING

from mixmark.harness.adapters.torch import _devices, _import
from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import HOST_POOL, Absent

if TYPE_CHECKING:
    from torch import Tensor


class TorchCopy:
    """Tensors that are copied in turn, each to the next: source, perhaps one in host memory, destination."""

    def __init__(self, blocks: int, *memories: Tensor) -> None:
        self.memories = memories
        self._blocks = [*zip(*(each.view(blocks, -1) for each in memories), strict=True)]

    def put(self, end: End, offset: int, data: Array) -> None:
        import torch

        memory = self.memories[0 if end == "source" else -1]
        memory[offset : offset + len(data)].copy_(torch.from_numpy(data))

    def copy(self, times: int) -> None:
        """Streams keep the order of copies that are not waited for. Pageable memory needs no wait; pinned memory and a
        second accelerator do."""
        for block in islice(cycle(self._blocks), times):
            for source, destination in pairwise(block):
                destination.copy_(source, non_blocking=True)
                if len(block) > 2:
                    _synchronize(*self.memories)  # the next copy is on another device's stream
        _synchronize(*self.memories)

    def take(self, offset: int, count: int) -> Array:
        taken: Array = self.memories[-1][offset : offset + count].cpu().numpy()
        return taken


def _synchronize(*memories: Tensor) -> None:
    import torch

    for memory in memories:
        if memory.device.type != "cpu":
            torch.get_device_module(memory.device.type).synchronize(memory.device)


class TorchPaths:
    """Between the host and each accelerator, and between accelerators."""

    name = "torch"

    def paths(self) -> Iterable[DataPath | Absent]:
        found = self._paths()
        if found:
            return [path for path, _ in found.values()]
        return [Absent(kind="path", name="torch", reason="no path: torch reaches no accelerator")]

    def _paths(self) -> dict[str, tuple[DataPath, tuple[str, ...]]]:
        """Each path with torch's names of its memories in order; `pinned` is pinned host memory."""
        _import()
        devices = [(place.device, place.name) for place in _devices() if place.name != "cpu"]
        found: dict[str, tuple[DataPath, tuple[str, ...]]] = {}

        def add(source: str, destination: str, names: tuple[str, ...], **more: object) -> None:
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
                    staged = {"route": "staged", "host_pages": "pinned", "through_caches": True}
                    add(device.id, other.id, (name, "pinned", other_name), **staged)
        return found

    @contextmanager
    def open(self, path: str, size_bytes: int, blocks: int) -> Iterator[Copy]:
        import torch

        _, names = self._paths()[path]
        count = size_bytes * blocks
        empty = [torch.empty(count, dtype=torch.uint8, device=name.replace("pinned", "cpu")) for name in names]
        memories = [each.pin_memory() if name == "pinned" else each for each, name in zip(empty, names, strict=True)]
        yield TorchCopy(blocks, *memories)
