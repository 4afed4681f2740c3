"""A suite small enough to export and open in a test, with everything that adapters must cope with.

`step` decodes with a cache written in place, `see` has a convolution with batch norm, `look` shares the table of
`step`. Its graphs lie in `graphs` beside this file, because exporting them takes long; after a change to a module:
`python -m tests.fakes.toys`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Runner, Session, Spec, Use
from mixmark.harness.contracts.schema import Cost, Device, Gate, LatencyLimits, UnitNames
from mixmark.suites import onnx_graphs
from tests.fakes.null import Null

if TYPE_CHECKING:
    from torch import nn

HOME = Path(__file__).parent
WORDS, WIDTH, HEADS, LENGTH = 32, 16, 2, 24


def _step() -> nn.Module:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, WIDTH)
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

        def forward(self, tokens: Tensor, position: Tensor, *cache: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = cache
            length = tokens.shape[0]
            qkv = self.qkv(self.table(tokens)).view(length, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
            positions = position + torch.arange(length, device=tokens.device)
            where = positions[None, :, None].expand(HEADS, length, WIDTH // HEADS)
            keys.scatter_(1, where, qkv[1])
            values.scatter_(1, where, qkv[2])
            seen = torch.arange(LENGTH, device=tokens.device)[None, :] <= positions[:, None]
            mixed = F.scaled_dot_product_attention(qkv[:1], keys[None], values[None], attn_mask=seen)[0]
            logits = F.linear(mixed[:, -1].reshape(1, WIDTH), self.table.weight)
            return logits.argmax(-1), position + length

    with torch.device("meta"):
        return Step().eval()


def _see() -> nn.Module:
    import torch
    from torch import Tensor, nn

    class See(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.norm.num_batches_tracked = None
            self.head = nn.Linear(8, 4)

        def forward(self, image: Tensor) -> tuple[Tensor]:
            return (self.head(self.norm(self.conv(image)).relu().mean((2, 3))),)

    with torch.device("meta"):
        return See().eval()


def _look() -> nn.Module:
    import torch
    from torch import Tensor, nn

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, WIDTH)

        def forward(self, index: Tensor) -> tuple[Tensor]:
            return (self.table(index).sum(1),)

    with torch.device("meta"):
        return Look().eval()


class Toy(Null):
    """Yields two tokens, then a row of logits and a row of sums for each image."""

    name = "toy"
    unit = "token"
    unit_names = UnitNames(short="tok", work="LLM tokens")
    scenarios: Sequence[str] = ("single-stream",)
    latency: LatencyLimits | None = None

    def graphs(self) -> Mapping[str, Graph]:
        cache = Spec((HEADS, LENGTH, WIDTH // HEADS))
        one = Spec((1,), "int64")
        step = onnx_graphs.graph(
            HOME,
            self.tier,
            "step",
            {"tokens": Spec(("tokens",), "int64"), "position": one},
            {"keys": cache, "values": cache},
            {"token": one, "next": one},
            _step,
        )
        image, logits = Spec(("batch", 3, 9, 9)), Spec(("batch", 4))
        see = onnx_graphs.graph(HOME, self.tier, "see", {"image": image}, {}, {"logits": logits}, _see)
        index, sums = Spec(("batch", 5), "int64"), Spec(("batch", WIDTH))
        look = onnx_graphs.graph(HOME, self.tier, "look", {"index": index}, {}, {"sums": sums}, _look)
        return {"step": step, "see": see, "look": look}

    def weights(self) -> Random:
        return Random(onnx_graphs.weight_specs(HOME, self.tier, self.graphs))

    def feeds(self, batch: int, seed: int) -> Feeds:
        def made(nonce: int) -> Feed:
            rng = np.random.default_rng((seed, nonce))
            feed: Feed = {
                "tokens": rng.integers(0, WORDS, 7),
                "image": rng.standard_normal((batch, 3, 9, 9)).astype(np.float32),
                "index": rng.integers(0, WORDS, (batch, 5)),
            }
            for array in feed.values():
                array.flags.writeable = False
            return feed

        return made

    def units(self, batch: int) -> int:
        return 2 + 2 * batch

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        state = session.state("step")
        tokens, position = session.put(feed["tokens"]), session.put(np.zeros(1, np.int64))
        for _ in range(2):
            tokens, position = session.run("step", tokens, position, state=state)
            yield session.get(tokens)
        yield session.get(session.run("see", session.put(feed["image"]))[0])
        yield session.get(session.run("look", session.put(feed["index"]))[0])

    def gate(self, precision: str) -> Gate | None:
        return None

    def quality(self, output: Array, reference: Array) -> float:
        raise Unsupported("the toy has no gate: its yields differ in shape")

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        return (Cost(name="toy", flops=1, bytes=1, yields=4),)


class Random:
    """Weights of a normal distribution keyed by name; variances are positive."""

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self._specs = specs

    def names(self) -> Sequence[str]:
        return tuple(self._specs)

    def spec(self, name: str) -> Spec:
        return self._specs[name]

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        values = np.random.default_rng(list(name.encode())).standard_normal(into.shape, np.float32)
        into[...] = np.abs(values) if name.endswith("running_var") else values


def computes_as_torch(runner: Runner, device: Device) -> None:
    """Asserts that a runner of the toy outputs as the torch adapter does in fp32, for two batches."""
    from mixmark.harness.adapters.torch import Torch

    suite = Toy()
    with Torch({}).open(device, suite, "fp32", Use.of("single-stream")) as reference:
        for batch, feed in zip((1, 3), map(suite.feeds(1, seed=1), range(2)), strict=True):
            feed = {**feed, **{name: np.repeat(feed[name], batch, axis=0) for name in ("image", "index")}}
            for output, expected in zip(runner(feed), reference(feed), strict=True):
                assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
                np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    onnx_graphs.ship(Toy(), HOME)
