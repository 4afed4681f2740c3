"""Reads a public checkpoint as the weights of a suite: docs/checkpoints.md.

Files come from anywhere, so nothing in one is believed: the safetensors library checks the layout of its format, torch
loads tensors and nothing else, and every other fault is a UsageError that names the file and the cause.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Spec, Weights
from mixmark.harness.contracts.text import plain
from mixmark.suites.weights import Floats, check_buffer

COMPLETE = "download it again, and compare its size with the original's"
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""How the values of each type are read; numpy has no bf16."""
_FOREIGN = {
    b"version https://git-lfs": ("a pointer of git-lfs and not the file itself", "run git lfs pull where it lies"),
    b"<!doctype html": ("a web page", "download the file itself, and log in if its owner asks for that"),
    b"<html": ("a web page", "download the file itself, and log in if its owner asks for that"),
    b"GGUF": ("a GGUF file", "give the checkpoint that it was converted from"),
    b"\x1f\x8b": ("compressed by gzip", "unpack it"),
}
"""What a file is that begins with these bytes, in small letters or as they are, and what to do."""


def checkpoint(path: str | Path, specs: Mapping[str, Spec]) -> Weights:
    """The weights in a file (.safetensors, .pt, .pth, .bin) or in a folder of such files, sharded or not.

    A folder without files of weights is read in the layout of diffusers: its folder `unet` has the names that begin
    with `unet.`, and so on. Tensors that `specs` does not name are ignored. Raises UsageError if a file cannot be read,
    and if a tensor is missing, has another shape or is of no float type. `read` converts 16-bit values to float32.
    """
    path = Path(path)
    try:
        found = dict(_entries(path, {name.partition(".")[0] for name in specs}))
    except OSError as error:
        raise UsageError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    if missing := [name for name in specs if name not in found]:
        others = f"{len(missing)} of {len(specs)} tensors, " if len(missing) > 1 else ""
        example = f", such as {plain(min(found), 80)}" if found else ""
        raise UsageError(
            f"{path} has no tensor {others}{missing[0]!r}",
            f"it has {len(found)} tensors{example}; give the checkpoint of the model that the tier is shaped like",
        )
    for name, spec in specs.items():
        if found[name].shape != spec.shape:
            raise UsageError(
                f"{name} in {path} has shape {found[name].shape}, but the suite needs {spec.shape}",
                "give the checkpoint of the model that the tier is shaped like",
            )
        if found[name].dtype not in _DTYPES:
            raise UsageError(
                f"{name} in {path} is stored as {found[name].dtype}",
                "give a checkpoint in float32, float16 or bfloat16",
            )
    return Checkpoint(specs, found)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its shape, its type as safetensors names it, and a function that reads it into a float32
    array."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Floats], None]


@dataclass(frozen=True)
class Checkpoint:
    """The weights that `checkpoint` returns."""

    specs: Mapping[str, Spec]
    tensors: Mapping[str, Stored]

    def names(self) -> Sequence[str]:
        return list(self.specs)

    def spec(self, name: str) -> Spec:
        return self.specs[name]

    def read(self, name: str, into: Floats) -> None:
        """Fills `into`; raises ValueError if it is not C-contiguous float32 of the tensor's shape."""
        check_buffer(name, self.specs[name], into)
        self.tensors[name].read(into)


def _entries(path: Path, folders: set[str]) -> Iterator[tuple[str, Stored]]:
    if path.is_file():
        if path.suffix not in _READERS:
            raise UsageError(f"{path} is not a checkpoint", f"give a folder or a file in {', '.join(_READERS)}")
        _refuse_foreign(path)
        yield from _READERS[path.suffix](path)
        return
    if not path.is_dir():
        raise UsageError(f"there is no checkpoint at {path}", "give a file, or a folder with weights in it")
    files = _files(path)
    for file in files:
        yield from _entries(file, set())
    for folder in () if files else sorted(folders):
        if (path / folder).is_dir():
            for name, stored in _entries(path / folder, set()):
                yield f"{folder}.{name}", stored


def _refuse_foreign(path: Path) -> None:
    with path.open("rb") as file:
        begin = file.read(512).lstrip()
    if not begin:
        raise UsageError(f"{path} is empty", COMPLETE)
    for bytes_, (what, advice) in _FOREIGN.items():
        if begin.startswith(bytes_) or begin.lower().startswith(bytes_):
            raise UsageError(f"{path} is {what}", advice)


def _files(folder: Path) -> list[Path]:
    """A folder's files of one format: the shards in its index, or else all files but variants like `model.fp16.…`."""
    for suffix in _READERS:
        for index in sorted(folder.glob(f"*{suffix}.index.json")):
            return [folder / file for file in _shards(index)]
        files = sorted(folder.glob(f"*{suffix}"))
        if files:
            return [file for file in files if "." not in file.stem] or files
    return []


def _shards(index: Path) -> list[str]:
    _refuse_foreign(index)
    try:
        files = set(json.loads(index.read_bytes())["weight_map"].values())
        if not all(file and Path(file).name == file for file in files):  # raises TypeError if it is no text
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
            f"{path} is damaged, or holds other objects than tensors: torch cannot read it as plain tensors",
            f"{COMPLETE}; or save its state_dict() alone, as .safetensors",
        ) from error
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else loaded
    if not isinstance(tensors, Mapping):
        raise UsageError(f"{path} holds a {type(tensors).__name__}, not tensors by name", "save a model's state_dict()")
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
