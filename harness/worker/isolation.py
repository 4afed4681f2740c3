"""How the processes of the auditor and of witnesses are kept apart from other installed packages.

A witness is the probe of a built-in adapter: it sets the ceiling that other engines are compared with. Both run
`python -I -S` with a cleaned environment: no .pth file, sitecustomize, user site or PYTHON* variable has a say,
and no entry point of another package is loaded. Mixmark and the suite are imported as `sealed` read them, never from a
cached .pyc. torch, numpy and the packages that these need come from their folders.

A developer who may install packages beside Mixmark can still replace torch or Mixmark itself: `mixmark audit` repeats
the audits of a result folder on another machine.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from mixmark.harness.contracts.schema import Device
from mixmark.harness.worker import sealed
from mixmark.harness.worker.sealed import SealedCode

NEEDED = """
    numpy pydantic pydantic_core annotated_types typing_extensions typing_inspection psutil safetensors scipy
    torch sympy mpmath networkx jinja2 markupsafe fsspec filelock triton nvidia platformdirs
    onnx onnxruntime openvino jax
"""
"""The packages whose folders an isolated process may import from."""
VARIABLES = """
    PATH HOME USER LOGNAME LANG LC_ALL SYSTEMROOT LD_LIBRARY_PATH OMP_NUM_THREADS MKL_NUM_THREADS
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK
    VK_DRIVER_FILES VK_ICD_FILENAMES ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER
    XDG_CACHE_HOME MIXMARK_CACHE MIXMARK_CACHE_GB
"""
"""The variables that an isolated process keeps: the folders of libraries and of converted models, the devices, which
Vulkan's drivers are a part of, and the number of threads."""
NO_ENTRY_POINTS = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""pydantic and torch would load code of any installed package that offers itself."""

PRELUDE = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no other process of this user may attach to this one
sys.path += FOLDERS
"""
"""The code that the auditor runs first. FOLDERS is set above it."""


@dataclass(frozen=True)
class Isolation:
    """How an isolated worker is started."""

    prelude: str
    """Python code that comes before all other code."""
    variables: Mapping[str, str]
    """Its whole environment, but for TMPDIR."""
    suite: SealedCode | None
    """The package of a suite that is not Mixmark's own. None if its spec names a file."""


def isolation(spec: str, device: Device | None = None) -> Isolation:
    """How the auditor or the witness of a suite is started. Raises LookupError if the suite's module does not exist.

    spec: the suite's class. device: what it computes on, by default the CPU; torch may load backends of other packages
    for their devices.
    """
    suite = None if spec.startswith("mixmark.") else _package_of(spec)
    kept = {name: os.environ[name] for name in VARIABLES.split() if name in os.environ}
    outside = device and (device.kind not in ("cpu", "gpu") or device.id.startswith(("gpu:musa", "gpu:supa")))
    closed = {name: value for name, value in NO_ENTRY_POINTS.items() if not (outside and name.startswith("TORCH"))}
    folders = list(dict.fromkeys(filter(None, (*map(_folder_of, NEEDED.split()), *(_backends() if outside else ())))))
    return Isolation(f"FOLDERS = {folders!r}\n{PRELUDE}", kept | closed, suite)


def _backends() -> Iterator[str | None]:
    """The folders of the packages that offer torch a backend, and of their metadata: torch may have another folder."""
    for entry in metadata.entry_points(group="torch.backends"):
        yield from (str(entry.dist and entry.dist.locate_file("")), _folder_of(entry.module.partition(".")[0]))


@cache
def _package_of(spec: str) -> SealedCode | None:
    """The sealed top-level package of a suite. None if the spec names a file. Raises LookupError if there is no such
    package."""
    module = spec.rpartition(":")[0]
    if module.endswith(".py"):
        return None
    found = importlib.util.find_spec(module.partition(".")[0])  # of a top-level name: nothing is imported
    if found is None:
        raise LookupError(f"there is no module {module}")
    top = Path(next(iter(found.submodule_search_locations or [found.origin or ""]))).resolve()
    files = (file for file in sealed.files_of(top) if file.suffix == ".py")
    return sealed.seal(top.parent, {file: file.read_bytes() for file in files})


def _folder_of(package: str) -> str | None:
    """The folder that holds a package or an extension module."""
    found = importlib.util.find_spec(package)
    if found and found.submodule_search_locations:
        return str(Path(next(iter(found.submodule_search_locations))).parent)
    origin = (found and found.origin) or ""
    return str(Path(origin).parent) if origin.endswith((".py", ".so", ".pyd")) else None
