"""Writes safetensors files and the JSON files beside them, for the tools of each model's ecosystem.

A safetensors file is a little-endian u64 n, then n bytes of JSON, then the data of all tensors in order. The
safetensors library is not used, because it takes all tensors at once and has no bf16 in numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Suite, Value, Weights
from mixmark.harness.contracts.weights import read_weight, round_to_bf16

TYPES = {"fp32": ("F32", 4), "bf16": ("BF16", 2), "fp16": ("F16", 2)}
"""The name of each precision in safetensors, and the bytes of a value."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""The name of each precision in transformers."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mamba2": "Mamba2ForCausalLM"}
"""The classes of transformers by the type of a language model."""
CHUNK = 1 << 22  # values rounded at a time, 16 MiB in float32


def prepare(suite: Suite, precision: str) -> Callable[[Path], None]:
    """Returns the function that writes the suite's weights and its JSON files into a folder; it needs memory for one
    tensor in float32."""
    if precision not in TYPES:
        raise Unsupported(f"safetensors files are not written in {precision}", f"take one of {', '.join(TYPES)}")
    weights = suite.weights()
    config = nested(suite.config)
    documents: dict[str, Any] = {"config.json": config}
    if architecture := ARCHITECTURES.get(config.get("model_type", "")):
        documents = _language_model(architecture, config, precision)

    def write(folder: Path) -> None:
        for name, document in documents.items():
            (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        _write_file(folder / "model.safetensors", weights, precision)

    return write


def nested(config: Mapping[str, Value]) -> dict[str, Any]:
    """A suite's config as a JSON document: a dot in a name becomes a nested object."""
    document: dict[str, Any] = {}
    for name, value in config.items():
        *parts, last = name.split(".")
        into = document
        for part in parts:
            into = into.setdefault(part, {})
        into[last] = value
    return document


def _language_model(architecture: str, config: dict[str, Any], precision: str) -> dict[str, Mapping[str, Any]]:
    """The JSON files as transformers reads them.

    The file declares that there is no end token, because transformers otherwise uses token 2. The tokenizer's words are
    the numbers of the tokens, and any other word is an error.
    """
    ends = {"bos_token_id": None, "eos_token_id": None}
    generation = {**ends, **config.pop("generation_config")}
    words = {str(token): token for token in range(config["vocab_size"])}
    return {
        "config.json": {"architectures": [architecture], **ends, **config, "torch_dtype": DTYPES[precision]},
        "generation_config.json": generation,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "none"},
        },
    }


def _write_file(path: Path, weights: Weights, precision: str) -> None:
    type, size = TYPES[precision]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    end = 0
    for name in weights.names():
        shape = tuple(map(int, weights.spec(name).shape))
        begin, end = end, end + size * math.prod(shape)
        header[name] = {"dtype": type, "shape": shape, "data_offsets": (begin, end)}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # so that the data is aligned
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in weights.names():
            write_tensor(file, read_weight(weights, name), precision)


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
