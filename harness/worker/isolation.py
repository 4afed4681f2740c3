"""How the processes of the auditor and of witnesses are kept apart from other installed packages.

A witness is the probe of a built-in adapter: it sets the ceiling that other engines are compared with. Both run
`python -I -S` with a cleaned environment: no .pth file, sitecustomize, user site or PYTHON* variable has a say,
and no entry point of another package is loaded. Mixmark and the suite are compiled from their sources, never from a
cached .pyc. torch, numpy and the packages that these need come from their folders.

A developer who may install packages beside Mixmark can still replace torch or Mixmark itself: `mixmark audit` repeats
the audits of a result folder on another machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).absolute().parents[3]
OWN = ("mixmark/harness", "mixmark/suites", "mixmark/__init__.py", "mixmark/api.py")
"""The code of Mixmark that measures, below ROOT."""
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
from importlib.machinery import PathFinder, SourceFileLoader
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no other process of this user may attach to this one
class Source(SourceFileLoader):
    def get_code(self, name):
        path = self.get_filename(name)
        return self.source_to_code(self.get_data(path), path)
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        found = PathFinder.find_spec(name, path or [TOPS[top]]) if top in TOPS else None
        if found and found.origin and found.origin.endswith(".py"):
            found.loader = Source(name, found.origin)
        return found
sys.meta_path.insert(0, Finder)
sys.path += FOLDERS
"""
"""The code that the auditor runs first. TOPS and FOLDERS are set above it."""


@dataclass(frozen=True)
class Isolation:
    """How an isolated worker is started."""

    prelude: str
    """Python code that comes before all other code."""
    variables: Mapping[str, str]
    """Its whole environment, but for TMPDIR."""


def isolation(spec: str, any_backend: bool = False) -> Isolation:
    """How the auditor or the witness of a suite is started. Raises LookupError if the suite's module does not exist.

    spec: the suite's class. any_backend: torch may load backends of other packages, for a reference on their
    accelerators.
    """
    source_of(spec)
    top = _top_of(spec)
    tops = {"mixmark": str(ROOT)} | ({top.name: str(top.parent)} if top else {})
    kept = {name: os.environ[name] for name in VARIABLES.split() if name in os.environ}
    closed = {name: value for name, value in NO_ENTRY_POINTS.items() if not (any_backend and name.startswith("TORCH"))}
    folders = list(dict.fromkeys(folder for name in NEEDED.split() if (folder := _folder_of(name))))
    return Isolation(f"TOPS = {tops!r}\nFOLDERS = {folders!r}\n{PRELUDE}", kept | closed)


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


def own_code() -> str:
    """The SHA-256 over the source files of Mixmark that measure: the same for each installation of one version."""
    return _hash(ROOT, (file for name in OWN for file in _files(ROOT / name) if file.suffix == ".py"))


def code_of(spec: str) -> str:
    """The SHA-256 over the code of an audit: the source files of Mixmark and all files of the suite."""
    source = source_of(spec)
    return hashlib.sha256(f"{own_code()}{_hash(source.parent, _files(source))}".encode()).hexdigest()


def _hash(root: Path, files: Iterator[Path]) -> str:
    """One SHA-256 over the contents of files and their paths below a folder, in the order of the paths."""
    lines = sorted(
        f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _files(path: Path) -> Iterator[Path]:
    """A file, or the files below a folder without caches of compiled code."""
    inside = path.rglob("*") if path.is_dir() else (path,)
    yield from (file for file in inside if file.is_file() and "__pycache__" not in file.parts)


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
