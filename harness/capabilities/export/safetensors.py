"""Writes safetensors files and the JSON files beside them, for the tools of each model's ecosystem.

A safetensors file is a little-endian u64 n, then n bytes of JSON, then the data of all tensors in order. The
safetensors library is not used, because it takes all tensors at once and has no bf16 in numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.export.layouts import layout
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Suite, Weights
from mixmark.harness.contracts.weights import read_weight, round_to_bf16

TYPES = {"fp32": ("F32", 4), "bf16": ("BF16", 2), "fp16": ("F16", 2)}
"""The name of each precision in safetensors, and the bytes of a value."""
CHUNK = 1 << 22  # values rounded at a time, 16 MiB in float32


def prepare(suite: Suite, precision: str) -> Callable[[Path], None]:
    """Returns the function that writes the suite's weights and its JSON files into a folder; it needs memory for one
    tensor in float32."""
    if precision not in TYPES:
        raise Unsupported(f"safetensors files are not written in {precision}", f"take one of {', '.join(TYPES)}")
    weights = suite.weights()
    files = layout(suite.config, weights.names(), precision)

    def write(folder: Path) -> None:
        for path, document in files.documents.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        for path, names in files.weights.items():
            _write_file(folder / f"{path}.safetensors", names, weights, precision)

    return write


def _write_file(path: Path, names: dict[str, str], weights: Weights, precision: str) -> None:
    """names: the suite's name of each tensor, by the name in the file."""
    type, size = TYPES[precision]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    end = 0
    for name, own in names.items():
        shape = tuple(map(int, weights.spec(own).shape))
        begin, end = end, end + size * math.prod(shape)
        header[name] = {"dtype": type, "shape": shape, "data_offsets": (begin, end)}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # so that the data is aligned
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for own in names.values():
            write_tensor(file, read_weight(weights, own), precision)


def write_tensor(file: BinaryIO, values: npt.NDArray[np.float32], precision: str) -> None:
    """Writes the values at the precision, CHUNK values at a time."""
    flat = values.reshape(-1)
    for start in range(0, len(flat), CHUNK):
        file.write(rounded(flat[start : start + CHUNK], precision).data)


def rounded(values: npt.NDArray[np.float32], precision: str) -> Array:
    """The values at one of the precisions of TYPES; bf16 as its bits in uint16.

    Raises Unsupported if a value is too large for fp16.
    """
    if precision == "fp32":
        return values
    if precision == "fp16":
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if np.isinf(half).any():
            raise Unsupported("the checkpoint has values beyond the range of fp16", "take --precision bf16")
        return half
    into = np.empty(values.shape, np.uint16)
    round_to_bf16(values, into)
    return into
