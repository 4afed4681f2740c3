"""Reads the arrays of a file that anybody may have written: the size of each is known, and allowed, before it is read.

A raw file is an uncompressed or deflated zip of arrays as `numpy.savez` writes them. Headers are matched by a strict
pattern and never evaluated. What is wrong raises ValueError, or one of the errors in `DAMAGE`.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

DAMAGE = (ValueError, LookupError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What a damaged or hostile file raises; RuntimeError covers encrypted members."""
MAX_MEMBERS = 4096  # a metering has three arrays a domain
MAX_DIRECTORY_BYTES = 1 << 20
MAX_HEADER_BYTES = 1024  # numpy pads a header to 64 or 128 bytes
CHUNK_BYTES = 1 << 24

END = struct.Struct("<4s4H2LH")  # the end of a zip's directory, without a comment
MAGIC = b"\x93NUMPY\x01\x00"  # version 1.0, which numpy writes for every plain array
HEADER = re.compile(
    rb"\{'descr': '([<|][a-zA-Z][0-9]{1,4})', 'fortran_order': False, 'shape': \(((?:[0-9]{1,18},? ?)*)\), \} *\n"
)


@dataclass
class Budget:
    """How many bytes of arrays may still be read."""

    left_bytes: int

    def take(self, size_bytes: int) -> None:
        """Raises ValueError where too few are left."""
        if size_bytes > self.left_bytes:
            raise ValueError(f"it holds {size_bytes} bytes of arrays, and the folder may hold {self.left_bytes} more")
        self.left_bytes -= size_bytes


@dataclass(frozen=True)
class Shaped:
    """The type and shape of an array that was not read yet."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class Arrays:
    """The arrays of one open file."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        """Raises ValueError where the file holds more members, or more bytes, than it may."""
        _check_directory(file)
        self._archive = zipfile.ZipFile(file)
        members = self._archive.infolist()
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        if len(self._members) != len(members) or any(not member.filename.endswith(".npy") for member in members):
            raise ValueError("its members are not arrays with names of their own")
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("its members are neither stored nor deflated")
        budget.take(sum(member.file_size for member in members))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._members)

    def shaped(self, name: str) -> Shaped:
        """The type and shape of an array. Raises KeyError for a name that there is not, ValueError."""
        with self._archive.open(self._members[name]) as member:
            return self._begun(name, member)

    def read(self, name: str) -> npt.NDArray[Any]:
        """The whole array. Raises KeyError for a name that there is not, ValueError."""
        with self._archive.open(self._members[name]) as member:
            shaped = self._begun(name, member)
            content = member.read()
        return np.frombuffer(content, shaped.dtype).reshape(shaped.shape)

    def chunks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """The values of an array in their order, some MiB at a time, without its shape."""
        with self._archive.open(self._members[name]) as member:
            shaped = self._begun(name, member)
            size = max(1, CHUNK_BYTES // max(1, shaped.dtype.itemsize)) * shaped.dtype.itemsize
            while content := member.read(size):
                yield np.frombuffer(content, shaped.dtype)

    def _begun(self, name: str, member: Any) -> Shaped:
        """Reads the header, after which `member` stands at the values. Raises ValueError where it is none, and where
        the values are not as many bytes as the member holds."""
        begin = member.read(len(MAGIC) + 2)
        size = int.from_bytes(begin[len(MAGIC) :], "little")
        if not begin.startswith(MAGIC) or size > MAX_HEADER_BYTES:
            raise ValueError(f"{name} does not begin as an array does")
        found = HEADER.fullmatch(member.read(size))
        if found is None:
            raise ValueError(f"the header of {name} is not that of a plain array")
        dtype = np.dtype(found[1].decode())
        if dtype.kind not in "biufU":
            raise ValueError(f"{name} holds {dtype}, and not numbers or a name")
        shaped = Shaped(dtype, tuple(int(each) for each in found[2].replace(b",", b" ").split()))
        if shaped.size_bytes != self._members[name].file_size - len(begin) - size:
            raise ValueError(f"{name} has another size than its header says")
        return shaped


def _check_directory(file: BinaryIO) -> None:
    """Raises ValueError where the zip's directory is too long to be read, or is not at the end of the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - END.size))
    end = file.read(END.size)
    if len(end) < END.size or not end.startswith(b"PK\x05\x06"):
        raise ValueError("it does not end as a raw file does")
    _, _, _, _, members, directory_bytes, _, comment = END.unpack(end)
    if members > MAX_MEMBERS or directory_bytes > MAX_DIRECTORY_BYTES or comment:
        raise ValueError(f"it holds more than {MAX_MEMBERS} arrays")
    file.seek(0)
