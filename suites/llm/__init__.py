"""Greedy decoding at batch 1 with a static cache: the shapes of Llama 3.

The prompt is random tokens, the answer always as long as the tier says: there is no end token. What a token is judged
by are the logits that an fp32 network has behind the same tokens, so an answer that took the other side of a near tie
is not judged by what it would have been without.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.contracts import Array, Feed, Graph, Session, Spec, Suite, Value, Weights
from harness.errors import Unsupported, WrongAnswer
from harness.schema import BITS_PER_WEIGHT, Cost, Gate, LatencyLimits, UnitNames, weight_class
from suites import exported
from suites.answers import checked
from suites.latency import MS, SECOND, mlperf, ours
from suites.weights import Draw, Fill, checkpoint, drawn

if TYPE_CHECKING:
    from torch import nn

HOME = Path(__file__).parent


@dataclass(frozen=True)
class Shape:
    """A tier: the network, and how many tokens go in and come out."""

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
    embedding: float = 4.0  # see gains
    rope_theta: float = 500_000.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_original_context: int = 8192
    epsilon: float = 1e-5

    @property
    def context(self) -> int:
        return self.tokens_in + self.tokens_out


SHAPES = {
    "smoke": Shape(4, 256, 8, 2, 768, 4096, True, 8.0, 32, 128, head_dim=32, embedding=1.0),
    "edge": Shape(16, 2048, 32, 8, 8192, 128_256, True, 32.0, 128, 128, head_dim=64),  # Llama-3.2-1B
    "server": Shape(32, 4096, 32, 8, 14_336, 128_256, False, 8.0, 1024, 256, head_dim=128),  # Llama-3.1-8B
}

POOL = 16  # prompts made ahead
SHARP_LAYERS = 2


def gains(layers: int, embedding: float, name: str, shape: tuple[int, ...]) -> Fill:
    """Untrained, yet its answers cannot be guessed without computing them, rounding hardly changes them, and each layer
    is missed where it is left out.

    An error that a layer makes is amplified by those behind it, for a SwiGLU and an attention multiply what comes in
    with itself. So the stream is held by what has no error, the embedding, as large as the branches together, and the
    branches are small beside it. A head that is tied to so large an embedding would echo its input: the last norm's
    weights, whose signs differ and sum to zero, part the two.

    Attention must be sharp somewhere: where it averages over the whole context, the last token alone decides, and an
    answer falls into a cycle. Sharp everywhere, a deep network is chaotic. So the first two layers are sharp, where
    there is no error yet to amplify; the scores of the others are so small that what they average stays the smaller
    branch. A small gate is almost linear, which keeps the tail of what goes into the down projection short: a scale of
    int8 is not wasted on it. The last quarter of the layers counts double, since nothing amplifies what they leave out.
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


METRIC = "worst mean regret of 32 tokens in a row, in standard deviations of the logits"
RUN = 32  # tokens; a layer left out for some, or a token made up, does not hide behind those that were computed
AT_MOST = {16: 0.015, 8: 0.07, 4: 0.07}
"""Of the metric, by the class of the declared weights: docs/separation/llm.md. The server tier's are unmeasured."""
TRAINED = {16: 0.5, 8: 0.5, 4: 0.5}
"""Of a checkpoint: unmeasured on a public one. Four bits are not exact for it, which costs more than rounding here."""

_EDGE = ours(first_ns=10 * SECOND, per_unit_ns=SECOND)
LATENCY = {"smoke": _EDGE, "edge": _EDGE, "server": mlperf(first_ns=2 * SECOND, per_unit_ns=100 * MS)}
"""Limits of the server scenario; MLPerf's are those of llama3.1-8b, TTFT 2 s and TPOT 100 ms."""


class Llm:
    """A Llama-style decoder: greedy, batch 1, static KV cache.

    Feed: ids [tokens] int64. One yield a token: [1] int64, always as many as the tier says.
    """

    name = "llm"
    version = "1"
    unit = "token"
    unit_names = UnitNames(short="tok", first="Time to first token (TTFT)", each="Time per token (TPOT)")
    scenarios: Sequence[str] = ("single-stream", "server")

    def __init__(self, tier: str, options: Mapping[str, str]) -> None:
        if tier not in SHAPES:
            raise Unsupported(f"llm has no tier {tier!r}", f"it has {', '.join(SHAPES)}")
        self.tier = tier
        self.latency: LatencyLimits | None = LATENCY[tier]
        self.shape = SHAPES[tier]
        self.options = options

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

    def weights(self) -> Weights:
        specs = exported.specs(HOME, self.tier, self.graphs)
        if path := self.options.get("weights"):
            return checkpoint(path, specs)
        return drawn(self.name, specs, partial(gains, self.shape.layers, self.shape.embedding))

    def graphs(self) -> Mapping[str, Graph]:
        shape = self.shape
        inputs = {"ids": Spec(("tokens",), "int64"), "position": Spec((1,), "int64")}
        cache = Spec((shape.kv_heads, shape.context, shape.head_dim))
        state = {f"{side}.{layer}": cache for layer in range(shape.layers) for side in "kv"}
        outputs = {"next": Spec((1,), "int64"), "next_position": Spec((1,), "int64")}
        return {"step": exported.graph(HOME, self.tier, "step", inputs, state, outputs, self._step)}

    def _step(self) -> nn.Module:
        import torch

        from suites.llm.network import Step

        with torch.device("meta"):
            return Step(self.shape).eval()

    def feeds(self, batch: int, seed: int) -> Iterator[Feed]:
        """Prompts of random tokens. The nonce is added to the first two, on which all that follows depends: so a
        cache of prefixes gains nothing, and no prompt comes again within vocabulary² feeds."""
        if batch != 1:
            raise Unsupported("llm decodes one sequence at a time", "ask for batch 1")
        size = self.shape.vocabulary
        key = int.from_bytes(hashlib.sha256(f"{self.name}/feeds/{seed}".encode()).digest()[:16], "little")
        pool = np.random.Generator(np.random.Philox(key)).integers(size, size=(POOL, self.shape.tokens_in))
        for issue in itertools.count():
            ids = pool[issue % POOL].copy()
            ids[:2] = (ids[:2] + np.array((issue % size, issue // size))) % size
            yield {"ids": ids}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """One token a yield; token and position stay on the device from step to step."""
        state = session.state("step")
        ids, position = session.put(feed["ids"]), session.put(np.zeros(1, np.int64))
        for _ in range(self.shape.tokens_out):
            ids, position = session.run("step", ids, position, state=state)
            yield session.get(ids)

    def units(self, batch: int) -> int:
        return self.shape.tokens_out * batch

    def gate(self, precision: str) -> Gate | None:
        at_most = TRAINED if "weights" in self.options else AT_MOST
        return Gate(metric=METRIC, at_most=at_most[weight_class(precision)])

    def reference(self) -> Suite:
        return Teacher(self.tier, self.options)

    def quality(self, answer: Array, reference: Array) -> float:
        """answer: [tokens_out] int64. reference: [tokens_out, vocabulary], of a Teacher.

        A token's regret is how far its logit lies below the best one. That grows with the square of the error of the
        logits, since a token must be both near the top and overtaken: the mean of many tells rounding from work left
        out better than any count of tokens that differ.
        """
        tokens = self._tokens(answer)
        best, chosen = reference.max(1), reference[np.arange(len(tokens)), tokens]
        regret = (best - chosen) / reference.std(1)
        return float(regret.reshape(-1, RUN).mean(1, dtype=np.float64).max())

    def _tokens(self, answer: Array) -> Array:
        """The answer, where it is tokens of this vocabulary, as many as the tier asks for; else WrongAnswer."""
        tokens = checked(answer, (self.shape.tokens_out,), "int64")
        if strange := int(((tokens < 0) | (tokens >= self.shape.vocabulary)).sum()):
            raise WrongAnswer(f"{strange} of {len(tokens)} tokens are not in the vocabulary of {self.shape.vocabulary}")
        return tokens

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """Prefill, then decode with the mean length of context.

        FLOPs: linear layers, and attention over the tokens that are seen; not norms, rotary positions, softmax and
        other element-wise work. Least FLOPs: of the last layer a prefill needs keys and values of all tokens, the rest
        of the last one only. Bytes: all weights once, the rows of the embedding, and the cache as it is written
        and read. Of an untied model's embedding only those rows count. 4-bit scales are not counted.
        """
        shape = self.shape
        bits = BITS_PER_WEIGHT[precision]
        activation_bytes = 4 if precision == "fp32" else 2
        projections = shape.width * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
        layer = projections + 3 * shape.width * shape.hidden
        last = layer - shape.width * shape.head_dim * 2 * shape.kv_heads  # what the last layer does for one token
        head = shape.vocabulary * shape.width
        norms = shape.width * (2 * shape.layers + 1)
        entry = 2 * shape.layers * shape.kv_heads * shape.head_dim * activation_bytes  # a token's place in the cache

        def cost(name: str, tokens: int, context: float, seen: float, yields: int) -> Cost:
            """tokens go in, context is then in the cache, seen is the sum over tokens of what each attends to."""
            linear = 2.0 * (tokens * shape.layers * layer + head)
            pair = 4.0 * shape.heads * shape.head_dim  # of a token that goes in and one that it sees, in one layer
            flops = linear + pair * shape.layers * seen
            matrices_bytes = (shape.layers * layer + head) * bits / 8
            rows_bytes = (norms + tokens * shape.width) * bits / 8
            return Cost(
                name=name,
                flops=flops,
                bytes=matrices_bytes + rows_bytes + entry * (tokens + context) + 8 * (tokens + 1),
                yields=yields,
                least_flops=flops - 2.0 * (tokens - 1) * last - pair * (seen - context),
                streamed_bytes=matrices_bytes,
            )

        into, out = shape.tokens_in, shape.tokens_out
        mean = into + out / 2  # of into + 1 to into + out - 1
        return (cost("prefill", into, into, into * (into + 1) / 2, 1), cost("decode", 1, mean, mean, out - 1))


class Teacher(Llm):
    """What the audit runs: the prompt and an answer at once, one yield, the logits that chose each of its tokens.

    Its graph is for torch only, and its weights are those of the suite.
    """

    def graphs(self) -> Mapping[str, Graph]:
        step = super().graphs()["step"]
        outputs = {"logits": Spec((self.shape.tokens_out, self.shape.vocabulary))}
        return {"teach": Graph({"ids": step.inputs["ids"]}, step.state, outputs, self._taught, _not_exported)}

    def _taught(self) -> nn.Module:
        import torch

        from suites.llm.network import Taught

        with torch.device("meta"):
            return Taught(self.shape).eval()

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """feed: with the `answer`. Raises WrongAnswer where that is not one."""
        ids = np.concatenate((feed["ids"], self._tokens(feed["answer"])[:-1]))
        (logits,) = session.run("teach", session.put(ids), state=session.state("teach"))
        yield session.get(logits)


def _not_exported() -> bytes:
    raise Unsupported("the llm's reference has no ONNX graph", "it runs by the torch adapter")
