"""Opens the `.npz` files of a result folder safely: sizes are limited before anything is unpacked, and nothing is
unpickled.

Damage raises one of the errors in `DAMAGE`.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

DAMAGE = (ValueError, LookupError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""The errors that a damaged or hostile file raises; RuntimeError covers encrypted members."""
MAX_MEMBERS = 4096  # a metering has three arrays a domain
MAX_DIRECTORY_BYTES = 1 << 20  # zipfile reads the whole directory of a zip into memory
ZIP_END = struct.Struct("<4s4H2LH")  # the record at the end of a zip, without a comment
ZIP64_LOCATOR = struct.Struct("<4sLQL")


@dataclass
class Budget:
    """The number of bytes of arrays that may still be unpacked."""

    left_bytes: int

    def take(self, size_bytes: int) -> None:
        """Raises ValueError if too few bytes are left."""
        if size_bytes > self.left_bytes:
            raise ValueError(f"it holds {size_bytes} bytes of arrays, and the folder may hold {self.left_bytes} more")
        self.left_bytes -= size_bytes


class Arrays:
    """The arrays of one open file."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        """Raises ValueError if the file holds more members, or more bytes, than it may."""
        _check_directory(file)
        self._archive = zipfile.ZipFile(file)
        members = self._archive.infolist()
        self.names = frozenset(member.filename.removesuffix(".npy") for member in members)
        if len(self.names) != len(members) or len(members) > MAX_MEMBERS:
            raise ValueError(f"it holds more than {MAX_MEMBERS} arrays, or two of one name")
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("its members are neither stored nor deflated")
        budget.take(sum(member.file_size for member in members))  # zipfile unpacks no more than this of a member

    def read(self, name: str) -> npt.NDArray[Any]:
        """Raises KeyError for an unknown name, ValueError for a member that is no plain array."""
        with self._archive.open(f"{name}.npy") as member:
            try:
                array = np.lib.format.read_array(member, allow_pickle=False)
            except Exception as error:  # numpy parses a header as Python, and raises whatever its tokenizer does
                raise ValueError(f"{name} is no plain array: {error}") from error
            if not array.itemsize or member.read(1):
                raise ValueError(f"{name} has another size than its header says")
        return array


def _check_directory(file: BinaryIO) -> None:
    """Raises ValueError if the directory of the zip is too large to be read, or is not where numpy writes it."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - ZIP_END.size - ZIP64_LOCATOR.size))
    tail = file.read()
    end = tail[-ZIP_END.size :]
    if len(end) < ZIP_END.size or not end.startswith(b"PK\x05\x06") or tail.startswith(b"PK\x06\x07"):
        raise ValueError("it does not end as a raw file does")
    *_, directory_bytes, _, comment_bytes = ZIP_END.unpack(end)
    if directory_bytes > MAX_DIRECTORY_BYTES or comment_bytes:
        raise ValueError("its directory is longer than that of any raw file")
    file.seek(0)
