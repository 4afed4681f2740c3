"""The probe's kernels do the work that they are costed for, on every nonce anew."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
import torch

from harness.contracts import Array
from harness.errors import Unsupported
from suites.probe import CHAIN, COLUMNS, Probe

pytestmark = pytest.mark.slow


class Eager:
    """A session of a few lines: torch on the CPU."""

    def __init__(self, suite: Probe) -> None:
        self.graphs = suite.graphs()
        self.modules = {name: graph.module().to_empty(device="cpu") for name, graph in self.graphs.items()}
        self.weights = suite.weights()
        self.states: dict[str, list[torch.Tensor]] = {}
        for module in self.modules.values():
            for name, tensor in module.state_dict().items():
                self.weights.read(name, tensor.numpy())

    def put(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array)

    def state(self, graph: str) -> list[torch.Tensor]:
        shapes = [[int(side) for side in spec.shape] for spec in self.graphs[graph].state.values()]
        self.states[graph] = [torch.zeros(shape) for shape in shapes]
        return self.states[graph]

    def run(self, graph: str, *inputs: torch.Tensor, state: list[torch.Tensor] | None = None) -> Sequence[torch.Tensor]:
        with torch.inference_mode():
            outputs: Sequence[torch.Tensor] = self.modules[graph](*inputs, *(state or ()))
        return outputs

    def get(self, tensor: torch.Tensor) -> Array:
        return tensor.numpy()

    def weights_of(self, name: str) -> Array:
        shape = [int(side) for side in self.weights.spec(name).shape]
        into = np.empty(shape, np.float32)
        self.weights.read(name, into)
        return into.astype(np.float64)


SUITE = Probe("smoke", {})


@pytest.fixture(scope="module")
def session() -> Eager:
    return Eager(SUITE)


def test_each_kernel_computes_what_it_says(session: Eager) -> None:
    feed = next(SUITE.feeds(1, seed=0))
    names = [cost.name for cost in SUITE.costs("fp32", 1)]
    results = dict(zip(names, SUITE.infer(session, feed), strict=True))
    assert names == ["prepare", "read-4MiB", "gemv-4MiB", "copy-4MiB", "gemm-256", "gemm-512"]
    assert all(result.shape == (1,) for result in results.values())

    nonce = feed["nonce"].astype(np.float64)
    matrix = session.weights_of("matrix_256")
    assert results["read-4MiB"][0] == pytest.approx((nonce[0, :256] @ matrix).max(), rel=1e-4)
    assert results["gemv-4MiB"][0] == pytest.approx((matrix @ nonce[0, :COLUMNS]).max(), rel=1e-4)
    (copy,) = session.states["copy-256"]
    assert np.allclose(copy.numpy(), matrix * nonce[0, 0], rtol=1e-6)
    for n in (256, 512):
        square = session.weights_of(f"square_{n}")
        product = (square + nonce[:, :n]) @ np.linalg.matrix_power(square.T, CHAIN)
        assert results[f"gemm-{n}"][0] == pytest.approx(product.max(), rel=1e-4)


def test_the_nonce_reaches_every_kernel(session: Eager) -> None:
    one, other = ([float(y[0]) for y in SUITE.infer(session, feed)] for feed in islice(SUITE.feeds(1, seed=0), 2))
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_every_part_of_a_matrix_reaches_the_result(session: Eager) -> None:
    """A kernel that left out a part could not notice when that part becomes large."""
    nonce = np.abs(next(SUITE.feeds(1, seed=0))["nonce"])
    for graph, corner in (("read-256", (255, 4095)), ("gemv-256", (255, 4095)), ("gemm-256", (255, 255))):
        (tensor,) = session.modules[graph].parameters()
        (before,) = session.run(graph, session.put(nonce))
        kept = tensor.data[corner].clone()
        tensor.data[corner] = 1e4
        (after,) = session.run(graph, session.put(nonce))
        tensor.data[corner] = kept
        assert after > 2 * before.abs(), graph


def test_costs_name_the_bytes_at_the_precision() -> None:
    half = {cost.name: cost for cost in Probe("edge", {}).costs("bf16", 1)}
    assert half["read-256MiB"].bytes == half["gemv-256MiB"].bytes == 256 * 2**20
    assert half["copy-256MiB"].bytes == 512 * 2**20
    assert half["gemm-2048"].flops == CHAIN * 2 * 2048**3
    assert all(cost.flops == 0 or cost.bytes == 0 for cost in half.values())


@pytest.mark.parametrize("tier", ["smoke", "edge", "server"])
def test_a_feed_has_as_many_yields_as_costs(tier: str) -> None:
    suite = Probe(tier, {})
    assert sum(cost.yields for cost in suite.costs("fp32", 1)) == 1 + len(suite.graphs()) == suite.units(1)


def test_it_is_not_audited() -> None:
    assert SUITE.gate("fp32") is None


def test_it_takes_no_checkpoint() -> None:
    with pytest.raises(Unsupported, match="no checkpoint"):
        Probe("smoke", {"weights": "model.safetensors"})
