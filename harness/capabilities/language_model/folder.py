"""A folder of config.json and safetensors, as transformers saves a language model, as options of the suite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.own_model.model import regular
from mixmark.harness.contracts.errors import UsageError

PLUGIN = "language-model"
"""The name of the suite in the manifest."""
KINDS: Mapping[str, Any] = {"llama": {}, "mistral": {}, "qwen2": {"biases": True}, "qwen3": {"head_norms": True}}
"""The values of `model_type`, each with what its network has beside Llama's."""
SIZES = {
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "hidden",
    "vocab_size": "vocabulary",
}
"""The keys of sizes, which a config must have, and the fields of the shape."""
ONLY: Mapping[str, Any] = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
"""Keys of which the network here has one value."""
OTHERS = {
    *("model_type", "head_dim", "rms_norm_eps", "tie_word_embeddings", "max_position_embeddings"),
    *("rope_parameters", "rope_scaling", "rope_theta", "layer_types", "sliding_window", "use_sliding_window"),
}
WITHOUT_EFFECT = {
    *("architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "use_cache"),
    *("max_window_layers", "pad_token_id", "pretraining_tp", "torch_dtype", "transformers_version", "_name_or_path"),
}
"""Keys that change no logit of a prompt without padding."""
ROPE: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "linear": {"factor": "rope_factor"},
    "llama3": {
        "factor": "rope_factor",
        "low_freq_factor": "rope_low",
        "high_freq_factor": "rope_high",
        "original_max_position_embeddings": "rope_original_context",
    },
}
"""The kinds of rope's scaling, with their keys and the fields of the shape."""
EVERY_FREQUENCY = {"rope_low": 1e9, "rope_high": 2e9}
"""Numbers of turns that no frequency reaches, so that the factor divides all of them."""
ELSE = "give --model an ONNX file that was exported from it"


def section(folder: Path) -> dict[str, str]:
    """The options of the suite: the shape, the longest context, and the path of the weights if there are any. Raises
    UsageError."""
    try:
        config = json.loads(regular(folder / "config.json").read_bytes())
    except OSError as error:
        why = f"{folder.name} has no config.json that can be read: {error.strerror}"
        raise UsageError(why, hint="give a folder as transformers saves a model, or a file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{folder.name}/config.json is no JSON: {error}", hint="download it again") from error
    try:
        shape, longest = shape_of(config if isinstance(config, dict) else {})
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(
            f"{folder.name}/config.json has a value of a wrong type: {error}", "download it again"
        ) from error
    own = any(each for pattern in ("*.safetensors*", "pytorch_model*") for each in folder.glob(pattern))
    weights = {"weights": str(folder.absolute())} if own else {}
    shown = {f"shape.{name}": json.dumps(value) for name, value in shape.items()}
    return {"plugin": PLUGIN, "model_type": config["model_type"], "longest": str(longest), **shown, **weights}


def shape_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The fields of the LlamaShape that a config describes, and the longest context. Raises UsageError for what is not
    understood, by its name; TypeError, ValueError and ArithmeticError for values that are no numbers."""
    kind = str(config.get("model_type"))
    if kind not in KINDS:
        raise UsageError(f"config.json is of a model of the type {kind}, not {', '.join(KINDS)}", ELSE)
    if strange := sorted(config.keys() - SIZES.keys() - ONLY.keys() - OTHERS - WITHOUT_EFFECT):
        raise UsageError(f"config.json has {', '.join(strange)}, which Mixmark does not understand", ELSE)
    needed = (*SIZES, "max_position_embeddings", *(["head_dim"] if kind == "qwen3" else []))
    if lacking := [key for key in needed if not config.get(key)]:
        raise UsageError(f"config.json lacks {', '.join(lacking)}", "add what the model was made with")
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    named = [rope.pop(key, None) for key in ("rope_type", "type")]
    scaling = next(filter(None, named), "default")
    theta = float(rope.pop("rope_theta", None) or config.get("rope_theta", 10_000.0))
    given = {key: config.get(key, only) for key, only in ONLY.items()}
    if other := [f"{key} = {value}" for key, value in given.items() if value != ONLY[key]]:
        raise UsageError(f"config.json has {', '.join(other)}, which Mixmark does not run", ELSE)
    if scaling not in ROPE or rope.keys() != ROPE[scaling].keys():
        raise UsageError(f"config.json has rope of the type {scaling} with {', '.join(rope)}", ELSE)
    types = {**dict.fromkeys(SIZES, int), "tie_word_embeddings": bool}
    if wrong := [f"{key} {config[key]!r}" for key, own in types.items() if type(config.get(key, own())) is not own]:
        raise TypeError(", ".join(wrong))
    shape: dict[str, Any] = {field: config[key] for key, field in SIZES.items()}
    shape["head_dim"] = int(config.get("head_dim") or shape["width"] // shape["heads"])
    if min(shape.values()) < 1 or shape["heads"] % shape["kv_heads"] or shape["head_dim"] % 2:
        raise ValueError(", ".join(f"{name} {value}" for name, value in shape.items()))
    shape |= {"tied": bool(config.get("tie_word_embeddings")), "epsilon": float(config.get("rms_norm_eps", 1e-6))}
    shape |= {"rope_theta": theta, "rope_factor": 1.0, **(EVERY_FREQUENCY if scaling == "linear" else {})}
    shape |= {**{field: float(rope[key]) for key, field in ROPE[scaling].items()}, **KINDS[kind]}
    if wrong := [f"{name} {value}" for name, value in shape.items() if not 0 < value < math.inf and value is not False]:
        raise ValueError(", ".join(wrong))
    windows = kind == "mistral" or config.get("use_sliding_window")
    longest = [config.get("max_position_embeddings"), config.get("sliding_window") if windows else None]
    return shape, min(int(each) for each in longest if each)
