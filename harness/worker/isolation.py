"""How the auditor's process is kept apart from whatever else is installed beside Mixmark.

It runs `python -I -S` with a cleaned environment: no .pth file, sitecustomize, user site or PYTHON* variable has a say,
and no entry point of another package is loaded. Mixmark's own modules and those of the suite are compiled from their
sources, never from a cached .pyc, and hashed as they are run; what the auditor says it ran is compared with what the
files held when the run began. torch, numpy and the packages that these need come from their folders, by their version.

Who may install packages beside Mixmark can still replace torch or Mixmark itself: `mixmark audit` repeats the audits
of a result folder elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).absolute().parents[3]
OWN = ("mixmark/harness", "mixmark/suites", "mixmark/__init__", "mixmark/api")
NEEDED = """
    numpy pydantic pydantic_core annotated_types typing_extensions typing_inspection psutil safetensors scipy
    torch sympy mpmath networkx jinja2 markupsafe fsspec filelock triton nvidia platformdirs
"""
"""The packages that the auditor may import beside the standard library. Those that are not here are left out."""
VARIABLES = """
    PATH HOME USER LOGNAME LANG LC_ALL SYSTEMROOT LD_LIBRARY_PATH OMP_NUM_THREADS MKL_NUM_THREADS
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK
"""
"""The variables that the auditor keeps: where libraries and devices are, and how many threads there may be."""
NO_ENTRY_POINTS = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""pydantic and torch would load code of any installed package that offers itself."""

PRELUDE = """
import ctypes, hashlib, importlib.util, sys
from importlib.machinery import PathFinder, SourceFileLoader
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no other process of this user may attach to this one
RAN = {}
class Source(SourceFileLoader):
    def get_code(self, name):
        path = self.get_filename(name)
        data = self.get_data(path)
        RAN[path] = hashlib.sha256(data).hexdigest()
        return self.source_to_code(data, path)
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
"""What the auditor runs before anything else. TOPS and FOLDERS stand above it."""


@dataclass(frozen=True)
class Isolation:
    """How an isolated worker is started, and what it may run."""

    prelude: str
    """Python code that comes before all other code."""
    variables: Mapping[str, str]
    """Its whole environment, but for TMPDIR."""
    code: Mapping[str, str]
    """The SHA-256 of each file of Mixmark and of the suite, by its path, as it was when this process first looked."""
    roots: tuple[Path, ...]
    """The folders that these paths are told relative to."""

    def checked(self, ran: Mapping[str, str]) -> str:
        """The hash of the code that an auditor ran, by its files' SHA-256. Raises ValueError, which names the file,
        where it is not the code of this process."""
        for path, digest in ran.items():
            if self.code.get(path) != digest:
                raise ValueError(f"the auditor ran a {Path(path).name} that is not the one that the run began with")
        return combined({self._relative(path): digest for path, digest in ran.items()})

    def _relative(self, path: str) -> str:
        return next(Path(path).relative_to(root).as_posix() for root in self.roots if Path(path).is_relative_to(root))


def isolation(spec: str, any_backend: bool = False) -> Isolation:
    """How an auditor of a suite is kept apart.

    spec: the suite's class. any_backend: torch loads the backends that other packages offer, for a reference on their
    accelerators.
    """
    top, source = _top_of(spec), source_of(spec)
    tops = {"mixmark": str(ROOT)} | ({top.name: str(top.parent)} if top else {})
    kept = {name: os.environ[name] for name in VARIABLES.split() if name in os.environ}
    closed = {name: value for name, value in NO_ENTRY_POINTS.items() if not (any_backend and name.startswith("TORCH"))}
    remember()
    for file in _files(top or source):
        _seen(file)
    return Isolation(
        prelude=f"TOPS = {tops!r}\nFOLDERS = {list(_folders())!r}\n{PRELUDE}",
        variables=kept | closed,
        code=_HASHES,
        roots=(ROOT, (top or source).parent),
    )


def remember() -> None:
    """Hashes Mixmark's own files, unless that was done before: call it before the first worker is started."""
    for name in OWN:
        for file in _files(ROOT / name):
            _seen(file)


def source_of(spec: str) -> Path:
    """What a suite consists of: the folder of its module where that is a package, else the module's file. Nothing is
    imported. Raises LookupError where there is none."""
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(where).resolve()
    top = _top_of(spec)
    if top is None:
        raise LookupError(f"there is no module {where}")
    found = top.parent.joinpath(*where.split("."))
    return found if found.is_dir() else found.with_suffix(".py")


def hashes(source: Path) -> dict[str, str]:
    """The SHA-256 of each file of a suite, by its path, as they are now."""
    return {str(file): _sha256(file) for file in _files(source)}


def combined(digests: Mapping[str, str]) -> str:
    """One SHA-256 over the lines `name digest`, sorted."""
    lines = (f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def own_code() -> str:
    """One SHA-256 over the source files of Mixmark that measure, without their folder: the same for each installation
    of one version."""
    files = (file for name in OWN for file in _files(ROOT / name) if file.suffix == ".py")
    return combined({str(file.relative_to(ROOT)): _sha256(file) for file in files})


_HASHES: dict[str, str] = {}


def _seen(file: Path) -> None:
    if str(file) not in _HASHES:
        _HASHES[str(file)] = _sha256(file)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _files(source: Path) -> Iterator[Path]:
    """The files of a package, or a module's file; caches of compiled code are none of them."""
    if source.is_dir():
        yield from (each for each in source.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    else:
        yield source if source.suffix == ".py" else source.with_suffix(".py")


def _top_of(spec: str) -> Path | None:
    """The path of the top-level module or package of a suite's class; None for a file, or where there is none."""
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        return None
    return _located(where.partition(".")[0])


def _located(name: str) -> Path | None:
    found = importlib.util.find_spec(name)  # of a top-level name: nothing is imported
    if found is None:
        return None
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations))).resolve()
    return Path(found.origin).resolve().with_suffix("") if found.origin and found.origin.endswith(".py") else None


def _folders() -> Iterator[str]:
    """The folders that hold what the auditor needs, each once."""
    found = [each for name in NEEDED.split() if (each := _folder_of(name))]
    return iter(dict.fromkeys(found))


def _folder_of(name: str) -> str | None:
    found = importlib.util.find_spec(name)
    if found is None:
        return None
    if found.submodule_search_locations:
        return str(Path(next(iter(found.submodule_search_locations))).parent)
    return str(Path(found.origin).parent) if found.origin and found.origin.endswith((".py", ".so", ".pyd")) else None
