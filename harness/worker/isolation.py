"""How the processes of the auditor and of witnesses are kept apart from other installed packages.

A witness is the probe of a built-in adapter: it sets the ceiling that other engines are compared with. Both run
`python -I -S` with a cleaned environment: no .pth file, sitecustomize, user site or PYTHON* variable has a say,
and no entry point of another package is loaded. Mixmark and the suite are imported as `sealed` read them, never from a
cached .pyc. torch, numpy and the packages that these need come from their folders.

A developer who may install packages beside Mixmark can still replace torch or Mixmark itself: `mixmark audit` repeats
the audits of a result folder on another machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixmark.harness.worker import sealed
from mixmark.harness.worker.sealed import SealedCode

NEEDED = """
    numpy pydantic pydantic_core annotated_types typing_extensions typing_inspection psutil safetensors scipy
    torch sympy mpmath networkx jinja2 markupsafe fsspec filelock triton nvidia platformdirs
    onnx onnxruntime openvino
"""
"""The packages whose folders an isolated process may import from."""
VARIABLES = """
    PATH HOME USER LOGNAME LANG LC_ALL SYSTEMROOT LD_LIBRARY_PATH OMP_NUM_THREADS MKL_NUM_THREADS
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK
    XDG_CACHE_HOME MIXMARK_CACHE MIXMARK_CACHE_GB
"""
"""The variables that an isolated process keeps: the folders of libraries and of converted models, the devices, and the
number of threads."""
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
    """The package of a suite that is not Mixmark's own."""
    sha256: str
    """Over the code of an audit: Mixmark's and, if it is another, the suite's."""


def isolation(spec: str, any_backend: bool = False) -> Isolation:
    """How the auditor or the witness of a suite is started. Raises LookupError if the suite's module does not exist.

    spec: the suite's class. any_backend: torch may load backends of other packages, for a reference on their
    accelerators.
    """
    suite, sha256 = _code_of(spec)
    kept = {name: os.environ[name] for name in VARIABLES.split() if name in os.environ}
    closed = {name: value for name, value in NO_ENTRY_POINTS.items() if not (any_backend and name.startswith("TORCH"))}
    folders = list(dict.fromkeys(folder for name in NEEDED.split() if (folder := _folder_of(name))))
    return Isolation(f"FOLDERS = {folders!r}\n{PRELUDE}", kept | closed, suite, sha256)


@cache
def _code_of(spec: str) -> tuple[SealedCode | None, str]:
    """The package of a suite, sealed, and the SHA-256 over the code of its audit. A suite that is a single file is only
    hashed: its name is its path."""
    own, source = sealed.own(), source_of(spec)
    if spec.startswith("mixmark."):
        return None, own.sha256
    files = {file: file.read_bytes() for file in sealed.files_of(source)}
    sha256 = hashlib.sha256(f"{own.sha256}{sealed.digest(source.parent, files)}".encode()).hexdigest()
    if (top := _top_of(spec)) is None:
        return None, sha256
    package = sealed.files_of(top if top.is_dir() else top.with_suffix(".py"))
    return sealed.seal(top.parent, {file: file.read_bytes() for file in package if file.suffix == ".py"}), sha256


def source_of(spec: str) -> Path:
    """The folder of a suite's module if that is a package, else the module's file. Nothing is imported. Raises
    LookupError if there is no such module."""
    module = spec.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module).resolve()
    top = _top_of(spec)
    if top is None:
        raise LookupError(f"there is no module {module}")
    path = top.parent.joinpath(*module.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def _top_of(spec: str) -> Path | None:
    """The folder or file (without .py) of the top-level module of a suite's class. None if the spec names a file, or
    there is no such module."""
    module = spec.rpartition(":")[0]
    if module.endswith(".py"):
        return None
    found = importlib.util.find_spec(module.partition(".")[0])  # of a top-level name: nothing is imported
    if found is None:
        return None
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations))).resolve()
    return Path(found.origin).resolve().with_suffix("") if found.origin and found.origin.endswith(".py") else None


def _folder_of(package: str) -> str | None:
    """The folder that holds a package or an extension module."""
    found = importlib.util.find_spec(package)
    if found is None:
        return None
    if found.submodule_search_locations:
        return str(Path(next(iter(found.submodule_search_locations))).parent)
    return str(Path(found.origin).parent) if found.origin and found.origin.endswith((".py", ".so", ".pyd")) else None
