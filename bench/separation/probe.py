"""The probe: kernels that round, and kernels that leave work out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.separation import Row, integers, narrower, rounded
from mixmark.harness.adapters.torch import Torch, TorchSession
from mixmark.harness.contracts.protocols import Array, Feed, Use
from mixmark.harness.contracts.schema import Device, WeightClass
from mixmark.suites.probe import Probe

SEED = 1
Change = Callable[[Tensor], Tensor]


def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    suite = Probe(tier, {"bits": str(weight_class)}, weight_class)
    given = list(map(suite.feeds(1, SEED), (nonces[-1] + 1, *nonces)))
    session = TorchSession(suite, torch.device("cpu"), torch.float32, torch.get_num_threads(), {})
    matrices = {name: tensor for module in session._modules.values() for name, tensor in module.named_parameters()}
    whole = {name: tensor.data for name, tensor in matrices.items()}

    def outputs(asked: list[Feed] = given[1:]) -> list[Array]:
        return [np.concatenate(list(suite.infer(session, feed))) for feed in asked]

    right = outputs()

    def row(name: str, found: Callable[[], list[Array]], declared: str = "", note: str = "") -> Iterator[Row]:
        if wanted(name):
            yield Row(name, declared, tuple(map(suite.quality, found(), right)), note)

    def changed(change: Change, part: str = "") -> list[Array]:
        for module in session._modules.values():
            for name, tensor in module.named_parameters():
                tensor.data = change(whole[name]) if part in name else whole[name]
        found = outputs()
        for module in session._modules.values():
            for name, tensor in module.named_parameters():
                tensor.data = whole[name]
        return found

    def half(matrix: Tensor) -> Tensor:
        return matrix * (torch.arange(matrix.shape[1]) < matrix.shape[1] // 2)

    cpu: Device = next(each for each in Torch({}).discover() if each.id == "cpu:0")
    if weight_class == 16 and "bf16" in cpu.precisions:
        with Torch({}).open(cpu, suite, "bf16", Use.of("probe")) as runner:
            yield from row("torch, bf16", lambda: [np.concatenate(list(runner(feed))) for feed in given[1:]], "16 bits")
    if weight_class == 8:
        eight = partial(integers, bits=8, group=None)
        yield from row("int8 weights by row", partial(changed, eight), "int8", "absmax / 127, not exact")
        yield from row("fp8 weights", partial(changed, partial(rounded, precision="fp8")), "fp8", "absmax / 448")
    if weight_class == 4:
        yield from row("int4 weights by 32", partial(changed, partial(integers, bits=4)), "int4")
    for name, change in narrower(weight_class):
        yield from row(name, partial(changed, change))
    for part, said in (("matrix", "half of each streamed matrix"), ("square", "half of each square")):
        if not any(part in name for name in whole):
            continue
        yield from row(said, partial(changed, half, part))
    yield from row("the previous feed's output", partial(outputs, given[:-1]))

    def means() -> list[Array]:
        return [np.mean([*right[:at], *right[at + 1 :]], 0) for at in range(len(right))]

    yield from row("the mean of all other outputs", means)
    yield from row("zeros", lambda: [np.zeros_like(output) for output in right])
