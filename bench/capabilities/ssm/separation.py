"""ssm: honest ways to decode and cheats. Each way decodes an output, which an fp32 teacher judges, as in llm.

Edge takes 12 GB of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from bench.separation import Row, activations, integers, narrower, rounded
from bench.separation.llm import load, uncomputed
from bench.separation.networks import cast, patched
from mixmark.harness.capabilities.ssm import Mamba2Shape, Ssm
from mixmark.harness.capabilities.ssm.network import Mamba2, Mamba2Layer, Mamba2Mixer
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.weights import Synthetic

Change = Callable[[Mamba2], AbstractContextManager[object]]


@dataclass(frozen=True)
class Way:
    """A way to decode."""

    name: str
    declared: str = ""
    """As in Row."""
    change: Change = nullcontext
    """What changes the network."""
    late: bool = False
    """Whether it is changed for the last quarter of the tokens only."""
    read: float = 1.0
    """The part of the prompt that is read, from its end."""
    note: str = ""


def parts(network: Mamba2, kind: type[nn.Module]) -> list[nn.Module]:
    """One of each layer, in their order."""
    return [module for module in network.modules() if isinstance(module, kind)]


def skipped(layer: int) -> Change:
    return lambda network: patched(parts(network, Mamba2Layer)[layer : layer + 1], "forward", lambda own, x, *held: x)


def forgotten(held: int, first: int = 0) -> Change:
    """The layers from `first` on begin each step with zeros instead of what they held: 0 the window, 1 the state."""

    def call(own: Callable[..., Tensor], x: Tensor, *window_and_state: Tensor) -> Tensor:
        window_and_state[held].zero_()
        return own(x, *window_and_state)

    return lambda network: patched(parts(network, Mamba2Layer)[first:], "forward", call)


def half_state(network: Mamba2) -> AbstractContextManager[None]:
    """No output depends on half of the numbers of each state: C is zero there."""

    def call(own: Callable[..., Tensor], x: Tensor, b: Tensor, c: Tensor, *rest: Tensor) -> Tensor:
        half = torch.arange(c.shape[-1]) < c.shape[-1] // 2
        return own(x, b, c * half, *rest)

    return patched(parts(network, Mamba2Mixer), "scanned", call)


def small_vocabulary(fraction: float) -> Change:
    def call(own: Callable[..., Tensor], hidden: Tensor) -> Tensor:
        logits = own(hidden)
        return logits[:, : int(fraction * logits.shape[-1])]

    return lambda network: patched([network], "logits", call)


@contextmanager
def rounding(network: Mamba2, precision: str) -> Iterator[None]:
    """The inputs of all linear layers are rounded, those of the head included."""
    with activations(network, precision), patched([network], "logits", lambda own, x: own(rounded(x, precision))):
        yield


def ways(weight_class: WeightClass, shape: Mamba2Shape) -> Iterator[Way]:
    """Ways with the weights as they are, the right one first."""
    declared = "16 bits" if weight_class == 16 else f"int{weight_class}"
    yield Way("fp32, step by step", declared)
    if weight_class == 16:
        yield Way("bf16", declared, partial(cast, dtype=torch.bfloat16), note="torch's own")
        yield Way("fp16", declared, partial(cast, dtype=torch.float16), note="torch's own")
    else:
        for precision, how in (("int8-block", "by 32"), ("int8", "by row"), ("int8-tensor", "one scale a tensor")):
            yield Way(f"int8 activations, {how}", declared, partial(rounding, precision=precision))
    last = shape.layers - 1
    yield Way("first layer skipped", change=skipped(0))
    yield Way("middle layer skipped", change=skipped(shape.layers // 2))
    yield Way("last layer skipped", change=skipped(last))
    yield Way("last layer skipped, last quarter of the tokens", change=skipped(last), late=True)
    yield Way("windows forgotten", change=forgotten(0))
    yield Way("states forgotten", change=forgotten(1))
    yield Way("states of the last quarter of the layers forgotten", change=forgotten(1, shape.layers * 3 // 4))
    yield Way("half of each state left out", change=half_state)
    yield Way("first half of the prompt not read", read=0.5)
    yield Way("half of the vocabulary looked at", change=small_vocabulary(0.5))
    yield Way("a tenth of the vocabulary looked at", change=small_vocabulary(0.1))


def held(network: Mamba2, suite: Ssm) -> list[Tensor]:
    """Windows and states before the first token."""
    dtype = network.backbone.norm_f.weight.dtype
    specs = suite.graphs()["step"].state.values()
    return [torch.zeros([int(size) for size in spec.shape], dtype=dtype) for spec in specs]


def decoded(network: Mamba2, suite: Ssm, prompts: Array, way: Way) -> Array:
    """prompts [feeds, tokens_in] -> outputs [feeds, tokens_out, 1 + width]."""
    shape, outputs = suite.shape, []
    for prompt in prompts:
        ids, rows = torch.from_numpy(prompt[-int(way.read * shape.tokens_in) :]), []
        state: list[Tensor] = []
        with ExitStack() as stack:
            for number in range(shape.tokens_out):
                if number == (3 * shape.tokens_out // 4 if way.late else 0):
                    stack.enter_context(way.change(network))
                state = state or held(network, suite)
                hidden = network.backbone(ids, *state)
                ids = network.logits(hidden).argmax(-1)
                rows.append(torch.cat((ids[:, None], hidden.float()), 1))
        outputs.append(torch.cat(rows).numpy())
    return np.stack(outputs)


@torch.inference_mode()
def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    suite = Ssm(tier, {}, weight_class)
    weights = suite.weights()
    assert isinstance(weights, Synthetic)
    prompts = np.stack([feed["ids"] for feed in map(suite.feeds(1, 0), nonces)])
    (graph,) = suite.reference().graphs().values()
    network = graph.module().to_empty(device="cpu")
    assert isinstance(network, Mamba2)

    load(network, weights)
    right, *others = ways(weight_class, suite.shape)
    outputs = [(right, decoded(network, suite, prompts, right))]
    outputs += [(way, decoded(network, suite, prompts, way)) for way in others if wanted(way.name)]
    outputs += [(Way(name), output) for name, output in uncomputed(prompts, outputs[0][1]) if wanted(name)]
    changed = [(Way(name), change) for name, change in narrower(weight_class)]
    if weight_class == 8:
        fp8 = Way("fp8 weights and activations, one scale a tensor", "fp8", partial(rounding, precision="fp8"))
        changed += [
            (Way("int8 weights by row", "int8", note="absmax / 127, not exact"), partial(integers, bits=8, group=None)),
            (fp8, partial(rounded, precision="fp8")),
        ]
    for way, change in [(way, change) for way, change in changed if wanted(way.name)]:
        load(network, weights, change)
        outputs.append((way, decoded(network, suite, prompts, way)))
    wrong = Way("wrong weights")
    if wanted(wrong.name):
        load(network, replace(weights, seed=1))
        outputs.append((wrong, decoded(network, suite, prompts, wrong)))

    load(network, weights)
    for way, of_feeds in outputs:
        judged = []
        for prompt, output in zip(prompts, of_feeds, strict=True):
            ids = torch.from_numpy(np.concatenate((prompt, suite.parts(output)[0][:-1])))
            logits, hidden = network(ids, *held(network, suite))
            judged.append(suite.quality(output, torch.cat((hidden, logits), 1).numpy()))
        yield Row(way.name, way.declared, tuple(judged), way.note)
