"""How far the hidden states of a suite of tokens are from those in fp32, by engine: on the CPU, or on a GPU in minutes.

    python -m bench.separation.states llm|ssm|speech|llm-decode TIER [--bits 16] [--feeds 4] [--device cuda]

Each engine reads the tokens that fp32 decoded (teacher forcing), but for `bf16, step by step`, which decodes its own.
The figure is the relative error of `Decoder.quality`. `bf16 else` says what computes the rest; rows of rounded weights
without it compute the rest in fp32, and so are the hardest to tell. Linear layers and convolutions take rounded inputs;
the output head is left as it is, since it comes after the hidden state.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bench.separation import Row, integers, rounded
from bench.separation.__main__ import heading, table
from mixmark.harness.adapters.torch.counted import EagerSession
from mixmark.harness.contracts.protocols import Weights
from mixmark.harness.plugins import registry

Change = Callable[[Tensor], Tensor]


class Kept:
    """Weights that are drawn once."""

    def __init__(self, weights: Weights) -> None:
        self.names, self.spec = weights.names, weights.spec
        self._weights = weights
        self._held: dict[str, npt.NDArray[np.float32]] = {}

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        if name not in self._held:
            self._held[name] = np.empty_like(into)
            self._weights.read(name, self._held[name])
        into[...] = self._held[name]


def rounded_inputs(change: Change, _: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return change(given[0].float()).to(given[0].dtype), *given[1:]


class Engine(EagerSession):
    """The suite's graphs in eager torch.

    weights: changes each matrix whose name has `part`. inputs: changes what enters each linear layer. skipped: a layer.
    """

    def __init__(
        self,
        suite: Any,
        device: torch.device,
        dtype: torch.dtype,
        weights: Change | None = None,
        inputs: Change | None = None,
        skipped: int | None = None,
        part: str = "",
    ) -> None:
        super().__init__(suite, device, dtype, torch.get_num_threads(), {})
        self.suite = suite
        seen = set()
        for module in self._modules.values():
            for name, tensor in module.state_dict().items():
                if weights and tensor.dim() > 1 and re.search(part, name) and tensor.data_ptr() not in seen:
                    seen.add(tensor.data_ptr())
                    tensor.copy_(weights(tensor.float()))
            if inputs:
                changed = partial(rounded_inputs, inputs)
                for layer in module.modules():
                    if isinstance(layer, nn.Linear | nn.Conv1d):
                        layer.register_forward_pre_hook(changed)
            if skipped is not None:
                *_, layers = (each for each in module.modules() if isinstance(each, nn.ModuleList))
                layers[skipped].forward = lambda x, *rest: x

    def __call__(self, feed: Any) -> Any:
        return np.concatenate([np.asarray(each) for each in self.suite.infer(self, feed)])


def engines(bits: int, layers: int) -> Iterator[tuple[str, str, torch.dtype, dict[str, Any]]]:
    """Name, as a Row declares it, type of activations, and what else is changed."""
    wide, half = torch.float32, torch.bfloat16
    own = {16: "16 bits", 8: "int8", 4: "int4"}[bits]
    yield "bf16", own, half, {}
    yield "fp16", own, torch.float16, {}
    if bits < 16:
        for how in ("int8-block", "int8", "int8-tensor", "uint8-tensor"):
            yield f"{how} activations, bf16 else", own, half, {"inputs": partial(rounded, precision=how)}
        by_row, fp8 = partial(integers, bits=8, group=None), partial(rounded, precision="fp8")
        both = {"weights": by_row, "inputs": partial(rounded, precision="int8")}
        yield "int8 weights by row and activations, bf16 else", own, half, both
    if bits == 8:
        yield "fp8 weights and activations, bf16 else", "fp8", half, {"weights": fp8, "inputs": fp8}
    if bits == 16:
        for group, said in ((None, "by row"), (32, "by 32"), (16, "by 16")):
            yield f"int8 weights {said}", "", wide, {"weights": partial(integers, bits=8, group=group)}
        by_32 = partial(integers, bits=8)
        yield "int8 weights by 32, bf16 else", "", half, {"weights": by_32}
        for step, said in ((2, "half"), (4, "a quarter")):
            part = rf"layers\.({'|'.join(map(str, range(0, layers, step)))})\."
            yield f"int8 weights by 32 in {said} of the layers", "", wide, {"weights": by_32, "part": part}
            yield f"int8 weights by 32 in {said} of the layers, bf16 else", "", half, {"weights": by_32, "part": part}
    for fewer in {16: (7, 6, 5, 4), 8: (6, 5, 4), 4: (3, 2)}[bits]:
        yield f"int{fewer} weights by 32", "", wide, {"weights": partial(integers, bits=fewer)}
    for skipped in dict.fromkeys((0, layers // 2, layers - 2, layers - 1)):
        yield f"layer {skipped} of {layers} skipped", "", wide, {"skipped": skipped}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("tier", choices=("smoke", "edge"))
    parser.add_argument("--bits", type=int, choices=(16, 8, 4), default=16)
    parser.add_argument("--feeds", type=int, default=4)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    asked = parser.parse_args()
    source = registry.BUILT_IN["suites"][asked.suite]
    suite: Any = registry.build_suite(asked.suite, source, asked.tier, {}, asked.bits)
    kept_weights = Kept(suite.weights())
    suite.weights = lambda: kept_weights
    made = suite.feeds(1, 7)
    feeds = [made(number) for number in range(asked.feeds)]

    def hidden(engine: Engine, feed: Any) -> Any:
        rows = engine(feed)
        return rows[:, : suite.shape.width].astype(np.float64)

    def row(name: str, declared: str, engine: Engine, given: Any, right: Any) -> Row:
        pairs = ((hidden(engine, feed), reference) for feed, reference in zip(given, right, strict=True))
        errors = (np.sqrt(np.square(states - right).sum() / np.square(right).sum()) for states, right in pairs)
        return Row(name, declared, tuple(map(float, errors)))

    fp32, teacher = (Engine(each, asked.device, torch.float32) for each in (suite, suite.reference()))
    own = Engine(suite, asked.device, torch.bfloat16)
    declared = next(engines(asked.bits, suite.shape.layers))[1]
    rows = []
    for name, engine in (("fp32, step by step", fp32), ("bf16, step by step", own)):
        outputs = [engine(feed) for feed in feeds]
        given = [{**feed, "output": output} for feed, output in zip(feeds, outputs, strict=True)]
        taught = [teacher(feed) for feed in given]
        worst = [suite.quality(output, right) for output, right in zip(outputs, taught, strict=True)]
        rows.append(Row(name, declared, tuple(worst)))
        if engine is fp32:
            kept, right = given, [each[:, : suite.shape.width].astype(np.float64) for each in taught]
    del fp32, teacher, own
    for name, declared, dtype, changes in engines(asked.bits, suite.shape.layers):
        rows.append(row(name, declared, Engine(suite.reference(), asked.device, dtype, **changes), kept, right))
    device = torch.cuda.get_device_name() if asked.device.type == "cuda" else None
    print(heading(device), table(rows, suite), sep="\n\n")


if __name__ == "__main__":
    main()
