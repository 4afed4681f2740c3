"""Decoding by a state-space model: greedy, at batch 1, with a state of fixed size, in the shapes of Mamba-2.

It is llm with another network: the same prompts of random tokens, the same loop without an end token, and the same
comparison by teacher forcing. So the two tell how far a machine depends on one architecture. Their numbers of weights
are those of the public models, 9 % apart; the fraction of the roofline counts each suite's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.protocols import Array, Feed, Graph, Session, Spec, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames
from mixmark.suites import llm
from mixmark.suites.limits import MS, SECOND, own_limits
from mixmark.suites.tiered import Decoder
from mixmark.suites.weights import Draw, Fill

CHUNK = 256  # the most tokens of a prefill that are computed at once, as in the public models


@dataclass(frozen=True)
class Mamba2Shape:
    """A tier: the sizes of the network, and the numbers of tokens of a prompt and of an output."""

    layers: int
    width: int
    heads: int
    groups: int
    state: int
    vocabulary: int
    tied: bool
    tokens_in: int
    tokens_out: int
    embedding: float = 8.0  # gain of the embedding, see `fill`
    head_dim: int = 64
    kernel: int = 4
    epsilon: float = 1e-5

    @property
    def inner(self) -> int:
        """The width of the state spaces: of their inputs, their outputs and the gate."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """The channels of the convolution: the inputs of the state spaces, and B and C of each group."""
        return self.inner + 2 * self.groups * self.state


SHAPES = {
    "smoke": Mamba2Shape(4, 256, 8, 2, 64, 4096, True, 32, 32, embedding=1.0),
    "edge": Mamba2Shape(48, 2048, 64, 1, 128, 50_288, True, 32, 32),  # mamba2-1.3b
    "server": Mamba2Shape(64, 4096, 128, 8, 128, 32_768, False, 1024, 256),  # Mamba-Codestral-7B-v0.1
}
"""A token costs the same at every position, so 32 tokens at edge measure what llm's 128 do in a quarter of the time."""

AT_MOST = {
    "smoke": {"16 bits": 0.017, "fp8": 0.175, "int8": 0.088, "int4": 0.088},
    "edge": {"16 bits": 0.0097, "fp8": 0.086, "int8": 0.08, "int4": 0.08},
    "server": {"16 bits": 0.02, "fp8": 0.175, "int8": 0.16, "int4": 0.16},
}
"""Gates by the tier and the precision, from docs/capabilities/ssm.md. The server tier's gates are unmeasured."""

LATENCY = {**llm.LATENCY, "server": own_limits(first_ns=2 * SECOND, per_unit_ns=100 * MS)}
"""Limits of the server scenario: llm's values, so that both may be compared. MLPerf has no limits for such a model."""


class Ssm(Decoder):
    """A Mamba-2 decoder: greedy, batch 1, state of fixed size.

    Feed: ids [tokens] int64. One yield for each token, a row of `Decoder`; the tier fixes the number of tokens.
    """

    name = "ssm"
    version = "5"
    unit = "token"
    unit_names = UnitNames(
        short="tok", work="SSM tokens", first_unit="Time to first token (TTFT)", per_unit="Time per token (TPOT)"
    )
    scenarios: Sequence[str] = ("single-stream", "server")
    shapes, gates, latencies = SHAPES, AT_MOST, LATENCY
    metric, window = llm.METRIC, llm.RUN
    shape: Mamba2Shape

    @property
    def config(self) -> Mapping[str, Value]:
        """As in transformers' Mamba2Config."""
        shape = self.shape
        return {
            "model_type": "mamba2",
            "hidden_act": "silu",
            "use_bias": False,
            "use_conv_bias": True,
            "residual_in_fp32": True,
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.width,
            "expand": shape.inner // shape.width,
            "num_heads": shape.heads,
            "head_dim": shape.head_dim,
            "n_groups": shape.groups,
            "state_size": shape.state,
            "conv_kernel": shape.kernel,
            "chunk_size": CHUNK,
            "vocab_size": shape.vocabulary,
            "tie_word_embeddings": shape.tied,
            "layer_norm_epsilon": shape.epsilon,
            "generation_config.do_sample": False,
            "generation_config.min_new_tokens": shape.tokens_out,
            "generation_config.max_new_tokens": shape.tokens_out,
        }

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """The gain of each tensor of the untrained network, for the properties that llm's gains have.

        As in llm the embedding, which has no rounding error, is no small part of the residual stream; the weights of
        the last norm have both signs; and the output projections of the last quarter of the layers have twice the gain.
        The small gain of the input projection keeps the gates almost linear. The logarithms of A spread over seven
        units, and the biases of dt make the steps short: so a head remembers for less than a token to hundreds of
        tokens.
        """
        layers = self.shape.layers
        *_, part, kind = name.split(".")
        if part in ("norm_f", "lm_head"):
            return Draw()
        if part == "norm" or kind == "D":
            return 1.0
        if kind == "dt_bias":
            return -2.0
        if kind == "A_log":
            return Draw(2.0)
        if part == "embeddings":
            return Draw(self.shape.embedding * math.sqrt(size[1]))
        if part == "out_proj":
            return Draw(1.0 if int(name.split(".")[2]) < layers - layers // 4 else 2.0)
        return Draw(2.0 if (part, kind) == ("conv1d", "weight") else 0.5)

    def graphs(self) -> Mapping[str, Graph]:
        shape = self.shape
        window = Spec((shape.kernel - 1, shape.channels))
        space = Spec((shape.groups, shape.heads // shape.groups, shape.head_dim, shape.state))
        state: dict[str, Spec] = {}
        for layer in range(shape.layers):
            state |= {f"window.{layer}": window, f"state.{layer}": space}
        outputs = {"next": Spec((1,), "int64"), "hidden": Spec((1, shape.width))}
        return {"step": self.graph("step", {"ids": Spec(("tokens",), "int64")}, state, outputs)}

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        return {"ids": random.integers(self.shape.vocabulary, size=self.shape.tokens_in)}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """Yields one token at a time. The token stays on the device between steps."""
        state = session.state("step")
        for begin in range(0, self.shape.tokens_in, CHUNK):
            token, hidden = session.run("step", session.put(feed["ids"][begin : begin + CHUNK]), state=state)
        yield self.yielded(session, token, hidden)
        for _ in range(self.shape.tokens_out - 1):
            token, hidden = session.run("step", token, state=state)
            yield self.yielded(session, token, hidden)

    def units(self, batch: int) -> int:
        return self.shape.tokens_out * batch

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The costs of prefill and of decode; a decoded token costs the same at every position.

        FLOPs: linear layers and the state spaces' products, within a chunk and with the state; norms, convolutions,
        decays and other element-wise operations are not counted. Least FLOPs: the last layer of a prefill brings all
        tokens into its state, but computes everything else for the last token only; and an algorithm may need no other
        product of the state spaces than those that bring the tokens into the state. Bytes: all weights once, the
        looked-up rows of the embedding, and the state as it is read and written. If the output head is not tied, the
        rest of the embedding is not read. Scales of 4-bit weights are not counted.
        """
        shape = self.shape
        bits = BITS_PER_WEIGHT[precision]
        activation_bytes = 4 if precision == "fp32" else 2
        shared = shape.groups * shape.state  # values of B, and of C
        layer = shape.width * (2 * shape.inner + shape.channels + shape.heads)
        last = shape.width * (2 * shape.inner + shared)  # of the gate, C and the output
        head = shape.vocabulary * shape.width
        vectors = shape.channels * (shape.kernel + 1) + 3 * shape.heads + shape.inner + shape.width
        into_state = 2.0 * shape.inner * shape.state  # FLOPs of a token in one layer, and as many out of the state
        held = shape.layers * (shape.inner * shape.state + (shape.kernel - 1) * shape.channels)

        def cost(name: str, tokens: int, yields: int) -> Cost:
            """tokens: entering."""
            linear = 2.0 * (tokens * shape.layers * layer + head)
            within = 2.0 * (shared + shape.inner) * min(tokens, CHUNK)  # of a token with the tokens of its chunk
            matrices_bytes = (shape.layers * layer + head) * bits / 8
            rows_bytes = (shape.layers * vectors + shape.width * (tokens + 1)) * bits / 8
            return Cost(
                name=name,
                flops=linear + tokens * shape.layers * (2 * into_state + within),
                bytes=matrices_bytes + rows_bytes + 2 * held * activation_bytes + 8 * (tokens + 1),
                yields=yields,
                min_flops=linear - 2.0 * (tokens - 1) * last + tokens * shape.layers * into_state,
                streamed_bytes=matrices_bytes,
            )

        return (cost("prefill", shape.tokens_in, 1), cost("decode", 1, shape.tokens_out - 1))
