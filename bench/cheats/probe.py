"""The probe: kernels that round, and kernels that leave work out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.separation import Row, integers, rounded
from harness.adapters.torch import Torch, _Session
from harness.contracts import Array, Feed, Use
from harness.schema import Device
from suites.probe import Probe

SEED = 1
Change = Callable[[Tensor], Tensor]


def values(tier: str, feeds: int) -> Iterator[Row]:
    suite = Probe(tier, {})
    given = list(map(suite.feeds(1, SEED), range(feeds + 1)))
    session = _Session(suite, torch.device("cpu"), torch.float32, {})
    matrices = {name: tensor for module in session._modules.values() for name, tensor in module.named_parameters()}
    whole = {name: tensor.data for name, tensor in matrices.items()}

    def answers(asked: list[Feed] = given[1:]) -> list[Array]:
        return [np.concatenate(list(suite.infer(session, feed))) for feed in asked]

    right = answers()

    def row(name: str, found: list[Array], honest: bool = False, note: str = "") -> Row:
        return Row(name, honest, tuple(map(suite.quality, found, right)), note)

    def changed(change: Change, part: str = "") -> list[Array]:
        for module in session._modules.values():
            for name, tensor in module.named_parameters():
                tensor.data = change(whole[name]) if part in name else whole[name]
        found = answers()
        for module in session._modules.values():
            for name, tensor in module.named_parameters():
                tensor.data = whole[name]
        return found

    def half(matrix: Tensor) -> Tensor:
        return matrix * (torch.arange(matrix.shape[1]) < matrix.shape[1] // 2)

    cpu: Device = next(each for each in Torch({}).discover() if each.id == "cpu:0")
    if "bf16" in cpu.precisions:
        with Torch({}).open(cpu, suite, "bf16", Use.of("probe")) as runner:
            yield row("torch, bf16", [np.concatenate(list(runner(feed))) for feed in given[1:]], True)
    yield row("fp16 weights", changed(partial(rounded, precision="fp16")), True)
    yield row("int8 weights", changed(partial(integers, bits=8)), True, "a scale per 32; not for declared 16 bits")
    yield row("fp8 weights", changed(partial(rounded, precision="fp8")), True, "absmax / 448; not for declared 16 bits")
    yield row("int4 weights", changed(partial(integers, bits=4)), True, "a scale per 32; not for declared 16 or 8 bits")
    yield row("int4 weights under 16 declared bits", changed(partial(integers, bits=4)))
    yield row("int3 weights", changed(partial(integers, bits=3)))
    for part, said in (("matrix", "half of each streamed matrix"), ("square", "half of each square")):
        yield row(said, changed(half, part))
    previous = answers(given[:-1])
    yield row("the previous feed's answer", previous)
    yield row("the mean of all other answers", [np.mean([*right[:at], *right[at + 1 :]], 0) for at in range(feeds)])
    yield row("zeros", [np.zeros_like(answer) for answer in right])
