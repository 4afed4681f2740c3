"""Paths between the host and the devices of ONNX Runtime, by `copy_tensors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import numpy as np

from mixmark.harness.adapters.onnxruntime.devices import ProviderDevice, import_runtime, provider_devices
from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import HOST_POOL, Absent

ENDS: tuple[End, End] = ("source", "destination")
SHOW_ONE = "let it see one device, as by CUDA_VISIBLE_DEVICES=UUID"


class OnnxRuntimeCopy:
    """Each end as an array of host memory [blocks, bytes], its blocks as OrtValues, and the OrtValues that are copied:
    the same ones, or those of a device, which are written and read whole."""

    def __init__(self, runtime: Any, ends: Mapping[End, tuple[Array, Sequence[Any], Sequence[Any]]]) -> None:
        self._runtime, self._ends = runtime, ends

    def put(self, end: End, offset: int, data: Array) -> None:
        host, staged, values = self._ends[end]
        host.reshape(-1)[offset : offset + len(data)] = data
        if values is not staged:
            self._runtime.copy_tensors(staged, values)

    def copy(self, times: int) -> None:
        (_, _, sources), (_, _, destinations) = self._ends["source"], self._ends["destination"]
        for source, destination in islice(cycle(zip(sources, destinations, strict=True)), times):
            self._runtime.copy_tensors([source], [destination])

    def take(self, offset: int, count: int) -> Array:
        host, staged, values = self._ends["destination"]
        if values is not staged:
            self._runtime.copy_tensors(values, staged)
        return host.reshape(-1)[offset : offset + count]


class OnnxRuntimePaths:
    """Between the host and each device whose execution provider has a memory of its own."""

    name = "onnxruntime"

    def paths(self) -> Iterable[DataPath | Absent]:
        runtime, places = import_runtime(), self._places()
        if not places:
            yield Absent(kind="path", name=self.name, reason="no path: no device has a memory of its own")
        elif not hasattr(runtime, "copy_tensors"):
            yield Absent(kind="path", name=self.name, reason="no path: this onnxruntime has no copy_tensors")
            return
        devices = Counter(place.memory for place in places.values())
        for id, place in places.items():
            if (count := devices[place.memory]) > 1:
                reason = f"no path: onnxruntime numbers {count} devices of {place.memory} in its own order; {SHOW_ONE}"
                yield Absent(kind="path", name=f"{self.name}/{id}", reason=reason)
                continue
            for way, source, destination in (("to", HOST_POOL, id), ("from", id, HOST_POOL)):
                yield DataPath(
                    id=f"onnxruntime/{way}-{id}",
                    source=source,
                    destination=destination,
                    host_pages="pageable",
                    through_caches=True,
                )

    def _places(self) -> dict[str, ProviderDevice]:
        return {place.device.id: place for place in provider_devices() if place.memory != "cpu"}

    @contextmanager
    def open(self, path: str, size_bytes: int, blocks: int) -> Iterator[Copy]:
        runtime = import_runtime()
        way, _, id = path.removeprefix("onnxruntime/").partition("-")
        place = self._places()[id]
        ends: dict[End, tuple[Array, Sequence[Any], Sequence[Any]]] = {}
        for end in ENDS:
            host = np.zeros((blocks, size_bytes), np.uint8)
            staged = values = [runtime.OrtValue.ortvalue_from_numpy(block) for block in host]
            if (end == "destination") == (way == "to"):
                shape = [size_bytes], np.uint8, place.memory, 0
                try:
                    values = [runtime.OrtValue.ortvalue_from_shape_and_type(*shape) for _ in host]
                except Exception as error:  # onnxruntime's errors have no common class
                    raise Unsupported(f"{id} takes no {host.nbytes} bytes: {str(error)[:200]}") from error
            ends[end] = host, staged, values
        yield OnnxRuntimeCopy(runtime, ends)
