"""Reads a public checkpoint as the weights of a suite: docs/checkpoints.md.

Files come from anywhere, so nothing in one is believed: the safetensors library checks the layout of its format, torch
loads tensors and nothing else, and every other fault is a UsageError that names the file and the cause.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Spec, Weights
from mixmark.harness.contracts.text import plain
from mixmark.suites.weights import Floats, Named, check_buffer

COMPLETE = "download it again, and compare its size with the original's"
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""How the values of each type are read; numpy has no bf16."""
_FOREIGN = {
    rb"version https://git-lfs": ("a pointer of git-lfs and not the file itself", "run git lfs pull where it lies"),
    rb"<!doctype html|<html": ("a web page", "download the file itself, and log in if its owner asks for that"),
    rb"GGUF|lmgg|fmgg|tjgg": ("a GGUF or GGML file", "give the checkpoint that it was converted from"),
}
INDEX = re.compile(r"\.index((?:\.\w+)?)\.json$")  # diffusers writes a variant's name behind it
SAVED_BY_TORCH = rb"PK\x03\x04|\x80[\x02-\x05]"  # a zip archive, or a pickle

Way = tuple[str, Callable[[], dict[str, "Stored"]]]
"""What is read, and a function that reads it or raises UsageError."""
"""What a file is whose first bytes match, in letters of either case, and what to do."""


def checkpoint(path: str | Path, specs: Mapping[str, Spec]) -> Weights:
    """The weights in a file (.safetensors, .pt, .pth, .bin) or in a folder of such files, sharded or not.

    Of a folder those files are taken that have the tensors of `specs`: its own files of one format, or files in the
    layout of diffusers, whose folder `unet` has the names that begin with `unet.`, and so on. Other files and other
    tensors are ignored. Raises UsageError if no files have all tensors, two files have the same one, a file of them
    cannot be read, or a tensor has another shape or is of no float type. `read` converts 16-bit values to float32.
    """
    path = Path(path)
    try:
        found = _tensors(path, specs.keys())
    except OSError as error:  # of a folder
        raise _unreadable(error, path) from error
    for name, spec in specs.items():
        if found[name].dtype not in _DTYPES:
            raise UsageError(
                f"{name} in {path} is stored as {found[name].dtype}",
                "give a checkpoint in float32, float16 or bfloat16",
            )
        if found[name].shape != spec.shape:
            raise UsageError(
                f"{name} in {path} has shape {found[name].shape}, but the suite needs {spec.shape}",
                "give the checkpoint of a model of that shape",
            )
    return Checkpoint(specs, found)


class Ambiguous(UsageError):
    """Two files or sets of files have a tensor with different values."""

    def __init__(self, one: str, other: str, folder: Path, name: str) -> None:
        both = f"{one} and {other} in {folder} both have a tensor {name!r}, and it differs"
        super().__init__(both, "give one of these files")


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its shape, its type as safetensors names it, and a function that reads it into a float32
    array."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Floats], None]


@dataclass(frozen=True)
class Checkpoint(Named):
    """The weights that `checkpoint` returns."""

    specs: Mapping[str, Spec]
    tensors: Mapping[str, Stored]
    """Those of the specs, and all others of the same files."""

    @property
    def unused(self) -> Sequence[str]:
        """The tensors that the suite's network does not have."""
        return sorted(self.tensors.keys() - self.specs.keys())

    def read(self, name: str, into: Floats) -> None:
        """Fills `into`; raises ValueError if it is not C-contiguous float32 of the tensor's shape."""
        check_buffer(name, self.specs[name], into)
        self.tensors[name].read(into)


def _tensors(path: Path, names: Collection[str]) -> dict[str, Stored]:
    """The tensors of a file, or of the first files of a folder that have all names. Raises UsageError, also if two of
    a folder's ways have all names and differ."""
    if path.is_file():
        return _of_file(path, names)
    if not path.is_dir():
        raise UsageError(f"there is no checkpoint at {path}", "give a file, or a folder with weights in it")
    problems = []
    for ways in _ways(path, names):
        fitting: list[tuple[str, dict[str, Stored]]] = []
        for label, way in ways:
            try:
                fitting.append((label, way()))
            except Ambiguous:
                raise
            except UsageError as error:
                problems.append(error)
        for (one, first), (other, second) in pairwise(fitting):
            if differing := next((name for name in names if not _same(first[name], second[name])), None):
                raise Ambiguous(one, other, path, differing)
        if fitting:
            return fitting[0][1]
    if problems:
        raise problems[0]
    files = (each for depth in ("*/*", "*/*/*") for each in path.glob(depth) if each.suffix.lower() in _READERS)
    inside = ", ".join(sorted({str(each.parent.relative_to(path)) for each in files})[:3])
    advice = f"give one of its folders, such as {inside}" if inside else "give the file or the folder of the weights"
    raise UsageError(f"{path} has no file of weights ({', '.join(_READERS)})", advice)


def _ways(folder: Path, names: Collection[str]) -> Iterator[Sequence[Way]]:
    """The ways to read a folder; the preferred ones first, and those of one rank together.

    They are the layout of diffusers; then of each format every index, and the files that no index names; then the same
    of variants such as `model.fp16.…`.
    """
    if all((folder / name.partition(".")[0]).is_dir() for name in names):
        yield [("its folders", partial(_of_folders, folder, names))]
    there = {each: _kind(each) for each in sorted(folder.iterdir()) if _kind(each)[0] in _READERS}
    ranked: dict[tuple[bool, bool], list[Way]] = defaultdict(list)
    others: dict[tuple[bool, str], list[Path]] = defaultdict(list)
    shards: set[Path] = set()
    for file in sorted(there, key=lambda each: not INDEX.search(each.name)):
        suffix, variant = there[file]
        by_torch = _READERS[suffix] is _torch
        if INDEX.search(file.name):
            ranked[bool(variant), by_torch].append((file.name, partial(_of_file, file, names)))
            with suppress(UsageError, OSError):
                shards.update(folder / shard for shard in _shards(file))
        elif file not in shards:
            others[by_torch, variant].append(file)
    for (by_torch, variant), files in others.items():
        ranked[bool(variant), by_torch].append((files[0].name, partial(_of_files, folder, files, names)))
    yield from (ranked[rank] for rank in sorted(ranked))


def _kind(file: Path) -> tuple[str, str]:
    """The format of a file of weights or of an index, and the variant that it names: `fp16` of `model.fp16.bin`, but
    none of `llama-3.2-1b.bin`."""
    index = INDEX.search(file.name)
    name = Path(INDEX.sub("", file.name))
    variant = re.search(r"\.([a-z]\w*)", name.stem + (index[1] if index else ""), re.IGNORECASE)
    return name.suffix.lower(), variant[1] if variant else ""


def _same(one: Stored, other: Stored) -> bool:
    """Whether two tensors have one shape, one type and the same values."""
    if (one.shape, one.dtype) != (other.shape, other.dtype) or one.dtype not in _DTYPES:
        return False
    values = [np.empty(one.shape, np.float32) for _ in range(2)]
    one.read(values[0])
    other.read(values[1])
    return np.array_equal(values[0], values[1], equal_nan=True)


def _of_folders(path: Path, names: Collection[str]) -> dict[str, Stored]:
    """In the layout of diffusers."""
    inside: dict[str, list[str]] = defaultdict(list)
    for folder, _, name in (name.partition(".") for name in names):
        inside[folder].append(name)
    found = {folder: _tensors(path / folder, names) for folder, names in inside.items()}
    return {f"{folder}.{name}": stored for folder, tensors in found.items() for name, stored in tensors.items()}


def _of_file(path: Path, names: Collection[str]) -> dict[str, Stored]:
    """The tensors of a file, or of the shards that an index names. Raises UsageError."""
    shards = [path.parent / file for file in _shards(path)] if INDEX.search(path.name) else [path]
    return _of_files(path, shards, names)


def _of_files(path: Path, files: Sequence[Path], names: Collection[str]) -> dict[str, Stored]:
    """Raises UsageError if a tensor is missing, and Ambiguous if it is in two files and differs. A file that cannot be
    read does not matter otherwise: trainers leave files beside the weights that hold none."""
    found: dict[str, tuple[Path, Stored]] = {}
    problem: UsageError | None = None
    for file in files:
        try:
            tensors = dict(_read(file))
        except UsageError as error:
            problem = problem or error
            continue
        for name in sorted(tensors.keys() & found.keys() & set(names)):
            if not _same(found[name][1], tensors[name]):
                raise Ambiguous(found[name][0].name, file.name, path, name)
        found |= {name: (file, stored) for name, stored in tensors.items()}
    if missing := [name for name in names if name not in found]:
        if problem and not found:
            raise problem
        others = f"{len(missing)} of {len(names)} tensors, " if len(missing) > 1 else ""
        example = f", such as {plain(min(found), 80)}" if found else ""
        raise UsageError(
            f"{path} has no tensor {others}{missing[0]!r}" + (f", and {problem}" if problem else ""),
            f"it has {len(found)} tensors{example}; give the checkpoint of a model of that shape",
        )
    used = {found[name][0] for name in names}
    return {name: stored for name, (file, stored) in found.items() if file in used}


def _read(path: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors of a file. Raises UsageError."""
    try:
        _refuse_foreign(path)
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise UsageError(
                f"files in {path.suffix or 'no format'} are not read: {path}", f"give one in {', '.join(_READERS)}"
            )
        yield from reader(path)
    except OSError as error:
        raise _unreadable(error, path) from error


def _unreadable(error: OSError, path: Path) -> UsageError:
    return UsageError(f"{error.filename or path} cannot be read: {error.strerror or error}", "give a readable copy")


def _refuse_foreign(path: Path) -> None:
    if path.exists() and not path.is_file():  # a pipe may never end
        raise UsageError(f"{path} is not a regular file", COMPLETE)
    with path.open("rb") as file:
        begin = file.read(512).lstrip()
    if not begin:
        raise UsageError(f"{path} is empty", COMPLETE)
    for pattern, (what, advice) in _FOREIGN.items():
        if re.match(pattern, begin, re.IGNORECASE | re.DOTALL):
            raise UsageError(f"{path} is {what}", advice)
    if _READERS.get(path.suffix.lower()) is _torch and not re.match(SAVED_BY_TORCH, begin):
        what = f"{path} is no file that torch saved: it begins with {begin[:20].decode('latin-1')!a}"
        raise UsageError(what, "give the checkpoint that it was converted from, or download it again")


def _shards(index: Path) -> list[str]:
    _refuse_foreign(index)
    try:
        files = set(json.loads(index.read_bytes())["weight_map"].values())
        if not all(file and file.isprintable() and Path(file).name == file for file in files):
            raise ValueError("weight_map names a file of another folder")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{index} is no index of shards", COMPLETE) from error
    return sorted(files)


def _safetensors(path: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors of a safetensors file: a little-endian u64 n, then n bytes of JSON, then the data.

    The library checks the header against the file's length. It cannot read bf16 into numpy, so the data is mapped here:
    a tensor is in memory only while it is read.
    """
    _refuse_damaged(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if path.stat().st_size > 8 + length else np.zeros(0, "u1")
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        yield name, Stored(tuple(entry["shape"]), entry["dtype"], partial(_convert, entry["dtype"], data[start:end]))


def _refuse_damaged(path: Path) -> None:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:  # a vendor's own interpreter: Mixmark's has checked the file before
        return
    try:
        with safe_open(path, "np"):
            pass
    except SafetensorError as error:
        why = plain(str(error), 200).removeprefix("Error while deserializing header: ")
        raise UsageError(f"{path} is not a whole safetensors file: {why}", COMPLETE) from error


def _convert(dtype: str, data: npt.NDArray[np.uint8], into: Floats) -> None:
    values = data.view(_DTYPES[dtype]).reshape(into.shape)
    if dtype == "BF16":  # the upper half of a float32
        bits = into.view(np.uint32)
        bits[...] = values
        bits <<= 16
    else:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite
            into[...] = values


def _torch(path: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors of a file that torch saved; needs torch. A checkpoint cannot run code, because of weights_only."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"{path} can be read by torch only", "install torch, or give a .safetensors file") from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # of every kind; torch's words advise options that a user of Mixmark cannot set
        raise UsageError(
            f"{path} is damaged, a TorchScript program, or holds other objects than tensors: torch cannot read it as "
            "plain tensors",
            f"{COMPLETE}; or save its state_dict() alone, as .safetensors",
        ) from error
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else loaded
    if not isinstance(tensors, Mapping) or not any(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        held = ", ".join(plain(str(each), 40) for each in islice(tensors, 5)) if isinstance(tensors, Mapping) else ""
        has = f", but {held}" if held else ""
        raise UsageError(f"{path} holds no tensors by name{has}", "save its state_dict() alone")
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            dtype = names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
            yield str(name), Stored(tuple(tensor.shape), dtype, partial(_copy, tensor))


def _copy(tensor: Any, into: Floats) -> None:
    import torch

    torch.from_numpy(into).copy_(tensor)


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, Stored]]]] = {
    ".safetensors": _safetensors,
    ".bin": _torch,
    ".pt": _torch,
    ".pth": _torch,
}
