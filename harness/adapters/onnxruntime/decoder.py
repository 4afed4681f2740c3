"""Builds a Llama decoder of few, large operators, for suites whose `config` describes a Llama.

The exported graph has 70 nodes a layer, and each node costs some microseconds a token; this graph has 10. Both graphs
have the same inputs, outputs and state, but here the state has the batch as an additional first axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.adapters.onnxruntime.files import GROUP, OURS, Files
from mixmark.harness.adapters.rope import frequencies
from mixmark.harness.contracts.protocols import Graph, Value
from mixmark.harness.contracts.weights import read_weight

if TYPE_CHECKING:
    from onnx import ModelProto

EMBEDDING = "model.embed_tokens.weight"


def describes_llama(config: Mapping[str, Value]) -> bool:
    """Whether `decoder` can build the network."""
    return (
        config.get("model_type") == "llama"
        and config.get("rope_scaling.rope_type") == "llama3"
        and not config["attention_bias"]
        and not config["mlp_bias"]
    )


def decoder(config: Mapping[str, Any], graph: Graph, files: Files) -> ModelProto:
    """The model of `graph`; its large initialisers are in `files`."""
    from onnx import TensorProto, helper

    build = _Builder(config, files)
    build.network()
    integers, floats = TensorProto.INT64, helper.np_dtype_to_tensor_dtype(np.dtype(files.dtype))
    cache = [1, config["num_key_value_heads"], config["max_position_embeddings"], config["head_dim"]]
    value = helper.make_tensor_value_info
    model = helper.make_graph(
        build.nodes,
        "step",
        [value("ids", integers, ["tokens"]), value("position", integers, [1])]
        + [value(name, floats, cache) for name in graph.state],
        [value("next", integers, [1]), value("next_position", integers, [1])]
        + [value("hidden", floats, [1, config["hidden_size"]])]
        + [value(f"{name}.out", floats, cache) for name in graph.state],
        build.constants,
    )
    return helper.make_model(model, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


class _Builder:
    """Nodes and small initialisers in the order of their creation."""

    def __init__(self, config: Mapping[str, Any], files: Files) -> None:
        self.config, self.files = config, files
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def network(self) -> None:
        config = self.config
        width, layers = config["hidden_size"], config["num_hidden_layers"]
        heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        self._positions()
        x, branch = self._embedded(), ""
        for index in range(layers):
            name = f"model.layers.{index}."
            h, x = self._norm(f"{name}input_layernorm.weight", x, branch)
            projections = [f"{name}self_attn.{part}_proj.weight" for part in "qkv"]
            qkv = self._linear(h, f"{name}qkv", projections, (heads + 2 * kv) * dim, width)
            cache = [f"k.{index}", f"v.{index}"]
            self._node(
                "GroupQueryAttention",
                [qkv, "", "", *cache, "before", "length", "cosines", "sines"],
                [f"{name}attention", *(f"{side}.out" for side in cache)],
                OURS,
                num_heads=heads,
                kv_num_heads=kv,
                do_rotary=1,
                scale=1 / math.sqrt(dim),
            )
            attention = f"{name}attention"
            if index == layers - 1:  # after the last attention, only the last token is needed
                attention, x = self._last(attention), self._last(x)
            branch = self._linear(attention, f"{name}o", [f"{name}self_attn.o_proj.weight"], width, heads * dim)
            h, x = self._norm(f"{name}post_attention_layernorm.weight", x, branch)
            branch = self._mlp(h, f"{name}mlp.")
        h, _ = self._norm("model.norm.weight", x, branch)
        row = self._node("Reshape", [h, self._constant("row.shape", np.array([1, -1]))], ["hidden"])
        shape = (config["vocab_size"], width)
        if config["tie_word_embeddings"] and self.files.bits >= 16:  # the rows of the table are the head's outputs
            self._node("Gemm", [row, EMBEDDING], ["logits"], transB=1)
        elif config["tie_word_embeddings"]:
            self.nodes.append(self.files.linear(h, EMBEDDING, shape, "logits"))
        else:
            self._linear(h, "lm_head", ["lm_head.weight"], *shape, output="logits")
        self._node("ArgMax", ["logits"], ["best"], axis=-1, keepdims=0)
        self._node("Reshape", ["best", self._constant("one", np.array([1]))], ["next"])

    def _positions(self) -> None:
        """Adds the sequence's length with this step's tokens (`length`) and without the last of them (`before`)."""
        from onnx import TensorProto

        self._node("Shape", ["ids"], ["tokens"])
        self._node("Add", ["position", "tokens"], ["next_position"])
        self._node("Cast", ["next_position"], ["lengths"], to=TensorProto.INT32)
        self._node("Squeeze", ["lengths"], ["length"])
        self._node("Sub", ["lengths", self._constant("one.int32", np.array([1], np.int32))], ["before"])
        frequency = np.multiply(*frequencies(self.config)).astype(np.float32)
        angles = np.arange(self.config["max_position_embeddings"], dtype=np.float32)[:, None] * frequency
        self._constant("cosines", np.cos(angles))
        self._constant("sines", np.sin(angles))

    def _embedded(self) -> str:
        """The rows of the embedding: [1, tokens, width]."""
        if self.files.bits >= 16:
            self.files.add(EMBEDDING, read_weight(self.files.weights, EMBEDDING))
            self._node("Unsqueeze", ["ids", self._constant("zero", np.array([0]))], ["sequence"])
            return self._node("Gather", [EMBEDDING, "sequence"], ["x"])
        self.files.matrix(EMBEDDING, read_weight(self.files.weights, EMBEDDING))
        table = [f"{EMBEDDING}.integers", self._constant("table.shape", np.array([self.config["vocab_size"], -1]))]
        self._node("Unsqueeze", ["ids", self._constant("zero", np.array([0]))], ["sequence"])
        self._node("Reshape", table, ["table"])
        layout = {"bits": self.files.bits, "block_size": GROUP, "gather_axis": 0, "quantize_axis": 1}
        return self._node("GatherBlockQuantized", ["table", "sequence", f"{EMBEDDING}.scales"], ["x"], OURS, **layout)

    def _norm(self, name: str, x: str, branch: str) -> tuple[str, str]:
        """The RMS norm of x + branch, and the sum. branch: empty if there is none."""
        weight, epsilon = self._constant(name, read_weight(self.files.weights, name)), self.config["rms_norm_eps"]
        if not branch:
            return self._node("SimplifiedLayerNormalization", [x, weight], [f"{name}.out"], epsilon=epsilon), x
        outputs = [f"{name}.out", "", "", f"{name}.sum"]
        self._node("SkipSimplifiedLayerNormalization", [x, branch, weight], outputs, OURS, epsilon=epsilon)
        return outputs[0], outputs[3]

    def _mlp(self, x: str, name: str) -> str:
        width, hidden = self.config["hidden_size"], self.config["intermediate_size"]
        weights = [f"{name}{part}_proj.weight" for part in ("gate", "up")]
        both = self._linear(x, f"{name}gate_up", weights, 2 * hidden, width)
        self._node("Split", [both], [f"{name}gate", f"{name}up"], axis=-1, num_outputs=2)
        gate = self._node("QuickGelu", [f"{name}gate"], [f"{name}silu"], OURS, alpha=1.0)
        product = self._node("Mul", [gate, f"{name}up"], [f"{name}product"])
        return self._linear(product, f"{name}down", [f"{name}down_proj.weight"], width, hidden)

    def _last(self, x: str) -> str:
        """The last token of [1, tokens, width]."""
        ends = {"from": [-1], "to": [2**31], "axis": [1]}
        inputs = [self._constant(f"last.{end}", np.array(value)) for end, value in ends.items()]
        return self._node("Slice", [x, *inputs], [f"{x}.last"])

    def _linear(self, x: str, name: str, weights: list[str], rows: int, columns: int, output: str = "") -> str:
        self.files.matrix(name, *(read_weight(self.files.weights, weight) for weight in weights))
        self.nodes.append(self.files.linear(x, name, (rows, columns), output or f"{name}.out"))
        return output or f"{name}.out"

    def _node(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, outputs[0], domain=domain, **attributes))
        return outputs[0]

    def _constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        if name not in {constant.name for constant in self.constants}:
            value = value.astype(self.files.dtype) if value.dtype == np.float32 else value
            self.constants.append(numpy_helper.from_array(value, name))
        return name
