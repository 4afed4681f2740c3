"""Two halves of the processor as one device: dlrm's matrices are split over two processes, which talk through gloo.

A tensor-parallel engine has this shape: `discover` names the silicon of the group, and `open` starts a process for each
part but the first, which the worker itself computes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from mixmark import Array, Device, Feed, Runner, Suite, Use

PARTS = ("cpu:0/1-of-2", "cpu:0/2-of-2")
Weights = dict[str, torch.Tensor]


class Pair:
    name = "pair"

    def __init__(self, options: Mapping[str, str]) -> None:
        pass

    def discover(self) -> Iterable[Device]:
        from mixmark import Device

        only: Any = {"dlrm": ("fp32",)}
        yield Device(id="cpu:pair", kind="cpu", parts=PARTS, memory_pool="host", precisions_by_suite=only)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        from mixmark import Unsupported

        if (suite.name, precision) != ("dlrm", "fp32"):
            raise Unsupported(f"the pair has no {suite.name} in {precision}")
        with tempfile.TemporaryDirectory() as folder:
            meeting = str(Path(folder) / "meeting")
            second = subprocess.Popen([sys.executable, __file__, meeting])
            try:
                meet(meeting, rank=0)
                yield Engine(suite)
                share({})
                second.wait(30)
                dist.destroy_process_group()
            finally:
                second.kill()


class Engine:
    concurrency = 1

    def __init__(self, suite: Suite) -> None:
        source = suite.weights()
        self.bags = suite.config["multi_hot_sizes"]
        self.own: Weights = {}
        for name in source.names():
            whole = torch.empty([int(size) for size in source.spec(name).shape])
            source.read(name, whole.numpy())
            # Of a table each process has half of the columns, of a matrix half of the rows.
            first, second = whole.chunk(2, dim=1 if "embedding" in name else 0) if len(whole) > 1 else (whole, whole)
            self.own[name] = first.clone()
            share({name: second.clone()})
        share({"": torch.tensor(self.bags)})
        self.facts = {"engine": f"torch {torch.__version__} and gloo", "processes": "2", "cores": str(cores(0))}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        inputs = {name: torch.tensor(feed[name]) for name in ("dense", "indices")}
        share(inputs)
        yield forward(self.own, inputs, self.bags).numpy()


def forward(own: Weights, inputs: Weights, bags: Any) -> torch.Tensor:
    """dlrm with this process's half of each matrix; both processes have the whole of each activation."""

    def together(half: torch.Tensor) -> torch.Tensor:
        halves = [torch.empty_like(half), torch.empty_like(half)]
        dist.all_gather(halves, half.contiguous())
        return torch.cat(halves, dim=-1)

    def linear(x: torch.Tensor, layer: str) -> torch.Tensor:
        return together(x @ own[f"model.{layer}.weight"].T + own[f"model.{layer}.bias"])

    tables = "model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{}.weight"
    bottom = inputs["dense"]
    for layer in range(3):
        bottom = linear(bottom, f"dense_arch.model._mlp.{layer}._linear").relu()
    split = torch.split(inputs["indices"], [int(bag) for bag in bags])
    pooled = together(torch.stack([own[tables.format(table)][bag].sum(0) for table, bag in enumerate(split)]))
    x = entering = torch.cat((bottom, *pooled), dim=1)
    for layer in range(3):
        w, v, b = (own[f"model.inter_arch.crossnet.{each}.{layer}"] for each in ("W_kernels", "V_kernels", "bias"))
        x = entering * together(together(x @ v.T) @ w.T + b.view(-1)) + x
    for layer in range(4):
        x = linear(x, f"over_arch.model.0._mlp.{layer}._linear").relu()
    last = "model.over_arch.model.1"
    return (x @ own[f"{last}.weight"].T + own[f"{last}.bias"])[:, 0]


def share(tensors: Weights) -> None:
    """Sends tensors to the second process; none end it."""
    dist.broadcast_object_list([tensors], src=0)


def cores(rank: int) -> list[int]:
    assert sys.platform == "linux"  # only Linux pins processes, and the tests of this fake run nowhere else
    usable = sorted(os.sched_getaffinity(0))
    return usable[rank :: len(PARTS)] or usable


def meet(meeting: str, rank: int) -> None:
    own = cores(rank)
    if sys.platform == "linux":
        os.sched_setaffinity(0, own)
    torch.set_num_threads(len(own))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{meeting}", timedelta(seconds=60), 2, rank)


def main(meeting: str) -> None:
    """The second process: takes its half of the weights, then computes its half of each feed."""
    meet(meeting, rank=1)
    own: Weights = {}
    while True:
        sent: list[Weights] = [{}]
        dist.broadcast_object_list(sent, src=0)
        if "dense" in sent[0]:
            forward(own, sent[0], own[""])
        elif not sent[0]:
            break
        own |= sent[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
