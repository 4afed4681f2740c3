"""The ssm suite: equal to transformers, whole at every tier's size, costed as counted, and not to be guessed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest

from bench.separation import integers
from mixmark.harness.capabilities import ssm
from mixmark.harness.capabilities.ssm import Mamba2Shape, Ssm
from mixmark.harness.contracts.errors import Unsupported, WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import WeightClass
from tests.fakes.audits import at_most
from tests.suites.test_llm import (  # noqa: F401  (one_thread is a fixture)
    Eager,
    cycle,
    judged,
    one_thread,
    worst_of_three,
)

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
from bench.capabilities.ssm import separation  # noqa: E402  (it needs torch)

TINY = Mamba2Shape(3, 32, 4, 2, 24, 128, True, tokens_in=24, tokens_out=8, head_dim=16)


def step(shape: Mamba2Shape) -> Any:
    from mixmark.harness.capabilities.ssm.network import Step

    torch.manual_seed(0)
    network = Step(shape).eval()
    for parameter in network.parameters():
        parameter.normal_(std=0.4)
    return network


def held(shape: Mamba2Shape) -> list[Any]:
    window = (shape.kernel - 1, shape.channels)
    state = (shape.groups, shape.heads // shape.groups, shape.head_dim, shape.state)
    return [torch.zeros(size) for _ in range(shape.layers) for size in (window, state)]


def logits(network: Any, ids: Any, state: list[Any]) -> Any:
    return network.logits(network.backbone(ids, *state))


def config(suite: Ssm) -> dict[str, Any]:
    return {name: value for name, value in suite.config.items() if "." not in name}


@pytest.mark.parametrize("tied", [True, False])
def test_equal_to_transformers(tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    suite = Ssm("smoke", {})
    suite.shape = shape = replace(TINY, tied=tied)
    peer = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**config(suite))).eval()
    for parameter in peer.parameters():
        parameter.normal_(std=0.4)
    ours = step(shape)
    state = {name: tensor for name, tensor in peer.state_dict().items() if not (tied and name == "lm_head.weight")}
    ours.load_state_dict(state)
    ids = torch.randint(shape.vocabulary, (shape.tokens_in,))
    expected = peer(ids[None]).logits[0, -1:]
    got = logits(ours, ids, held(shape))
    assert ((got - expected).norm() / expected.norm()).item() < 1e-5


def test_decoding_with_the_state_equals_reading_it_all_at_once() -> None:
    network = step(TINY)
    ids = torch.randint(TINY.vocabulary, (TINY.tokens_in,))
    once, state = logits(network, ids, held(TINY)), held(TINY)
    for part in (ids[:2], ids[2:10], ids[10:11], ids[11:]):
        bit_by_bit = logits(network, part, state)
    assert torch.allclose(once, bit_by_bit, atol=1e-5)
    assert not torch.allclose(once, logits(network, ids.flip(0), held(TINY)), atol=1e-2)


def test_a_long_prompt_is_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Ssm("smoke", {})
    session, teacher, feed = Eager(suite), Eager(suite.reference()), suite.feeds(1, 0)(0)
    whole = session(feed)
    monkeypatch.setattr(ssm, "CHUNK", 8)
    monkeypatch.setattr("mixmark.harness.capabilities.ssm.network.CHUNK", 24)
    sizes: list[int] = []
    own = session.run

    def counted(graph: str, ids: Any, **state: Any) -> Any:
        sizes.append(len(ids))
        return own(graph, ids, **state)

    monkeypatch.setattr(session, "run", counted)
    assert (session(feed)[:, 0] == whole[:, 0]).all()
    assert sizes[:5] == [8, 8, 8, 8, 1]
    assert judged((suite, session, teacher, feed), whole) < 1e-5


@pytest.mark.parametrize(("tier", "parameters"), [("edge", 1_343_757_312), ("server", 7_285_403_648)])
def test_the_tiers_have_the_size_of_the_public_models(tier: str, parameters: int) -> None:
    transformers = pytest.importorskip("transformers")
    suite = Ssm(tier, {})
    weights = suite.weights()
    ours = {name: tuple(map(int, weights.spec(name).shape)) for name in weights.names()}
    assert sum(map(prod, ours.values())) == parameters
    with torch.device("meta"):
        peer = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**config(suite))).state_dict()
    tied = {"lm_head.weight"} if suite.shape.tied else set()
    assert ours == {name: tuple(each.shape) for name, each in peer.items() if name not in tied}


@pytest.mark.parametrize("tier", ["edge", "server"])
def test_the_cost_is_what_the_counter_counts(tier: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    suite = Ssm(tier, {})
    suite.shape = shape = replace(suite.shape, layers=2)  # the others are these again
    module = suite.graphs()["step"].module()
    prefill, decode = suite.costs("bf16", 1)
    assert prefill.yields + decode.yields == shape.tokens_out
    chunks = max(1, shape.tokens_in // ssm.CHUNK)
    for cost, tokens, times in ((prefill, shape.tokens_in // chunks, chunks), (decode, 1, 1)):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            module(torch.zeros(tokens, dtype=torch.int64), *held(shape))
        repeated = 2 * shape.vocabulary * shape.width * (times - 1)  # the head of all chunks but the last
        assert cost.flops == pytest.approx(times * counter.get_total_flops() - repeated, rel=1e-9)


def test_decode_bytes_are_the_weights_and_the_state() -> None:
    _, decode = Ssm("edge", {}).costs("fp32", 1)
    state = 2 * 48 * (4096 * 128 + 3 * 4352) * 4
    assert decode.bytes == pytest.approx(4 * 1_343_757_312 + state, rel=1e-4)
    _, four_bit = Ssm("edge", {}).costs("int4", 1)
    assert four_bit.bytes == pytest.approx(1_343_757_312 / 2 + state / 2, rel=1e-4)
    assert decode.streamed_bytes == pytest.approx(4 * 1_343_757_312, rel=0.002)


def test_the_least_is_a_prefill_whose_last_layer_outputs_for_the_last_token_only() -> None:
    prefill, decode = Ssm("edge", {}).costs("fp32", 1)
    into = 2 * 48 * 4096 * 128
    assert decode.min_flops == pytest.approx(decode.flops - into - 48 * 2 * (128 + 4096), rel=1e-9)
    last = 2 * 2048 * (2 * 4096 + 128)  # the gate, the output and C
    scan = 32 * (into + 48 * 2 * 32 * (128 + 4096))
    assert prefill.min_flops == pytest.approx(prefill.flops - 31 * last - scan, rel=1e-9)


def test_feeds_are_never_alike_and_come_again_from_the_same_seed() -> None:
    def some(seed: int) -> list[bytes]:
        return [feed["ids"].tobytes() for feed in map(Ssm("smoke", {}).feeds(1, seed), range(50))]

    assert len({*some(1), *some(2)}) == 100 and some(1) == some(1)
    ids = Ssm("smoke", {}).feeds(1, 1)(0)["ids"]
    assert ids.shape == (32,) and 0 <= ids.min() <= ids.max() < 4096
    with pytest.raises(Unsupported, match="ssm has no batches"):
        Ssm("smoke", {}).feeds(2, 0)


def test_outputs_cannot_be_guessed() -> None:
    suite = Ssm("smoke", {})
    suite.shape = replace(suite.shape, tokens_out=128)
    session = Eager(suite)
    outputs = []
    same = suite.feeds(1, 1)(0)["ids"][2:]
    for begin in map(suite.feeds(1, 0), range(3)):
        yields = list(suite.infer(session, {"ids": np.append(begin["ids"][:2], same)}))  # they differ in two tokens
        assert [len(units) for units in yields] == [1] * 128
        outputs.append([int(units[0, 0]) for units in yields])
    assert min(len(set(output)) for output in outputs) >= 90
    assert {cycle(output) for output in outputs} == {None}
    for one, other in itertools.combinations(outputs, 2):
        assert np.mean(np.array(one) == np.array(other)) < 0.1


Audit = tuple[Ssm, Eager, Eager, Feed]


@pytest.fixture(scope="module")
def audit() -> Audit:
    suite = Ssm("smoke", {})
    return suite, Eager(suite), Eager(suite.reference()), suite.feeds(1, 0)(0)


def changed(audit: Audit, change: separation.Change) -> float:
    _, session, _, feed = audit
    with change(session.module):
        output = session(feed)
    return judged(audit, output)


def test_the_teacher_would_have_answered_the_same(audit: Audit) -> None:
    suite, session, teacher, feed = audit
    output = session(feed)
    assert output.shape == (suite.units(1), 1 + suite.shape.width)
    assert 0 < judged(audit, output) < 1e-5
    assert teacher.suite.weights().names() == suite.weights().names()


@pytest.mark.parametrize("precision", ["int8", "int8-tensor"])
def test_int8_activations_pass_in_8_and_4_bits(audit: Audit, precision: str) -> None:
    value = changed(audit, partial(separation.rounding, precision=precision))
    assert value < min(at_most(audit[0], "int8"), at_most(audit[0], "int4"))


def test_bf16_passes(audit: Audit) -> None:
    suite, _, _, feed = audit
    assert judged(audit, Eager(suite, torch.bfloat16)(feed)) < at_most(suite, "bf16")


def test_fp8_passes_and_rounds_much_more_than_bf16(audit: Audit) -> None:
    bf16, fp8 = (worst_of_three(audit, separation.rounding, precision) for precision in ("bf16", "fp8"))
    assert 5 * bf16 < fp8 < at_most(audit[0], "fp8")


@pytest.mark.parametrize(
    ("weight_class", "declared", "bits", "times"), [(16, "bf16", 8, 1.2), (16, "bf16", 4, 2), (8, "int8", 4, 2)]
)
def test_weights_of_fewer_bits_than_declared_fail(
    weight_class: WeightClass, declared: str, bits: int, times: float
) -> None:
    suite = Ssm("smoke", {}, weight_class)
    session, feed = Eager(suite), suite.feeds(1, 0)(0)
    for weight in session.module.state_dict().values():
        weight.copy_(integers(weight, bits) if weight.dim() == 2 else weight)
    output = session(feed)
    assert judged((suite, session, Eager(suite.reference()), feed), output) > times * at_most(suite, declared)


CHEATS = {
    **{f"layer {layer}": separation.skipped(layer) for layer in range(4)},
    "windows": separation.forgotten(0),
    "states": separation.forgotten(1),
    "half of the states": separation.half_state,
    "half of the vocabulary": separation.small_vocabulary(0.5),
}


@pytest.mark.parametrize("change", CHEATS.values(), ids=CHEATS)
def test_what_is_left_out_fails(audit: Audit, change: separation.Change) -> None:
    assert changed(audit, change) > 2 * max(at_most(audit[0], declared) for declared in ("bf16", "int8", "int4"))


def test_what_was_not_computed_from_this_feed_fails(audit: Audit) -> None:
    suite, session, _, feed = audit
    output = session(feed)
    other = session(suite.feeds(1, 0)(1))
    half = session({"ids": feed["ids"][16:]})
    one_made_up = output.copy()
    one_made_up[17, 0] = 7
    for wrong in (other, half, np.full_like(output, output[0]), one_made_up):
        assert judged(audit, wrong) > at_most(suite, "int4")


@pytest.mark.parametrize(
    "broken", [lambda output: output[:31], lambda output: output + 4096, lambda output: output[:, 0]]
)
def test_what_is_no_output_is_told(audit: Audit, broken: Callable[[Array], Array]) -> None:
    with pytest.raises(WrongOutput):
        judged(audit, broken(np.zeros((32, 257), np.float32)))
