"""Writes the llm suite's weights as a GGUF file of the Llama architecture, tensor by tensor.

    matrices, the embedding included    the requested type
    weights of norms, rope factors      F32

Q8_0 and Q4_0 store blocks of 32 integers along the contraction axis, each block with a scale in fp16. Synthetic weights
are integers from −8 to 7 times a power of two, so both types store them exactly; a checkpoint's weights are rounded.

llama.cpp's server aborts without a tokenizer, and every tokenizer but RWKV's has an end token. So the file has RWKV's
tokenizer, with the numbers of the tokens as words: " 17 4 2" is the text of the tokens 17, 4 and 2. Token 0 is a single
blank, because the tokenizer loops for ever on a text that begins like a word and is not one: every prefix of a word
must be a word.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.adapters.lowbit import GROUP, Integers, in_groups, packed
from mixmark.harness.adapters.rope import frequencies
from mixmark.harness.contracts.errors import PluginError, Unsupported
from mixmark.harness.contracts.protocols import Array, Suite, Value
from mixmark.harness.contracts.schema import Precision
from mixmark.harness.contracts.weights import round_to_bf16

BYTES_PER_GROUP = {"F32": 128, "BF16": 64, "F16": 64, "Q8_0": 34, "Q4_0": 18}
"""The bytes of 32 values of a matrix, by type."""
TYPES: dict[Precision, str] = {"fp16": "F16", "bf16": "BF16", "fp32": "F32", "int8": "Q8_0", "int4": "Q4_0"}
"""GGUF's name of each precision, the best precision of each weight class first."""
FILE = "model.gguf"
HEAD_BYTES = 4 << 20  # exceeds the size of the names and shapes of all tensors and the words of all tokens
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

Floats = npt.NDArray[np.float32]


def type_of(suite: Suite, precision: str) -> str:
    """GGUF's name of a precision. Raises Unsupported if GGUF has none, or for a suite of another architecture."""
    if suite.name != "llm" or suite.config.get("model_type") != "llama":
        raise Unsupported(f"GGUF files hold only Llama-type models; {suite.name} is not one", "take another --format")
    type = next((type for name, type in TYPES.items() if name == precision), None)
    if type is None:
        raise Unsupported(f"GGUF has no type for {precision}", f"take one of {', '.join(TYPES)}")
    return type


def prepare(suite: Suite, precision: str) -> Callable[[Path], None]:
    """Returns the function that writes FILE into a folder: the format `gguf` of `mixmark export`."""
    type = type_of(suite, precision)
    try:
        importlib.import_module("gguf")
    except ImportError as error:
        raise PluginError(f"{error.name} is not installed", "pip install gguf") from error
    return partial(write, suite, type)


def size_bytes(suite: Suite, type: str) -> int:
    """The size of the file, to within a MiB."""
    weights = suite.weights()
    return HEAD_BYTES + sum(_bytes(weights.spec(name).shape, type) for name in weights.names())


def write(suite: Suite, type: str, folder: Path) -> None:
    """Writes FILE into the folder; needs memory for one tensor in float32 and in `type`."""
    import gguf

    config: Any = suite.config
    weights = suite.weights()
    writer = gguf.GGUFWriter(folder / FILE, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("rwkv")  # the only one that assumes no begin, end or unknown token
    writer.add_token_list([f" {token or ''}" for token in range(config["vocab_size"])])
    float32 = gguf.GGMLQuantizationType.F32
    shapes = {name: tuple(map(int, weights.spec(name).shape)) for name in weights.names()}
    for name, shape in shapes.items():
        dtype = gguf.GGMLQuantizationType[type] if len(shape) > 1 else float32
        writer.add_tensor_info(tensor_name(name), shape, np.dtype(np.float32), _bytes(shape, type), dtype)
    factors = rope_factors(config)
    writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes, float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in shapes.items():
        tensor = np.empty(shape, np.float32)
        weights.read(name, tensor)
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".{projection}." in name:
                tensor = interleaved(tensor, config[heads])
        writer.write_tensor_data(encoded(tensor, type) if len(shape) > 1 else tensor)
    writer.write_tensor_data(factors)
    writer.close()


def tensor_name(name: str) -> str:
    """The name of a tensor in a GGUF file, from its name in the public checkpoint."""
    stem = name.removesuffix(".weight")
    if stem in ENDS:
        return f"{ENDS[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}.weight"


def interleaved(weight: Floats, heads: int) -> Floats:
    """The rows of a query or key projection in the order of llama.cpp, which rotates neighbouring rows of a head.

    In the public checkpoints the two rows of a pair are half a head apart.
    """
    rows, width = weight.shape
    return np.ascontiguousarray(weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width))


def rope_factors(config: Mapping[str, Value]) -> Floats:
    """The divisors of the rotary frequencies: Llama 3's scaling."""
    _, scales = frequencies(config)
    factors: Floats = (1 / scales).astype(np.float32)
    return factors


def encoded(matrix: Floats, type: str) -> Array:
    """The bytes of a matrix in the file, [rows, bytes]."""
    rows, width = matrix.shape
    out = np.empty((rows, width * BYTES_PER_GROUP[type] // GROUP), np.uint8)
    step = max(1, (1 << 22) // width)  # the rows of 16 MiB in float32
    for start in range(0, rows, step):
        part = matrix[start : start + step]
        out[start : start + step] = ENCODERS[type](part).view(np.uint8).reshape(len(part), -1)
    return out


def _bytes(shape: tuple[int | str, ...], type: str) -> int:
    values = math.prod(map(int, shape))
    return 4 * values if len(shape) < 2 else values * BYTES_PER_GROUP[type] // GROUP


def _bf16(values: Floats) -> npt.NDArray[np.uint16]:
    rounded = np.empty(values.shape, np.uint16)
    round_to_bf16(values, rounded)
    return rounded


def _q8_0(values: Floats) -> Array:
    return _blocks(values, 8, lambda integers: integers.view(np.uint8))


def _q4_0(values: Floats) -> Array:
    places = np.arange(GROUP).reshape(2, -1).T.reshape(-1)  # a byte holds two places that are half a block apart
    return _blocks(values, 4, lambda integers: packed(integers[:, places]))


def _blocks(values: Floats, bits: int, pack: Callable[[Integers], Array]) -> Array:
    """A scale in fp16 before the integers of each group."""
    quantised = in_groups(values, bits, GROUP)
    scales = quantised.scales.reshape(-1, 1).astype(np.float16).view(np.uint8)
    return np.concatenate((scales, pack(quantised.integers.reshape(-1, GROUP))), axis=1)


ENCODERS: Mapping[str, Callable[[Floats], Array]] = {
    "F32": lambda values: values,
    "BF16": _bf16,
    "F16": lambda values: values.astype(np.float16),
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
