"""The devices of a build of llama.cpp, as its library ggml lists them: for CUDA, Vulkan, Metal, SYCL and others.

llama-cpp-python does not wrap ggml's functions for devices, so ggml is called directly. The authors have run only the
CPU.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mixmark.harness.adapters.devices import Place, cpu, gpu_id
from mixmark.harness.capabilities.llamacpp.gguf import TYPES
from mixmark.harness.contracts.schema import HOST_POOL, Device, Precision

GPU, INTEGRATED_GPU, ACCELERATOR = 1, 2, 3  # ggml_backend_dev_type; 0 is the CPU
NPUS = ("CANN", "Hexagon", "HTP", "NPU")
"""ggml lists these vendors' devices as GPUs."""
OWN: dict[str, tuple[Precision, ...]] = {"gguf-file": ("as-file",)}
SOFTWARE = ("llvmpipe", "swiftshader", "basic render")
"""Parts of the names of software drivers: Mesa's, Google's and Microsoft's."""


class Properties(ctypes.Structure):
    """ggml_backend_dev_props of ggml/include/ggml-backend.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_bool * 16),  # longer than needed, since later versions may have more flags
    )


@dataclass(frozen=True)
class GgmlDevice(Place):
    """A device and its handle in ggml; None for the CPU, which needs no handle. name: as `Vulkan0`."""

    handle: int | None = None


def ggml_devices(library: Any) -> Iterator[GgmlDevice]:
    """All devices of llama_cpp's module; helpers of the CPU, such as BLAS, are part of it."""
    yield GgmlDevice(cpu(()).model_copy(update={"precisions_by_suite": {"llm": tuple(TYPES), **OWN}}), "CPU")
    ggml = library.llama_cpp._lib  # this handle also finds functions of the libraries that it depends on
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes, ggml.ggml_backend_dev_get.restype = [ctypes.c_size_t], ctypes.c_void_p
    ggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(Properties)]
    ggml.ggml_backend_dev_get_props.restype = None
    count: Counter[str] = Counter()
    for index in range(ggml.ggml_backend_dev_count()):
        handle, properties = ggml.ggml_backend_dev_get(index), Properties()
        ggml.ggml_backend_dev_get_props(handle, ctypes.byref(properties))
        if properties.type in (GPU, INTEGRATED_GPU):
            found = described(properties, count)
            yield GgmlDevice(found, properties.name.decode(), handle)


def described(properties: Properties, count: Counter[str]) -> Device:
    """The device that ggml describes. count: the devices of each kind so far, which number devices without an
    address."""
    name = properties.name.decode()
    described = (properties.description or b"").decode(errors="replace")
    kind: Literal["gpu", "npu", "simulated"] = "npu" if name.startswith(NPUS) else "gpu"
    if any(word in described.lower() for word in SOFTWARE):
        kind = "simulated"
    id = f"{kind}:ggml{count[kind]}"
    count[kind] += 1
    if kind == "gpu" and properties.device_id:
        id = gpu_id(properties.device_id.decode(), id)
    shared = properties.type == INTEGRATED_GPU and kind == "gpu"
    return Device(
        id=id,
        kind=kind,
        name=described or name,
        memory_pool=HOST_POOL if shared else id,
        memory_bytes=None if shared else properties.memory_total or None,
        # CUDA computes fp32 in TF32
        precisions_by_suite={"llm": tuple(name for name in TYPES if name != "fp32"), **OWN},
    )
