"""The layout of an exported checkpoint: its files, the names of the tensors in them, and the JSON files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixmark.harness.contracts.protocols import Value

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""The names of the precisions in transformers and diffusers."""
MODEL = "model"
"""The name of a single-file model."""
DIFFUSERS = "0.30.0"
"""The version of diffusers in the configurations."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mamba2": "Mamba2ForCausalLM"}
"""The classes of transformers by the type of a language model."""
PARTS = {
    "text_encoder": ("transformers", "CLIPTextModel"),
    "text_encoder_2": ("transformers", "CLIPTextModelWithProjection"),
    "unet": ("diffusers", "UNet2DConditionModel"),
    "vae": ("diffusers", "AutoencoderKL"),
    "scheduler": ("diffusers", "EulerDiscreteScheduler"),
}
"""The library and the class of each part of a diffusion pipeline."""
CLIP = {"model_type": "clip_text_model", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
"""As in the public files. An end token of 2 means that the token with the highest number is the end token."""


@dataclass(frozen=True)
class Layout:
    """The files of a checkpoint."""

    documents: Mapping[str, Mapping[str, Any]]
    """The JSON files by their paths."""
    weights: Mapping[str, dict[str, str]]
    """The suite's name of each tensor, by the path of the safetensors file without suffix and the name in the file."""


def layout(config: Mapping[str, Value], names: Sequence[str], precision: str) -> Layout:
    """The layout of a suite's checkpoint, from the suite's config and the names of its weights."""
    documents = nested(config)
    if "_class_name" in config:
        return _pipeline(documents, names, precision)
    whole = {MODEL: {name: name for name in names}}
    if architecture := ARCHITECTURES.get(str(config.get("model_type"))):
        return Layout(_language_model(architecture, documents, precision), whole)
    return Layout({"config.json": documents}, whole)


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


def _pipeline(config: dict[str, Any], names: Sequence[str], precision: str) -> Layout:
    """The layout that diffusers reads: a folder for each part, with the part's name removed from its tensors."""
    parts = {part: config.pop(part) for part in PARTS if part in config}
    absent = ("tokenizer", *(["tokenizer_2"] if "text_encoder_2" in parts else ["safety_checker"]), "feature_extractor")
    index = {"_class_name": config.pop("_class_name"), "_diffusers_version": DIFFUSERS}
    index |= {part: PARTS[part] for part in parts} | {part: (None, None) for part in absent}
    documents: dict[str, Mapping[str, Any]] = {"model_index.json": index, "call.json": config}
    weights: dict[str, dict[str, str]] = {}
    for part, document in parts.items():
        library, name = PARTS[part]
        if library == "transformers":
            head = {"architectures": [name], **CLIP, "torch_dtype": DTYPES[precision]}
        else:
            head = {"_class_name": name, "_diffusers_version": DIFFUSERS}
        if part == "vae":
            head["use_quant_conv"] = False  # the encoder's last layer, and there is no encoder
        documents[f"{part}/{'scheduler_config' if part == 'scheduler' else 'config'}.json"] = {**head, **document}
        held = {own.removeprefix(f"{part}."): own for own in names if own.startswith(f"{part}.")}
        if held:
            weights[f"{part}/{MODEL if library == 'transformers' else 'diffusion_pytorch_model'}"] = held
    return Layout(documents, weights)
