"""Training: one step of a Llama-shaped decoder, with the forward pass, the loss, the backward pass and AdamW.

Every step starts from one published state, so feeds are independent: the synthetic weights, moments of zero for the
gradient, and one constant for each kind of tensor for the squared gradient. The weights are exact in 16 bits, so the
fp32 master weights are the drawn values; the session's precision is that of the forward and backward pass.

With moments of zero for the squared gradient, AdamW's first step would be the sign of the gradient, which hides its
magnitude. The constants make the step linear in the gradient, and about as large as the weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Feed, Graph, Session, Spec, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames
from mixmark.suites.limits import check_output
from mixmark.suites.llm import LlamaShape, Llm, gains
from mixmark.suites.tiered import Tiered
from mixmark.suites.weights import Draw, Fill

SHAPES = {
    "smoke": LlamaShape(3, 128, 4, 2, 384, 1024, True, 1.0, 32, 0, head_dim=32, rope_theta=10_000.0),
    "edge": LlamaShape(30, 576, 9, 3, 1536, 49_152, True, 1.0, 64, 0, head_dim=64, rope_theta=10_000.0),  # SmolLM-135M
    "server": LlamaShape(16, 2048, 32, 8, 8192, 128_256, True, 32.0, 1024, 0, head_dim=64),  # Llama-3.2-1B
}
"""The network of each tier. tokens_in is the number of trained tokens of a sequence; nothing is decoded."""
SEQUENCES = 4
"""The sequences of a step."""

ADAMW: Mapping[str, float] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
"""The rate is high, so that the change of a weight is not lost in the rounding of the weight to fp32."""
STEP = 10_000
"""The steps before the published state: so many that the moments need no correction."""
SPREADS = {
    "embed_tokens": 0.004,
    "q_proj": 2.8,
    "k_proj": 4.0,
    "v_proj": 6.0,
    "o_proj": 4.0,
    "gate_proj": 10.0,
    "up_proj": 2.0,
    "down_proj": 0.48,
    "input_layernorm": 0.6,
    "post_attention_layernorm": 0.6,
    "norm": 175.0,
    "lm_head": 0.004,
}
"""The published moment of the squared gradient of each kind of tensor, as its root.

At smoke and edge they make the gradient's part of a step about twice the weight decay. It is 8 to 20 times in the last
norm and the gate projections, where a larger moment would hide the squared gradient below its rounding in fp32.
"""
SHARPNESS = 4.0
"""The standard deviation of the logits, within 10 %. The softmax then has its mass in a few tokens, and only the
product with the table says which. The gradients of a flat softmax would follow from the moments of the drawn table."""
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
"""The tensors with a row for each token of the vocabulary."""

PROBES, FOLDS = 8, 8
"""Each probe projects a change of a tensor to 8 sums, each of every eighth column. A few values could all be near zero
by chance; 64 estimate the error of the change to a fifth."""
CHANGES = 3
"""The changes of a tensor: of the weight, of the moment of the gradient, of the moment of the squared gradient."""
AT_MOST = {"smoke": {"16 bits": 0.00044}, "edge": {"16 bits": 0.0023}, "server": {"16 bits": 0.01}}
"""Gates by the tier, from docs/capabilities/train.md. The server tier's gate is unmeasured."""


class Train(Tiered):
    """A training step of a Llama-style decoder: forward, loss, backward, AdamW.

    Feed: ids [sequences, tokens + 1] int64, whose every token but the first is also a target, and key [2, probes,
    longest axis] float32 of ±1. One yield: [sequences · tokens, 1 + columns] float32. The first column is the loss of
    each token. The other columns hold, filled up with zeros, for each tensor its three changes, each projected on the
    probes: (value after the step − its value before, decayed) between two vectors of the key. Every FOLDS-th column is
    summed alone, and a vector is a row. A table's changes are projected twice: the rows of the tokens in ids, then all
    others, whose gradients come from the softmax alone.
    """

    name = "train"
    version = "2"
    unit = "token"
    unit_names = UnitNames(short="tok", work="tokens trained")
    scenarios: Sequence[str] = ("single-stream",)
    shapes, gates, classes = SHAPES, AT_MOST, (16,)
    fp32, trained = 1e-7, 0.05
    metric = "mean relative squared error of the tensors' changes, or a tenth of the worst change's or loss's"
    shape: LlamaShape

    @property
    def config(self) -> Mapping[str, Value]:
        """The network as in LlamaConfig, prefixed with `model.`; AdamW's arguments and the roots of the published
        moments of the squared gradient, prefixed with `optimizer.`."""
        llama = Llm(self.tier, {})
        llama.shape = self.shape
        numbers = {name: value for name, value in llama.config.items() if not name.startswith("generation_config")}
        optimizer = {**ADAMW, "step": STEP, **{f"root_exp_avg_sq.{kind}": root for kind, root in SPREADS.items()}}
        return {
            "sequences": SEQUENCES,
            "tokens": self.shape.tokens_in,
            **{f"model.{name}": value for name, value in numbers.items()},
            **{f"optimizer.{name}": value for name, value in optimizer.items()},
        }

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """The gain of each tensor: llm's, but for the last norm, whose gain sets the deviation of the logits.

        A softmax of llm's logits would be 1 for one token and 0 for all others, so the gradient would hang on ties. The
        norm's weights have one magnitude, because the gradients of the rows of each layer's output are in proportion
        to them: a row with a small weight could be left out.
        """
        shape = self.shape
        if name == "model.norm.weight":
            mantissa, exponent = math.frexp(SHARPNESS / (shape.embedding * math.sqrt(shape.width)))
            return Draw(math.ldexp(round(2**8 * mantissa), exponent - 8), signs_only=True)  # exact in 16 bits
        return gains(shape.layers, shape.embedding, name, size)

    def specs(self) -> Mapping[str, Spec]:
        return {name: Spec(size) for name, size in sizes(self.shape).items()}

    def graphs(self) -> Mapping[str, Graph]:
        inputs = {
            "ids": Spec((SEQUENCES, self.shape.tokens_in + 1), "int64"),
            "key": Spec((2, PROBES, longest(self.shape))),
        }
        outputs = {"losses": Spec((self.units(1),)), "changes": Spec((changes(self.shape), PROBES * FOLDS))}
        return {"step": Graph(inputs, {}, outputs, self.module("step"), _not_exported)}

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        """Sequences of random tokens and a key of random signs."""
        size = 2, PROBES, longest(self.shape)
        ids = random.integers(self.shape.vocabulary, size=(SEQUENCES, self.shape.tokens_in + 1))
        bits = np.unpackbits(np.frombuffer(random.bytes(-(-math.prod(size) // 8)), np.uint8), count=math.prod(size))
        return {"ids": ids, "key": (2 * bits.astype(np.float32) - 1).reshape(size)}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        losses, changes = map(session.get, session.run("step", session.put(feed["ids"]), session.put(feed["key"])))
        filled = np.pad(changes.ravel(), (0, -changes.size % len(losses)))
        yield np.concatenate((losses[:, None], filled.reshape(len(losses), -1)), axis=1)

    def units(self, batch: int) -> int:
        return SEQUENCES * self.shape.tokens_in * batch

    def quality(self, output: Array, reference: Array) -> float:
        """The mean error of all changes, or a tenth of the worst error of a change or a loss, whichever is larger.

        Errors are relative, so that no tensor's error is drowned by a larger tensor. Of a loss: its squared error over
        the variance of the losses. Of a change: the sum of the squared errors of its projections, over the sum of the
        squared projections. It estimates the unexplained variance of the change, and is 1 for a change that was left
        out. The mean is nearly the same for every feed, and in proportion to what the engine's arithmetic adds.
        """
        output = check_output(output, reference.shape).astype(np.float64)
        losses = np.square(output[:, 0] - reference[:, 0]) / reference[:, 0].var(dtype=np.float64)
        count = changes(self.shape)
        found, right = (
            part[:, 1:].ravel()[: count * PROBES * FOLDS].reshape(count, -1) for part in (output, reference)
        )
        squares = np.square(right, dtype=np.float64).sum(1)
        errors = np.square(found - right).sum(1) / np.maximum(squares, np.finfo(np.float64).tiny)
        return float(max(errors.mean(), errors.max() / 10, losses.max() / 10))

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The cost of a step.

        FLOPs: linear layers and causal attention, three times since the backward pass takes two products for each
        product of the forward pass; and the projections of the changes. Norms, the softmax and AdamW are not counted.
        min_flops: without the two products of the output head's backward pass, since the tokens with a softmax below
        the rounding of 16 bits may be left out, as Cut Cross-Entropy does (Wijmans et al., 2024).
        Bytes: the weights of the linear layers, once in each pass, and the output head's in the forward pass. An engine
        may update a weight while its gradient is in a register, and no output shows that the new state was written.
        """
        shape, tokens = self.shape, self.units(1)
        weight_bytes = BITS_PER_WEIGHT[precision] / 8
        all_sizes = sizes(shape)
        projected = sum(blocks(name) * math.prod(size) for name, size in all_sizes.items())
        head = shape.vocabulary * shape.width
        linear = sum(math.prod(size) for size in all_sizes.values() if len(size) == 2)
        linear -= 0 if shape.tied else head  # the embedding is then only looked up
        pairs = SEQUENCES * shape.tokens_in * (shape.tokens_in + 1) / 2
        attention = 4.0 * shape.heads * shape.head_dim * shape.layers * pairs
        flops = 3 * (2.0 * tokens * linear + attention) + 2.0 * CHANGES * PROBES * projected
        streamed = weight_bytes * (2 * linear - head)
        least = flops - 4.0 * tokens * head
        return (Cost(name="step", flops=flops, min_flops=least, bytes=streamed, streamed_bytes=streamed),)


def sizes(shape: LlamaShape) -> Mapping[str, tuple[int, ...]]:
    """The shape of each tensor by its public name."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    of_a_layer = {
        "input_layernorm": (shape.width,),
        "self_attn.q_proj": (queries, shape.width),
        "self_attn.k_proj": (keys, shape.width),
        "self_attn.v_proj": (keys, shape.width),
        "self_attn.o_proj": (shape.width, queries),
        "post_attention_layernorm": (shape.width,),
        "mlp.gate_proj": (shape.hidden, shape.width),
        "mlp.up_proj": (shape.hidden, shape.width),
        "mlp.down_proj": (shape.width, shape.hidden),
    }
    table = shape.vocabulary, shape.width
    return {
        "model.embed_tokens.weight": table,
        **{f"model.layers.{at}.{name}.weight": size for at in range(shape.layers) for name, size in of_a_layer.items()},
        "model.norm.weight": (shape.width,),
        **({} if shape.tied else {"lm_head.weight": table}),
    }


def blocks(name: str) -> int:
    """The number of blocks of rows of a tensor, each projected separately."""
    return 2 if name in TABLES else 1


def changes(shape: LlamaShape) -> int:
    """The number of changes of all blocks."""
    return CHANGES * sum(map(blocks, sizes(shape)))


def longest(shape: LlamaShape) -> int:
    """The length of the longest axis of all tensors."""
    return max(max(size) for size in sizes(shape).values())


def spread(name: str) -> float:
    """The root of the published moment of the squared gradient of a tensor."""
    return SPREADS[name.split(".")[-2]]


def _not_exported() -> bytes:
    raise Unsupported("train has no ONNX graph, since ONNX has no backward pass", "run it with the adapter torch")
