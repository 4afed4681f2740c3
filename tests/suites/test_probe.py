"""The probe's kernels do the work that they are costed for, on every nonce anew."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from bench.separation import integers
from bench.separation.networks import Network
from mixmark.harness.adapters.devices import multiplies_bf16
from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Use
from mixmark.harness.contracts.weights import read_weight
from mixmark.suites.probe import CHAIN, COLUMNS, Probe, _spread
from mixmark.suites.weights import GROUP
from tests.fakes.audits import at_most, cpu, judged
from tests.marks import sweep

pytestmark = pytest.mark.slow


SUITE = Probe("smoke", {"cache_bytes": str(1 << 30)})  # the smoke tier takes two matrices at most
GATES = {precision: at_most(SUITE, precision) for precision in ("bf16", "int8", "int4")}
KERNELS: list[tuple[str, int]] = [("gemv", 256), ("gemv", 256), ("gemm", 256), ("gemm", 512)]


@pytest.fixture(scope="module")
def session() -> Network:
    return Network(SUITE)


def test_each_kernel_computes_what_it_says(session: Network) -> None:
    feed = SUITE.feeds(1, seed=0)(0)
    results = list(SUITE.infer(session, feed))
    named = [(cost.name, cost.yields) for cost in SUITE.costs("fp32", 1)]
    assert named == [("gemv-8MiB", 2), ("gemm-256", 1), ("gemm-512", 1)]
    assert all(result.shape == (1,) for result in results)

    a, b, c, d = feed["nonce"].astype(np.float64)
    for number in range(2):
        matrix = read_weight(SUITE.weights(), f"matrix_256_0{number}").astype(np.float64)
        assert results[number][0] == pytest.approx(d[:256] @ matrix @ c[:COLUMNS], rel=1e-4)
    for n in (256, 512):
        square = read_weight(SUITE.weights(), f"square_{n}").astype(np.float64)
        x = square * a[:n]
        for _ in range(CHAIN):
            x = np.maximum(x @ square.T, 0)
        assert results[n // 128 - n // 512][0] == pytest.approx(b[:n] @ x.T @ c[:n], rel=1e-4)


def test_every_part_of_a_matrix_reaches_the_result(session: Network) -> None:
    """A kernel that left out a part could not notice when that part becomes large."""
    nonce = np.abs(SUITE.feeds(1, seed=0)(0)["nonce"])
    for graph, corner in (("gemv-256", (255, 4095)), ("gemv-256-01", (255, 4095)), ("gemm-256", (255, 255))):
        (tensor,) = session.modules[graph].parameters()
        (before,) = session.run(graph, session.put(nonce))
        kept = tensor.data[corner].clone()
        tensor.data[corner] = 1e6
        (after,) = session.run(graph, session.put(nonce))
        tensor.data[corner] = kept
        assert after.abs() > 2 * before.abs(), graph


@pytest.mark.parametrize(("tier", "rows"), sweep(("smoke", 256), ("edge", 32_768)))
def test_no_two_rows_of_the_streamed_matrices_are_alike_up_to_signs(tier: str, rows: int) -> None:
    """A matrix that repeated some rows would come from a cache."""
    weights = Probe(tier, {"cache_bytes": str(1 << 28), "bits": "16"}).weights()
    matrices = []
    for name in (f"matrix_{rows}_00", f"matrix_{rows}_01"):
        matrix = np.empty((rows, COLUMNS), np.float32)
        weights.read(name, matrix)
        matrices.append(np.abs(matrix[:, :GROUP]))  # the first groups of all rows
    assert len(np.unique(np.concatenate(matrices), axis=0)) == 2 * rows


def worst(session: Network, change: Callable[[torch.Tensor], torch.Tensor], part: str, feeds: int = 8) -> list[float]:
    """The quality of feeds whose matrices with `part` in their names were changed."""
    given = list(map(SUITE.feeds(1, seed=3), range(feeds)))
    right = [session(feed) for feed in given]
    matrices = [
        tensor for module in session.modules.values() for name, tensor in module.named_parameters() if part in name
    ]
    kept = [tensor.data for tensor in matrices]
    for tensor in matrices:
        tensor.data = change(tensor.data)
    outputs = [session(feed) for feed in given]
    for tensor, before in zip(matrices, kept, strict=True):
        tensor.data = before
    return [SUITE.quality(output, reference) for output, reference in zip(outputs, right, strict=True)]


def test_the_streamed_matrices_need_sixteen_bits(session: Network) -> None:
    """Who declares bf16 and reads less is seen; who declares what is read passes."""
    assert worst(session, lambda m: m.to(torch.bfloat16).float(), "matrix") == [0] * 8
    assert worst(session, lambda m: m.to(torch.float16).float(), "matrix") == [0] * 8
    four = worst(session, partial(integers, bits=4), "matrix")
    assert min(four) > GATES["bf16"]
    assert max(four) < GATES["int4"]
    assert max(worst(session, partial(integers, bits=8), "matrix")) < GATES["int8"]


def test_what_computes_nothing_fails_every_gate(session: Network) -> None:
    rights = [session(feed) for feed in map(SUITE.feeds(1, seed=4), range(20))]
    assert {SUITE.quality(right, right) for right in rights} == {0}
    zeros = [SUITE.quality(np.zeros_like(right), right) for right in rights]
    assert np.median(zeros) > GATES["int4"]  # a result near zero passes by chance
    assert min(zeros) > GATES["bf16"]


def test_half_of_a_matrix_fails(session: Network) -> None:
    def half(matrix: torch.Tensor) -> torch.Tensor:
        return matrix * (torch.arange(matrix.shape[1]) < matrix.shape[1] // 2)

    for part in ("matrix", "square_256", "square_512"):
        assert np.median(worst(session, half, part)) > 10 * GATES["bf16"], part


def test_the_spread_is_that_of_the_results(session: Network) -> None:
    results = np.array([session(feed) for feed in map(SUITE.feeds(1, seed=5), range(60))])
    for (kind, size), found in zip(KERNELS, results.std(0), strict=True):
        roundings = CHAIN + 1 if kind == "gemm" else 1
        assert 0.65 < found / (_spread(kind, size) / roundings**0.5) < 1.5, kind


@pytest.mark.skipif(not multiplies_bf16(), reason="no bf16 in this processor: run it on one with AVX-512 BF16 or AMX")
def test_torch_passes_in_bf16() -> None:
    with Torch({}).open(cpu(Torch({})), SUITE, "bf16", Use.of("probe")) as narrow:
        assert max(judged(narrow, SUITE, feed) for feed in map(SUITE.feeds(1, seed=6), range(8))) < GATES["bf16"]


@pytest.mark.parametrize(
    ("cache", "bits", "precision", "stream"),
    [
        (None, None, "bf16", ("gemv-256MiB", 1)),
        (480 << 20, 16, "bf16", ("gemv-2048MiB", 8)),
        (480 << 20, 32, "fp32", ("gemv-2048MiB", 4)),
        (1 << 20, 16, "bf16", ("gemv-256MiB", 1)),
        (480 << 20, 8, "int8", None),
        (0, 16, "bf16", None),
    ],
)
def test_what_is_streamed_is_four_times_the_cache(
    cache: int | None, bits: int | None, precision: str, stream: tuple[str, int] | None
) -> None:
    told = {"cache_bytes": cache, "bits": bits}
    suite = Probe("edge", {name: str(value) for name, value in told.items() if value is not None})
    costs = {cost.name: cost for cost in suite.costs(precision, 1)}
    assert [(each.name, each.yields) for each in costs.values() if each.bytes] == ([stream] if stream else [])
    assert all(each.streamed_bytes == each.bytes and not each.flops for each in costs.values() if each.bytes)
    assert costs["gemm-2048"].flops == CHAIN * 2 * 2048**3


def test_a_large_probe_has_larger_matrices() -> None:
    costs = Probe("edge", {"cache_bytes": str(480 << 20), "bits": "16", "size": "large"}).costs("bf16", 1)
    assert [(each.name, each.yields) for each in costs] == [("gemv-2048MiB", 2), ("gemm-2048", 1), ("gemm-4096", 1)]


def test_every_matrix_has_a_graph_of_its_own_that_is_shipped() -> None:
    graphs = Probe("edge", {"cache_bytes": str(480 << 20), "bits": "16"}).graphs()
    assert b"matrix_32768_07" in graphs["gemv-32768-07"].onnx()
    assert b"matrix_32768_00" not in graphs["gemv-32768-07"].onnx()
    assert list(graphs["gemv-32768-07"].module().state_dict()) == ["matrix_32768_07"]


@pytest.mark.parametrize("options", [{"cache": "1"}, {"bits": "many"}, {"weights": "model.safetensors"}])
def test_other_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Probe("smoke", options)
