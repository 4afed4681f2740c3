"""LLM decoding: greedy, at batch 1, with a static KV cache, in the shapes of Llama 3.

The prompt consists of random tokens. The output always has the tier's length: there is no end token. Each token is
compared with what the fp32 reference computes after the same preceding tokens (teacher forcing). So an output is not
penalised for all tokens after a different choice between two nearly equal tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.protocols import Array, Feed, Graph, Session, Spec, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames, WeightClass
from mixmark.suites.limits import MS, SECOND, mlperf_limits, own_limits, tier_limits
from mixmark.suites.tiered import Decoder
from mixmark.suites.weights import Draw, Fill


@dataclass(frozen=True)
class LlamaShape:
    """A tier: the sizes of the network, and the numbers of tokens of a prompt and of an output."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    tied: bool
    rope_factor: float
    tokens_in: int
    tokens_out: int
    head_dim: int
    embedding: float = 4.0  # gain of the embedding, see `gains`
    rope_theta: float = 500_000.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_original_context: int = 8192
    epsilon: float = 1e-5
    biases: bool = False  # of q, k and v, as Qwen2 has
    head_norms: bool = False  # of each head of q and k, as Qwen3 has

    @property
    def context(self) -> int:
        return self.tokens_in + self.tokens_out


SHAPES = {
    "smoke": LlamaShape(4, 256, 8, 2, 768, 4096, True, 8.0, 32, 128, head_dim=32, embedding=1.0),
    "edge": LlamaShape(16, 2048, 32, 8, 8192, 128_256, True, 32.0, 128, 128, head_dim=64),  # Llama-3.2-1B
    "server": LlamaShape(32, 4096, 32, 8, 14_336, 128_256, False, 8.0, 1024, 256, head_dim=128),  # Llama-3.1-8B
}

SHARP_LAYERS = 2


def gains(layers: int, embedding: float, name: str, shape: tuple[int, ...]) -> Fill:
    """The gain of each tensor of the untrained network.

    The gains give the network three properties: its outputs cannot be predicted without computing them, rounding hardly
    changes the outputs, and leaving out any layer changes them measurably.

    Later layers amplify the errors of earlier layers, because SwiGLU and attention multiply their input with itself. So
    the embedding, which has no rounding error, dominates the residual stream: it is as large as all branches together,
    and each branch is small beside it. An output head that is tied to so large an embedding would echo its input; the
    weights of the last norm, which have both signs and sum to zero, decorrelate the two.

    Attention must be sharp in some layers: if all average over the whole context, the last token alone decides, and the
    output falls into a cycle. With sharp attention in all layers a deep network is chaotic. So attention is sharp in
    the first two layers, before there is an error to amplify. In the other layers the scores are so small that
    attention averages, and its branch is smaller than the MLP's branch. The gain of the gate projection is small: a
    small gate is almost linear, which keeps the distribution of the down projection's input short-tailed, so that an
    int8 scale is not spent on outliers. The down projections of the last quarter of the layers have twice the gain,
    since no later layer amplifies the effect of a missing projection.
    """
    if name == "model.norm.weight":
        return Draw()
    if name.endswith("norm.weight"):
        return 1.0
    if name == "model.embed_tokens.weight":
        return Draw(embedding * math.sqrt(shape[1]))
    if name == "lm_head.weight":
        return Draw()
    layer, projection = int(name.split(".")[2]), name.split(".")[-2]
    if projection == "q_proj":
        return Draw(3.0 if layer < SHARP_LAYERS else 0.5)
    if projection == "gate_proj":
        return Draw(0.25)
    if projection == "down_proj":
        return Draw(4.0 if layer < layers - layers // 4 else 8.0)
    return Draw()


METRIC = "relative error of the hidden states, or twice the worst mean regret of 32 tokens in a row, if that is larger"
RUN = 32
WEIGHTS = {"smoke": "4M", "edge": "1.2B", "server": "8B"}  # for people

AT_MOST: Mapping[str, Mapping[str, float]] = {
    "smoke": {"16 bits": 0.0153, "fp8": 0.21, "int8": 0.06, "int4": 0.06},
    "edge": {"16 bits": 0.0184, "fp8": 0.21, "int8": 0.11, "int4": 0.11},
    "server": {"16 bits": 0.04, "fp8": 0.3, "int8": 0.2, "int4": 0.2},
}
"""Gates by the tier and the declared precision, from docs/separation.md. The server tier's gates are unmeasured."""
STEP = {"next": Spec((1,), "int64"), "next_position": Spec((1,), "int64")}
"""Outputs of a step, but for the hidden state."""

LATENCY = tier_limits(
    own_limits(first_ns=10 * SECOND, per_unit_ns=SECOND), mlperf_limits(first_ns=2 * SECOND, per_unit_ns=100 * MS)
)
"""Limits of the server scenario; the server tier has MLPerf's limits for llama3.1-8b, TTFT 2 s and TPOT 100 ms."""


class Llm(Decoder):
    """A Llama-style decoder: greedy, batch 1, static KV cache.

    Feed: ids [tokens] int64. One yield for each token, a row of `Decoder`; the tier fixes the number of tokens.
    """

    name = "llm"
    version = "3"
    unit = "token"
    unit_names = UnitNames(
        short="tok", work="LLM tokens", first_unit="Time to first token (TTFT)", per_unit="Time per token (TPOT)"
    )
    scenarios: Sequence[str] = ("single-stream", "server")
    shapes, gates, latencies = SHAPES, AT_MOST, LATENCY
    metric, window = METRIC, RUN
    shape: LlamaShape

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        super().__init__(tier, options, weight_class)
        work = f"{self.unit_names.work} of a {WEIGHTS[tier]} model"
        self.unit_names = self.unit_names.model_copy(update={"taken_in": self.shape.tokens_in, "work": work})

    @property
    def config(self) -> Mapping[str, Value]:
        """As in LlamaConfig; max_position_embeddings is the longest sequence of the tier."""
        shape = self.shape
        return {
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.width,
            "intermediate_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "vocab_size": shape.vocabulary,
            "tie_word_embeddings": shape.tied,
            "rms_norm_eps": shape.epsilon,
            "max_position_embeddings": shape.context,
            "rope_theta": shape.rope_theta,
            "rope_scaling.rope_type": "llama3",
            "rope_scaling.factor": shape.rope_factor,
            "rope_scaling.low_freq_factor": shape.rope_low,
            "rope_scaling.high_freq_factor": shape.rope_high,
            "rope_scaling.original_max_position_embeddings": shape.rope_original_context,
            "generation_config.do_sample": False,
            "generation_config.min_new_tokens": shape.tokens_out,
            "generation_config.max_new_tokens": shape.tokens_out,
        }

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        return gains(self.shape.layers, self.shape.embedding, name, size)

    def graphs(self) -> Mapping[str, Graph]:
        shape = self.shape
        inputs = {"ids": Spec(("tokens",), "int64"), "position": Spec((1,), "int64")}
        cache = Spec((shape.kv_heads, shape.context, shape.head_dim))
        state = {f"{side}.{layer}": cache for layer in range(shape.layers) for side in "kv"}
        return {"step": self.graph("step", inputs, state, STEP | {"hidden": Spec((1, shape.width))})}

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        """A prompt of random tokens, `ids` [tokens_in] int64."""
        return {"ids": random.integers(self.shape.vocabulary, size=self.shape.tokens_in)}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """Yields one token at a time. Token and position stay on the device between steps."""
        state = session.state("step")
        ids, position = session.put(feed["ids"]), session.put(np.zeros(1, np.int64))
        for _ in range(self.shape.tokens_out):
            ids, position, hidden = session.run("step", ids, position, state=state)
            yield self.yielded(session, ids, hidden)

    def units(self, batch: int) -> int:
        return self.shape.tokens_out * batch

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The costs of prefill and of decode, decode at the mean length of the context.

        FLOPs: linear layers and causal attention; norms, rotary positions, softmax and other element-wise operations
        are not counted. Least FLOPs: the last layer of a prefill computes the keys and values of all tokens, but
        everything else for the last token only. Bytes: all weights once, the looked-up rows of the embedding, and the
        KV cache as it is written and read. If the output head is not tied, the rest of the embedding is not read.
        Scales of 4-bit weights are not counted.
        """
        shape = self.shape
        bits = BITS_PER_WEIGHT[precision]
        activation_bytes = 4 if precision == "fp32" else 2
        projections = shape.width * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
        layer = projections + 3 * shape.width * shape.hidden
        last = layer - shape.width * shape.head_dim * 2 * shape.kv_heads  # without the projections to keys and values
        head = shape.vocabulary * shape.width
        norms = shape.width * (2 * shape.layers + 1)
        entry = 2 * shape.layers * shape.kv_heads * shape.head_dim * activation_bytes  # of a token in the KV cache

        def cost(name: str, tokens: int, context: float, seen: float, yields: int) -> Cost:
            """tokens: entering. context: in the KV cache afterwards. seen: (query, key) pairs of causal attention."""
            linear = 2.0 * (tokens * shape.layers * layer + head)
            pair = 4.0 * shape.heads * shape.head_dim  # FLOPs of one (query, key) pair in one layer
            flops = linear + pair * shape.layers * seen
            matrices_bytes = (shape.layers * layer + head) * bits / 8
            rows_bytes = (norms + tokens * shape.width) * bits / 8
            return Cost(
                name=name,
                flops=flops,
                bytes=matrices_bytes + rows_bytes + entry * (tokens + context) + 8 * (tokens + 1),
                yields=yields,
                min_flops=flops - 2.0 * (tokens - 1) * last - pair * (seen - context),
                streamed_bytes=matrices_bytes,
            )

        into, out = shape.tokens_in, shape.tokens_out
        mean = into + out / 2  # mean of the context lengths into + 1 to into + out - 1
        return (cost("prefill", into, into, into * (into + 1) / 2, 1), cost("decode", 1, mean, mean, out - 1))
