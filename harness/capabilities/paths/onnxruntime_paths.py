"""Paths between the host and the devices of ONNX Runtime, by `copy_tensors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mixmark.harness.adapters.onnxruntime.devices import ProviderDevice, import_runtime, provider_devices
from mixmark.harness.capabilities.paths.contract import Copy, DataPath, End
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import HOST_POOL, Absent

SHOW_ONE = "let it see one device, as by CUDA_VISIBLE_DEVICES=UUID"


class OnnxRuntimeCopy:
    """Two OrtValues. Host memory is a numpy array; a device's memory is written and read whole."""

    def __init__(self, runtime: Any, memories: Iterable[Any], hosts: Iterable[Array]) -> None:
        self._runtime = runtime
        self._source, self._destination = memories
        self._host_of_source, self._host_of_destination = hosts

    def put(self, end: End, offset: int, data: Array) -> None:
        source = end == "source"
        host = self._host_of_source if source else self._host_of_destination
        host[offset : offset + len(data)] = data
        value = self._source if source else self._destination
        if value.device_name() != "cpu":
            self._runtime.copy_tensors([self._runtime.OrtValue.ortvalue_from_numpy(host)], [value])

    def copy(self, times: int) -> None:
        for _ in range(times):
            self._runtime.copy_tensors([self._source], [self._destination])

    def take(self, offset: int, count: int) -> Array:
        value, host = self._destination, self._host_of_destination
        if value.device_name() != "cpu":
            self._runtime.copy_tensors([value], [self._runtime.OrtValue.ortvalue_from_numpy(host)])
        return host[offset : offset + count]


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
    def open(self, path: str, size_bytes: int) -> Iterator[Copy]:
        runtime = import_runtime()
        way, _, id = path.removeprefix("onnxruntime/").partition("-")
        place = self._places()[id]
        hosts = [np.zeros(size_bytes, np.uint8) for _ in range(2)]
        try:
            on_device = runtime.OrtValue.ortvalue_from_shape_and_type([size_bytes], np.uint8, place.memory, 0)
        except Exception as error:  # onnxruntime's errors have no common class
            raise Unsupported(f"{id} takes no {size_bytes} bytes: {str(error)[:200]}") from error
        on_host = runtime.OrtValue.ortvalue_from_numpy(hosts[0 if way == "to" else 1])
        yield OnnxRuntimeCopy(runtime, (on_host, on_device) if way == "to" else (on_device, on_host), hosts)
