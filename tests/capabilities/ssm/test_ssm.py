"""The ssm suite: equal to transformers, whole at every tier's size, costed as counted, and not to be guessed."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from mixmark.harness.capabilities import ssm
from mixmark.harness.capabilities.ssm import Mamba2Shape, Ssm
from tests.fakes.audits import at_most
from tests.suites.decoders import Audit, DecoderAudit, Eager, audited, judged, one_thread  # noqa: F401  (a fixture)

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
    public = peer.state_dict()
    ours.load_state_dict({name: public[name] for name in public if not (tied and name == "lm_head.weight")})
    ids = torch.randint(shape.vocabulary, (shape.tokens_in,))
    expected = peer(ids[None]).logits[0, -1:]
    state = held(shape)
    for part in (ids[:2], ids[2:10], ids[10:11], ids[11:]):  # decoding with the state is reading it all
        got = logits(ours, part, state)
    assert ((got - expected).norm() / expected.norm()).item() < 1e-5


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


class TestAudit(DecoderAudit):
    suite = Ssm
    longer = replace(ssm.SHAPES["smoke"], tokens_out=128)

    def rounding(self, network: Any, precision: str) -> Any:
        return separation.rounding(network.module, precision=precision)


@pytest.fixture(scope="module")
def audit() -> Audit:
    with torch.inference_mode():
        return audited(Ssm("smoke", {}))


CHEATS = {
    **{f"layer {layer}": separation.skipped(layer) for layer in range(4)},
    "windows": separation.forgotten(0),
    "states": separation.forgotten(1),
    "half of the states": separation.half_state,
    "half of the vocabulary": separation.small_vocabulary(0.5),
}


@pytest.mark.parametrize("change", CHEATS.values(), ids=CHEATS)
def test_what_is_left_out_fails(audit: Audit, change: separation.Change) -> None:
    suite, network, _, _ = audit
    module: Any = network.modules["step"]
    with change(module):
        value = judged(audit)
    assert value > 2 * max(at_most(suite, declared) for declared in ("bf16", "int8", "int4"))
