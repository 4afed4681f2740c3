"""Which files hold a suite's weights, under which names, and what stands in the JSON files beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.contracts import Value

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""What transformers and diffusers call each precision."""


@dataclass(frozen=True)
class Layout:
    """The files of a checkpoint."""

    documents: Mapping[str, Mapping[str, Any]]
    """The JSON files by their paths."""
    weights: Mapping[str, dict[str, str]]
    """By the path of each safetensors file without its suffix: the suite's name of each tensor, by its name there."""


def layout(config: Mapping[str, Value], names: Sequence[str], precision: str) -> Layout:
    """The layout of a suite's checkpoint, from the suite's config and the names of its weights."""
    documents = nested(config)
    if config.get("model_type") == "llama":
        generation = documents.pop("generation_config")
        return Layout(
            {
                "config.json": {**_LLAMA, **documents, "torch_dtype": DTYPES[precision]},
                "generation_config.json": generation,
            },
            {"model": {name: name for name in names}},
        )
    return Layout({"config.json": documents}, {"model": {name: name for name in names}})


_LLAMA = {"architectures": ["LlamaForCausalLM"], "bos_token_id": None, "eos_token_id": None}
"""There is no end token: without this, transformers would take token 2 for one."""


def nested(config: Mapping[str, Value]) -> dict[str, Any]:
    """A suite's config as a JSON document: a dot in a name stands where the file nests."""
    document: dict[str, Any] = {}
    for name, value in config.items():
        *parts, last = name.split(".")
        into = document
        for part in parts:
            into = into.setdefault(part, {})
        into[last] = value
    return document
