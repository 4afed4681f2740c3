"""The number of kernel launches of a unit in eager modules, and their cost on an accelerator.

Run: python -m bench.launches [TIER]    (edge)

It counts the operators of each graph of llm and diffusion on PyTorch's meta device, without views, which launch no
kernel; some operators launch several. Then it estimates the tokens a second of a decode step on three accelerators: the
longer of the time to read the weights and the time to launch, by public figures of bandwidth. An estimate, on paper.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mixmark.harness.contracts.protocols import Graph
from mixmark.harness.contracts.schema import Tier
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.llm import Llm

GPUS_BYTES_PER_S = {"H100 SXM": 3.35e12, "M4": 120e9, "RTX 4060": 272e9}  # from their makers' data sheets
REACHED = 0.83  # fraction of the bandwidth that gpt-fast's compiled decode step reaches in bf16 (its README, A100)
LAUNCH_S = 5e-6  # time of eager torch's host thread for an operator, which does not depend on the GPU


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its mode no types
    """Counts the operators that are not views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives its mode no types
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, *call: Any, **_: Any) -> Any:
        op, _types, args, kwargs = (*call, {})[:4]
        if not op.is_view and "empty" not in op.name():  # memory is allocated without a launch
            self.launches[op.name()] += 1
        return op(*args, **(kwargs or {}))


def launches(graph: Graph, length: int) -> Counter[str]:
    """The operators of one run. length: the size of symbolic axes, such as tokens."""
    values = [
        torch.empty(
            [length if isinstance(axis, str) else axis for axis in spec.shape],
            dtype=torch.float32 if spec.dtype == "float" else getattr(torch, spec.dtype),
            device="meta",
        )
        for spec in (*graph.inputs.values(), *graph.state.values())
    ]
    module = graph.module().to("meta")
    with torch.inference_mode(), Counting() as counting:
        module(*values)
    found: Counter[str] = counting.launches
    return found


def main() -> None:
    tier = cast(Tier, next(iter(sys.argv[1:]), "edge"))
    for suite in (Llm(tier, {}), Diffusion(tier, {})):
        for name, graph in suite.graphs().items():
            counted = launches(graph, length=1)
            common = ", ".join(f"{count} {op.removeprefix('aten::')}" for op, count in counted.most_common(4))
            print(f"{suite.name:9} {tier} {name:12} {counted.total():5} operators a run: {common}, …")
    llm = Llm(tier, {})
    step_bytes = next(cost.bytes for cost in llm.costs("bf16", 1) if cost.name == "decode")
    launched_s = launches(llm.graphs()["step"], length=1).total() * LAUNCH_S
    launching = f"eager, its launches take {launched_s * 1e3:.1f} ms"
    print(f"\nAn estimate: a decode step in bf16 reads {step_bytes / 1e9:.2f} GB; {launching}")
    for gpu, bytes_per_s in GPUS_BYTES_PER_S.items():
        read_s = step_bytes / bytes_per_s / REACHED
        eager, compiled = 1 / max(read_s, launched_s), 1 / read_s
        print(
            f"{gpu:9} eager {eager:6.0f} tok/s, compiled {compiled:6.0f} tok/s: eager is {eager / compiled:.2f} of it"
        )


if __name__ == "__main__":
    main()
