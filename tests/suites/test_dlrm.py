"""DLRM-DCNv2 computes its formula, listens to all it is given, tells rounding from cheats, costs what torch counts."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.separation import GROUP, integers
from bench.separation.dlrm import BAGS, CROSS, LARGEST, MLP, Rounded, Target, audits, opened, to
from bench.separation.networks import Network
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.dlrm import AT_MOST, FIXED, HOTNESS, LOOKUPS, SHAPES, Dlrm, _changing, _popular, rows_touched
from mixmark.suites.dlrm.network import Rank
from mixmark.suites.limits import FP32
from mixmark.suites.weights import RMS, Draw
from tests.marks import sweep

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.float64]

TABLE = "model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{}.weight"


@pytest.fixture(scope="module")
def network() -> nn.Module:
    suite: Any = Dlrm("smoke", {})
    (network,) = Network(suite).modules.values()
    return network


def logits(network: nn.Module, feed: Feed) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        out: npt.NDArray[np.float32] = network(*(torch.from_numpy(feed[name]) for name in ("dense", "indices")))[
            0
        ].numpy()
    return out


def by_formula(state: Mapping[str, Floats], dense: Floats, indices: npt.NDArray[np.int32]) -> float:
    """One sample in float64, written from the papers: bottom MLP, summed bags, crossing, top MLP."""

    def perceptrons(x: Floats, prefix: str, count: int) -> Floats:
        for i in range(count):
            x = np.maximum(0, state[f"{prefix}.{i}._linear.weight"] @ x + state[f"{prefix}.{i}._linear.bias"])
        return x

    features = [perceptrons(dense, "model.dense_arch.model._mlp", 3)]
    start = 0
    for table, hot in enumerate(HOTNESS):
        rows = state[TABLE.format(table)]
        features.append(np.sum([rows[index] for index in indices[start : start + hot]], axis=0))
        start += hot
    x0 = x = np.concatenate(features)
    cross = "model.inter_arch.crossnet"
    for i in range(3):
        low = state[f"{cross}.V_kernels.{i}"] @ x
        x = x0 * (state[f"{cross}.W_kernels.{i}"] @ low + state[f"{cross}.bias.{i}"][:, 0]) + x
    x = perceptrons(x, "model.over_arch.model.0._mlp", 4)
    last = "model.over_arch.model.1"
    return float((state[f"{last}.weight"] @ x + state[f"{last}.bias"])[0])


def test_it_equals_the_formula() -> None:
    torch.manual_seed(0)
    network = Rank(SHAPES["smoke"]).eval()
    for tensor in network.parameters():
        nn.init.normal_(tensor, std=0.05 if tensor.dim() == 1 else tensor.shape[1] ** -0.5)
    feed = Dlrm("smoke", {}).feeds(6, seed=0)(0)
    state = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    samples = zip(feed["dense"].astype(np.float64), feed["indices"].T, strict=True)
    expected = np.array([by_formula(state, *sample) for sample in samples])
    assert np.abs(logits(network, feed) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_exported_it_gathers_and_says_the_same(network: nn.Module) -> None:
    feed = Dlrm("smoke", {}).feeds(5, seed=0)(0)
    inputs = (torch.from_numpy(feed["dense"]), torch.from_numpy(feed["indices"]))
    program = torch.export.export(network, inputs)
    assert not [
        node for node in program.graph.nodes if "embedding_bag" in str(node.target) and node.op == "call_function"
    ]
    with torch.inference_mode():
        assert torch.allclose(program.module()(*inputs)[0], network(*inputs)[0], rtol=1e-4, atol=1e-5)


class Counted(Network):
    """A session that counts its runs."""

    runs = 0

    def run(self, *given: Any, **more: Any) -> Any:
        self.runs += 1
        return super().run(*given, **more)


def test_a_reference_adds_how_much_logits_vary_and_finds_out_once(network: nn.Module) -> None:
    suite: Any = Dlrm("smoke", {}).reference()
    session = Counted(suite)
    one, other = map(Dlrm("smoke", {}).feeds(1, seed=4), range(2))
    first = np.concatenate([*suite.infer(session, {**one, "output": np.zeros(1, np.float32)})])
    second = np.concatenate([*suite.infer(session, other)])
    assert session.runs == 3  # one for each feed, one for the fixed samples
    assert first.shape == second.shape == (2,) and first[0] == logits(network, one)[0]
    many = logits(network, Dlrm("smoke", {}).feeds(8 * FIXED, seed=5)(0))
    assert first[1] == second[1] == pytest.approx(many.var(), rel=0.2)


def judged(output: Array, reference: Array) -> float:
    """By the suite, where the variance over inputs is 1."""
    return Dlrm("smoke", {}).quality(output, np.append(reference, np.float32(1)))


def test_one_sample_in_256_is_set_aside_and_none_of_a_small_feed() -> None:
    for samples, aside in ((1, 0), (256, 0), (257, 1), (2048, 7)):
        truth, output = np.zeros((2, samples), np.float32)
        output[:aside] = 100
        assert judged(output, truth) == 0
        output[aside] = 2
        assert judged(output, truth) == 4


@pytest.mark.parametrize(("samples", "value"), [(1, 1), (128, 6), (256, 12), (512, 12)])
def test_the_mean_counts_twelve_times_where_it_is_of_256_samples(samples: int, value: float) -> None:
    truth, output = np.zeros((2, samples), np.float32)
    assert judged(output + 1, truth) == value


@pytest.fixture(scope="module")
def smoke() -> tuple[Target, Array]:
    """The suite as it is, with its logits on fixed samples and one feed."""
    torch.manual_seed(0)
    target, *_ = opened("smoke", 16, range(1))
    return target, target()


def test_rounding_passes_and_less_precision_than_declared_fails(smoke: tuple[Target, Array]) -> None:
    target, truth = smoke
    gate = AT_MOST["int8"]
    assert set(audits(target, truth, truth)) == {0}
    assert max(audits(target, target(batch=100), truth)) < FP32 / 1000
    assert min(audits(target, target(dtype=torch.float16), truth)) > FP32
    assert max(audits(target, target(dtype=torch.bfloat16), truth)) < AT_MOST["16 bits"] / 1.2
    with Rounded("int8"):
        assert max(audits(target, target(), truth)) < min(gate, AT_MOST["int4"]) / 3
        assert max(audits(target, target.changed(to(partial(integers, bits=8, group=None)))(), truth)) < gate
    with Rounded("fp8"):
        assert max(audits(target, target(), truth)) < AT_MOST["fp8"]
        assert min(audits(target, target(), truth)) > AT_MOST["16 bits"]


@pytest.mark.parametrize(("weight_class", "bits"), sweep((8, 4), (16, 8), (16, 4), usual=2))
def test_weights_of_fewer_bits_than_declared_fail(weight_class: WeightClass, bits: int) -> None:
    target, *_ = opened("smoke", weight_class, range(1))
    fewer = target.changed(to(partial(integers, bits=bits, group=GROUP if bits == 4 else GROUP // 2)))
    assert min(audits(target, fewer(), target())) > AT_MOST["16 bits"] * (3 if bits == 4 else 1.5)
    assert bits == 8 or min(audits(target, fewer(), target())) > 3 * AT_MOST["int8"]


def test_an_output_that_is_not_computed_fails(smoke: tuple[Target, Array]) -> None:
    target, truth = smoke
    previous, constant = np.roll(truth, 1), np.full_like(truth, truth[:FIXED].mean())
    tenth = np.where(np.arange(len(truth)) % 10, truth, previous)
    for output in (previous, constant, tenth):
        assert min(audits(target, output, truth)) > 3 * AT_MOST["int8"]


@pytest.mark.parametrize("layer", [CROSS.format(1), MLP.format(1)])
def test_a_skipped_layer_fails(smoke: tuple[Target, Array], layer: str) -> None:
    target, truth = smoke
    assert min(audits(target, target.without(layer)(), truth)) > 3 * AT_MOST["int8"]


@pytest.mark.parametrize(
    "away",
    [
        {9: np.s_[:]},  # the mildest of 26 to leave out
        {LARGEST: np.s_[:, 50:]},
        {table: np.s_[:, 1:] for table in range(26)},
    ],
)
def test_rows_that_are_not_looked_up_fail(smoke: tuple[Target, Array], away: Mapping[int, slice]) -> None:
    target, truth = smoke
    assert min(audits(target, target.averaged(away)(), truth)) > 2 * max(AT_MOST["int8"], AT_MOST["int4"])


@pytest.mark.parametrize("tier", SHAPES)
def test_no_table_counts_for_little(tier: str) -> None:
    suite = Dlrm("smoke", {})
    dim = SHAPES[tier].dim
    for table, (rows, hot) in enumerate(zip(SHAPES[tier].rows, HOTNESS, strict=True)):
        drawn = suite.fill(TABLE.format(table), (rows, dim))
        assert isinstance(drawn, Draw)
        assert 0.6 < drawn.scale((rows, dim), 4) * RMS * math.sqrt(hot * _changing(rows)) < 1.25


def test_pooled_rows_vary_as_lookups_that_meet_say(smoke: tuple[Target, Array]) -> None:
    target, _ = smoke
    for table, hot in enumerate(HOTNESS):
        rows = target.weights[TABLE.format(table)]
        pooled = nn.functional.embedding_bag(target.indices[:, BAGS[table]], rows, mode="sum")
        expected = rows.square().mean() * hot * _changing(SHAPES["smoke"].rows[table])
        assert float(pooled.var(0).mean()) == pytest.approx(float(expected), rel=0.35)


def test_both_kinds_of_features_matter(network: nn.Module) -> None:
    feed = Dlrm("smoke", {}).feeds(512, seed=1)(0)
    whole = logits(network, feed)
    assert len(set(whole.tolist())) > 500
    for name, axis in (("dense", 0), ("indices", 1)):
        shuffled = {**feed, name: np.roll(feed[name], 1, axis)}
        assert np.std(logits(network, shuffled) - whole) > 0.1 * np.std(whole), name


def test_indices_stay_in_their_tables_and_the_popular_are_few() -> None:
    feed = Dlrm("edge", {}).feeds(4096, seed=0)(0)
    assert feed["indices"].shape == (LOOKUPS, 4096) and feed["indices"].dtype == np.int32
    rows = np.repeat(SHAPES["edge"].rows, HOTNESS)[:, None]
    assert (feed["indices"] >= 0).all() and (feed["indices"] < rows).all()
    _, counts = np.unique(feed["indices"][0], return_counts=True)
    assert counts.max() > 100  # of 4,096 lookups in a million rows


def test_no_sum_of_two_rows_comes_back() -> None:
    """Neither in the same feed nor in the next: what an engine kept of a large bag is no part of another one."""
    seen = set()
    for feed in map(Dlrm("edge", {}).feeds(64, seed=0), range(4)):
        (table,) = (at for at, hot in enumerate(HOTNESS) if hot == 100)
        begin = sum(HOTNESS[:table])
        seen |= {tuple(pair) for pair in feed["indices"][begin : begin + 2].T.tolist()}
    assert len(seen) > 0.95 * 4 * 64  # but for pairs of the most popular rows


@pytest.mark.parametrize(("rows", "lookups"), [(3, 5), (1000, 700), (200_000, 50_000)])
def test_rows_touched_are_those_that_feeds_touch(rows: int, lookups: int) -> None:
    random = np.random.default_rng(0)
    seen = [len(np.unique(_popular(random, lookups, np.array([rows])))) for _ in range(5)]
    assert rows_touched(rows, lookups) == pytest.approx(np.mean(seen), rel=0.05)


@pytest.mark.parametrize("tier", ["smoke", "edge", "server"])
def test_flops_are_what_torch_counts(tier: str) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Rank(SHAPES[tier])(torch.empty(8, 13), torch.empty(LOOKUPS, 8, dtype=torch.int32))
    (cost,) = Dlrm(tier, {}).costs("fp32", 8)
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.02)  # torch does not count the pooling


def test_full_tables_are_the_public_ones() -> None:
    suite = Dlrm("server", {"rows": "full"})
    assert sum(suite.shape.rows) == 204_184_588
    assert suite.reference().weights().spec(TABLE.format(0)).shape[0] == 40_000_000
    with pytest.raises(Unsupported, match="no tier 'edge-full'"):
        Dlrm("edge", {"rows": "full"})
