"""The two parts of the suite llm, which may run on two devices: its prefill, and its decoding after a prefill.

The prefill computes the keys and values of all tokens of a prompt but the last. Decoding begins with the last token of
the prompt, and so yields the first token of the output. What lies between them is the KV cache: the keys, with their
rotary positions, and the values, [tokens, layers, 2, kv_heads, head_dim] float32 in every precision.

Both have llm's weights. Alone, decoding continues a drawn KV cache; in a pipeline it continues what a prefill computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Session, Spec, Suite, Tensor, Value, Weights
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, LatencyLimits, UnitNames, WeightClass
from mixmark.suites import llm
from mixmark.suites.limits import FP32, check_output, unexplained_variance
from mixmark.suites.weights import generator


class Part(llm.Llm):
    """What the parts share. Both have weights of class 16 only, and no server scenario."""

    version = "1"
    scenarios: Sequence[str] = ("single-stream",)
    classes: Sequence[WeightClass] = (16,)
    latencies: Mapping[str, LatencyLimits] = {}

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        super().__init__(tier, options, weight_class)
        self.shape = replace(self.shape, tokens_in=self.shape.tokens_in - 1)

    @property
    def config(self) -> Mapping[str, Value]:
        """As llm's, but for the type: an engine that implements Llama has no such part."""
        return {**super().config, "model_type": self.name}

    @property
    def cache(self) -> tuple[int, ...]:
        """The shape of a prompt's KV cache."""
        shape = self.shape
        return (shape.tokens_in, shape.layers, 2, shape.kv_heads, shape.head_dim)

    def weights(self) -> Weights:
        return llm.Llm(self.tier, self.options, self.weight_class).weights()


class Prefill(Part):
    """The prefill of a Llama-style decoder at batch 1.

    Feed: ids [tokens] int64, a prompt without its last token. One yield: the KV cache.
    """

    name = "llm-prefill"
    unit = "prompt token"
    unit_names = UnitNames(
        short="tok", work="prompt tokens", first_unit="Time to the KV cache", per_unit="Time per prompt token"
    )
    metric = "worst unexplained variance of a token's keys or values in a layer"
    gates: Mapping[str, Mapping[str, float]] = {tier: {"16 bits": 0.001} for tier in llm.SHAPES}
    fp32, trained = FP32, 0.01

    def graphs(self) -> Mapping[str, Graph]:
        inputs, outputs = {"ids": Spec(("tokens",), "int64")}, {"cache": Spec(("tokens", *self.cache[1:]))}
        return {"prefill": self.graph("prefill", inputs, {}, outputs)}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        (cache,) = session.run("prefill", session.put(feed["ids"]))
        yield session.get(cache)

    def units(self, batch: int) -> int:
        return self.shape.tokens_in * batch

    def reference(self) -> Suite:
        return self

    def quality(self, output: Array, reference: Array) -> float:
        """The largest part of the reference's sum of squares that the output does not explain, of all tokens, layers
        and sides. output, reference: KV caches."""
        rows = check_output(output, self.cache).reshape(-1, self.shape.kv_heads * self.shape.head_dim)
        return float(unexplained_variance(rows, reference.reshape(rows.shape), 0.0).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """FLOPs: linear layers and causal attention, of the last layer only its keys and values. Bytes: these weights
        once, the looked-up rows of the embedding, and the keys and values as they are written and read once."""
        shape = self.shape
        tokens, whole = shape.tokens_in, shape.layers - 1
        keys = 2 * shape.width * shape.head_dim * shape.kv_heads
        layer = keys + 2 * shape.width * shape.head_dim * shape.heads + 3 * shape.width * shape.hidden
        matrices = whole * layer + keys
        pairs = tokens * (tokens + 1) / 2  # (query, key) pairs of causal attention
        flops = 2.0 * tokens * matrices + 4.0 * shape.heads * shape.head_dim * whole * pairs
        bits, cached = BITS_PER_WEIGHT[precision], 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens
        rows = (2 * whole + 1 + tokens) * shape.width
        moved = 2 * cached * (4 if precision == "fp32" else 2) + 8 * tokens
        streamed = matrices * bits / 8
        bytes_ = streamed + rows * bits / 8 + moved
        return (Cost(name="prefill", flops=flops, bytes=bytes_, yields=1, min_flops=flops, streamed_bytes=streamed),)


class Decode(Part):
    """The decoding of a Llama-style decoder after a prefill: greedy, batch 1, static KV cache.

    Feed: ids [1] int64, the prompt's last token, and the cache of the tokens before it. One yield for each token, as
    llm's; the tier fixes the number of tokens.
    """

    name = "llm-decode"
    version = "2"
    unit_names = llm.Llm.unit_names.model_copy(update={"work": "LLM tokens after a prefill"})
    continues = Prefill.name
    gates: Mapping[str, Mapping[str, float]] = {
        "smoke": {"16 bits": 0.0139},
        "edge": {"16 bits": 0.0173},
        "server": {"16 bits": 0.04},
    }

    def graphs(self) -> Mapping[str, Graph]:
        inputs = {
            "ids": Spec(("tokens",), "int64"),
            "position": Spec((1,), "int64"),
            "cache": Spec(("rows", *self.cache[1:])),
        }
        step = super().graphs()["step"]
        return {"resume": self.graph("resume", inputs, step.state, step.outputs)}

    def feeds(self, batch: int, seed: int) -> Feeds:
        """The last token of a prompt, drawn anew for each feed, and a cache from a pool, with signs of its own.
        Keys and values are normal, as a projection of normed states by drawn weights nearly is.

        Raises Unsupported for a batch other than 1.
        """
        if batch != 1:
            raise Unsupported(f"{self.name} decodes one sequence at a time", "ask for batch 1")
        pool = generator(self.name, seed).standard_normal(self.cache, dtype=np.float32)

        def feed(nonce: int) -> Feed:
            random = generator(self.name, seed, nonce)
            ids = random.integers(self.shape.vocabulary, size=1)
            signs = random.integers(2, size=(*self.cache[:-1], 1), dtype=np.int8) * np.float32(2) - np.float32(1)
            return {"ids": ids, "cache": pool * signs}

        return feed

    def given(self, output: Array) -> Feed:
        """What a prefill's output replaces in a feed. Raises WrongOutput if it is no KV cache of the tier."""
        return {"cache": check_output(output, self.cache)}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """Yields one token at a time. Each step writes rows of the given cache into the state: the first step all of
        them, each later one the first row once more, since a graph has all of its inputs in every call."""
        state = session.state("resume")
        ids, position = session.put(feed["ids"]), session.put(np.array([self.shape.tokens_in]))
        cache, row = session.put(feed["cache"]), session.put(feed["cache"][:1])
        for _ in range(self.shape.tokens_out):
            ids, position, hidden = session.run("resume", ids, position, cache, state=state)
            yield self.yielded(session, ids, hidden)
            cache = row

    def encoded(self, session: Session, feed: Feed) -> Sequence[Tensor]:
        return (session.put(feed["cache"]),)

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """As of an llm's decode that begins with its prompt's last token."""
        whole = llm.Llm(self.tier, self.options, self.weight_class)
        whole.shape = replace(self.shape, tokens_out=self.shape.tokens_out + 1)
        return (whole.costs(precision, batch)[1],)
