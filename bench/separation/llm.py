"""llm: honest ways to decode and cheats. Each way decodes an output, which an fp32 teacher judges.

All ways with unchanged weights are decoded in one batch, so that the weights are read once a token for all ways. Edge
takes 6 GB of memory and, with one feed, 22 minutes on two shared cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.separation import Row, integers, narrower, rounded
from mixmark.harness.contracts.protocols import Array, Weights
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.llm import SHARP_LAYERS, LlamaShape, Llm
from mixmark.suites.llm.network import Llama, LlamaLayer, rotary, rotate
from mixmark.suites.weights import Synthetic


@dataclass(frozen=True)
class Target:
    """A way to decode. into: the precision of the inputs of linear layers. on: the precision of all other values. None
    for fp32."""

    name: str
    declared: str = ""
    """The declared precisions, as in Row; empty for a cheat."""
    into: str | None = None
    on: str | None = None
    skips: tuple[int, ...] = ()
    skips_attention: tuple[int, ...] = ()
    skips_from: int = 0
    """The first position with skipped layers."""
    window: int | None = None
    """The number of tokens that attention sees. None for all."""
    forgets: int = 0
    """The number of tokens at the beginning that later tokens do not attend to."""
    vocabulary: float = 1.0
    """The fraction of the vocabulary that a token is chosen from."""
    note: str = ""


def honest(weight_class: WeightClass) -> list[Target]:
    """Ways with the weights as they are, the right one first."""
    if weight_class == 16:
        return [
            Target("fp32, another batch", "16 bits"),
            Target("bf16", "16 bits", "bf16", "bf16"),
            Target("fp16", "16 bits", "fp16", "fp16"),
        ]
    declared = f"int{weight_class}"
    return [
        Target("fp32, another batch", declared),
        Target("int8 activations by 32", declared, "int8-block", "fp16", note="as llama.cpp"),
        Target("int8 activations by row", declared, "int8", "bf16"),
        Target("int8 activations, one scale a tensor", declared, "int8-tensor", "bf16"),
    ]


def cheats(shape: LlamaShape) -> list[Target]:
    last, diffuse = shape.layers - 1, tuple(range(SHARP_LAYERS, shape.layers))
    quarter = shape.tokens_in + 3 * shape.tokens_out // 4
    return [
        Target("first layer skipped", skips=(0,)),
        Target("middle layer skipped", skips=(shape.layers // 2,)),
        Target("last layer skipped", skips=(last,)),
        Target("last layer skipped, last quarter of the tokens", skips=(last,), skips_from=quarter),
        Target("attention skipped where it is not sharp", skips_attention=diffuse),
        Target("half of the vocabulary looked at", vocabulary=0.5),
        Target("a tenth of the vocabulary looked at", vocabulary=0.1),
        Target("window of half the prompt", window=shape.tokens_in // 2),
        Target("first half of the prompt forgotten", forgets=shape.tokens_in // 2),
    ]


@dataclass
class Batch:
    """One network run in several ways at once; x is [ways, feeds, tokens, width]."""

    network: Llama
    targets: Sequence[Target]

    def decode(self, prompts: Array) -> Array:
        """prompts [feeds, tokens_in] -> outputs [ways, feeds, tokens_out, 1 + width]."""
        shape, feeds = self.network.shape, len(prompts)
        size = (shape.layers, 2, len(self.targets) * feeds, shape.kv_heads, shape.context, shape.head_dim)
        self.cache = torch.zeros(size)
        ids = torch.from_numpy(prompts).expand(len(self.targets), -1, -1)
        output: list[Tensor] = []
        for start in itertools.accumulate([0, shape.tokens_in, *[1] * (shape.tokens_out - 2)]):
            token, hidden = self.next(ids, start)
            ids = token[..., None]
            output.append(torch.cat((ids, hidden), -1))
        return torch.stack(output, -2).numpy()

    def next(self, ids: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """The next tokens, [ways, feeds], and their hidden states, [ways, feeds, width]."""
        model = self.network.model
        places = start + torch.arange(ids.shape[-1])
        rotation = rotary(self.network.shape, places, torch.float32)
        x = self.on(model.embed_tokens(ids))
        for index, layer in enumerate(model.layers):
            assert isinstance(layer, LlamaLayer)
            attention = self.on(self.attention(layer, index, x, places, rotation))
            x = self.on(x + attention * self.kept(index, start, attention=True))
            mlp = self.mlp(layer, x)
            x = self.on(x + mlp * self.kept(index, start))
        head = model.embed_tokens if self.network.shape.tied else self.network.lm_head
        hidden = self.on(model.norm(x[..., -1, :]))
        logits = F.linear(self.into(hidden), head.weight)
        looked_at = [part[:, : int(target.vocabulary * logits.shape[-1])] for target, part in self.each(logits)]
        return torch.stack([part.argmax(-1) for part in looked_at]), hidden

    def attention(
        self, layer: LlamaLayer, index: int, x: Tensor, places: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        shape, part = self.network.shape, layer.self_attn
        targets, feeds, tokens, _ = x.shape
        y = self.into(self.on(layer.input_layernorm(x)))

        def heads(projection: torch.nn.Linear, count: int) -> Tensor:
            return self.on(projection(y)).view(targets * feeds, tokens, count, shape.head_dim)

        q = rotate(heads(part.q_proj, shape.heads), rotation).transpose(1, 2)
        k = rotate(heads(part.k_proj, shape.kv_heads), rotation).transpose(1, 2)
        v = heads(part.v_proj, shape.kv_heads).transpose(1, 2)
        seen = int(places[-1]) + 1
        keys, values = self.cache[index, :, :, :, :seen]
        keys[:, :, places], values[:, :, places] = k, v
        mask = torch.stack([self.sees(target, places, torch.arange(seen)) for target in self.targets])
        mask = mask.repeat_interleave(feeds, 0)[:, None]
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        out = out.transpose(1, 2).reshape(targets, feeds, tokens, -1)
        return F.linear(self.into(self.on(out)), part.o_proj.weight)

    def mlp(self, layer: LlamaLayer, x: Tensor) -> Tensor:
        y = self.into(self.on(layer.post_attention_layernorm(x)))
        gate, up = self.on(layer.mlp.gate_proj(y)), self.on(layer.mlp.up_proj(y))
        return self.on(layer.mlp.down_proj(self.into(self.on(F.silu(gate) * up))))

    def sees(self, target: Target, places: Tensor, context: Tensor) -> Tensor:
        distance = places[:, None] - context
        seen = (distance >= 0) & (distance < (target.window or len(context) + 1))
        return seen & ((context >= target.forgets) | (places[:, None] < target.forgets))

    def kept(self, index: int, start: int, attention: bool = False) -> Tensor:
        """The factor of a branch, [ways, 1, 1, 1]: 0 if it is skipped, else 1."""
        left_out = [
            start >= target.skips_from and (index in target.skips or (attention and index in target.skips_attention))
            for target in self.targets
        ]
        return torch.tensor([float(not out) for out in left_out])[:, None, None, None]

    def into(self, x: Tensor) -> Tensor:
        return torch.stack([rounded(part, target.into) if target.into else part for target, part in self.each(x)])

    def on(self, x: Tensor) -> Tensor:
        return torch.stack([rounded(part, target.on) if target.on else part for target, part in self.each(x)])

    def each(self, x: Tensor) -> Iterator[tuple[Target, Tensor]]:
        return zip(self.targets, x, strict=True)


def matrices(network: nn.Module) -> Iterator[Tensor]:
    """All matrices, the embedding included, in pieces whose copies are small."""
    for tensor in network.state_dict().values():
        if tensor.dim() == 2:
            yield from tensor.split(1 << 14)


def load(network: nn.Module, weights: Weights, change: Callable[[Tensor], Tensor] | None = None) -> None:
    """Loads the weights into the network; `change` is applied to the matrices."""
    for name, tensor in network.state_dict().items():
        weights.read(name, tensor.numpy())
    if change:
        for rows in matrices(network):
            rows.copy_(change(rows))


def guessed(known: Sequence[int], tokens: int) -> list[int]:
    """Predicted tokens: each token is the last successor of its predecessor; a new token is followed by itself."""
    sequence = list(known)
    for _ in range(tokens):
        before = [at for at, token in enumerate(sequence[:-1]) if token == sequence[-1]]
        sequence.append(sequence[before[-1] + 1] if before else sequence[-1])
    return sequence[len(known) :]


def uncomputed(prompts: Array, right: Array) -> Iterator[tuple[str, Array]]:
    """Outputs without the network, for all tokens or for some, with the hidden states of right ones.

    prompts: [feeds, tokens]. right: [feeds, tokens, 1 + width].
    """
    tokens = right.shape[1]
    known = np.concatenate((prompts, right[..., 0].astype(np.int64)), 1)
    for name, count in (("n-grams", tokens), ("n-grams, last quarter of the tokens", tokens // 4)):
        output = right.copy()
        output[:, tokens - count :, 0] = [guessed(row[: len(row) - count].tolist(), count) for row in known]
        yield name, output
    made_up = right.copy()
    made_up[:, tokens // 2, 0] = made_up[:, 0, 0]
    yield "one token made up", made_up
    yield "constant output", np.repeat(right[:, :1], tokens, 1)
    if len(right) > 1:
        yield "the previous feed's output", np.roll(right, 1, 0)


@torch.inference_mode()
def values(
    tier: str,
    weight_class: WeightClass,
    nonces: Sequence[int],
    wanted: Callable[[str], object],
    weights: str | None = None,
) -> Iterator[Row]:
    """The rows of the suite. weights: the path of a checkpoint that replaces the synthetic weights."""
    suite = Llm(tier, {"weights": weights} if weights else {}, weight_class)
    right, drawn = suite.weights(), Llm(tier, {}, weight_class).weights()
    prompts = np.stack([feed["ids"] for feed in map(suite.feeds(1, 0), nonces)])
    (graph,) = suite.reference().graphs().values()
    network = graph.module().to_empty(device="cpu")
    assert isinstance(network, Llama)
    assert isinstance(drawn, Synthetic)

    outputs: list[tuple[Target, Array]] = []
    changed: list[tuple[Target, Callable[[Tensor], Tensor]]] = [
        (Target(name), change) for name, change in narrower(weight_class)
    ]
    eight, four, fp8 = (
        partial(integers, bits=8, group=None),
        partial(integers, bits=4),
        partial(rounded, precision="fp8"),
    )
    if weight_class == 8:
        changed += [
            (Target("int8 weights by row", "int8", note="absmax / 127, not exact"), eight),
            (Target("fp8 weights and activations, one scale a tensor", "fp8", "fp8", "bf16"), fp8),
        ]
    if weights and weight_class == 16:
        changed.append((Target("bf16 weights", "16 bits", "bf16", "bf16"), partial(rounded, precision="bf16")))
    if weights and weight_class == 4:
        changed += [
            (Target("int4 weights", "int4", note="a scale per 32"), four),
            (Target("int4 weights, int8 activations", "int4", "int8", "bf16"), four),
        ]
    for target, change in ((target, change) for target, change in changed if wanted(target.name)):
        load(network, right, change)
        outputs.append((target, Batch(network, [target]).decode(prompts)[0]))
    wrong = Target("wrong weights")
    if wanted(wrong.name):
        load(network, replace(drawn, seed=1))
        outputs.append((wrong, Batch(network, [wrong]).decode(prompts)[0]))
    load(network, right)
    first, *others = [
        *honest(weight_class),
        *cheats(suite.shape),
    ]  # the first is right, and what is not computed is made of right outputs
    everything = [first, *(target for target in others if wanted(target.name))]
    if weights:
        everything = [replace(target, note="") for target in everything]  # the notes describe weights that are exact
    decoded = Batch(network, everything).decode(prompts)
    outputs += zip(everything, decoded, strict=True)
    outputs += [(Target(name), output) for name, output in uncomputed(prompts, decoded[0]) if wanted(name)]

    caches = [[int(size) for size in spec.shape] for spec in graph.state.values()]
    for target, of_feeds in outputs:
        judged = []
        for prompt, output in zip(prompts, of_feeds, strict=True):
            ids = torch.from_numpy(np.concatenate((prompt, suite.parts(output)[0][:-1])))
            logits, hidden = network(ids, *(torch.zeros(size) for size in caches))
            judged.append(suite.quality(output, torch.cat((hidden, logits), 1).numpy()))
        yield Row(target.name, target.declared, tuple(judged), target.note)
