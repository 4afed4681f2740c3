"""The llm suite: equal to transformers, whole at every tier's size, costed as counted, and not to be guessed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from bench.separation import activations, integers
from bench.separation.diffusion import replaced
from mixmark.harness.contracts.errors import Unsupported
from mixmark.suites.llm import LlamaShape, Llm
from tests.fakes.audits import at_most
from tests.marks import sweep
from tests.suites.decoders import Audit, DecoderAudit, Eager, audited, judged, one_thread, test_a_cycle_is_seen  # noqa: F401

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

TINY = LlamaShape(
    3, 64, 4, 2, 96, 128, True, 8.0, tokens_in=24, tokens_out=8, head_dim=16, rope_theta=100.0, rope_original_context=64
)


def step(shape: LlamaShape) -> Any:
    from mixmark.suites.llm.network import Step

    torch.manual_seed(0)
    return Step(shape).eval()


def logits(network: Any, ids: Any, position: int, caches: list[Any]) -> Any:
    return network.logits(network.model(ids, torch.tensor([position]), *caches))


def caches(shape: LlamaShape) -> list[Any]:
    return [torch.zeros(shape.kv_heads, shape.context, shape.head_dim) for _ in range(2 * shape.layers)]


def public(suite: Llm) -> Any:
    """The network of transformers that the suite's config builds."""
    transformers = pytest.importorskip("transformers")
    config: dict[str, Any] = {name: value for name, value in suite.config.items() if "." not in name}
    config["rope_scaling"] = {
        "rope_theta": suite.config["rope_theta"],
        **{name.split(".")[1]: value for name, value in suite.config.items() if name.startswith("rope_scaling.")},
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))


@pytest.mark.parametrize("tied", [True, False])
def test_equal_to_transformers(tied: bool) -> None:
    suite = Llm("smoke", {})
    suite.shape = shape = replace(TINY, tied=tied)
    peer = public(suite).eval()
    for parameter in peer.parameters():
        parameter.normal_(std=0.2)
    ours = step(shape)
    state = {name: tensor for name, tensor in peer.state_dict().items() if not (tied and name == "lm_head.weight")}
    ours.load_state_dict(state)
    ids = torch.randint(shape.vocabulary, (shape.tokens_in,))
    expected = peer(ids[None]).logits[0, -1:]
    cache = caches(shape)
    for part, at in ((ids[:10], 0), (ids[10:11], 10), (ids[11:], 11)):  # decoding with the cache is reading it all
        got = logits(ours, part, at, cache)
    assert ((got - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize(("tier", "parameters"), [("edge", 1_235_814_400), ("server", 8_030_261_248)])
def test_the_tiers_have_the_size_of_the_public_models(tier: str, parameters: int) -> None:
    suite = Llm(tier, {})
    weights = suite.weights()
    ours = {name: tuple(map(int, weights.spec(name).shape)) for name in weights.names()}
    assert sum(map(prod, ours.values())) == parameters
    with torch.device("meta"):
        peer = public(suite).state_dict()
    tied = {"lm_head.weight"} if suite.shape.tied else set()
    assert ours == {name: tuple(each.shape) for name, each in peer.items() if name not in tied}


@pytest.mark.parametrize("tier", ["edge", "server"])
def test_the_cost_is_what_the_counter_counts(tier: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    suite = Llm(tier, {})
    suite.shape = shape = replace(suite.shape, layers=4)  # the others are these again
    module = suite.graphs()["step"].module()
    prefill, decode = suite.costs("bf16", 1)
    assert prefill.yields + decode.yields == shape.tokens_out
    for cost, tokens, seen in (
        (prefill, shape.tokens_in, shape.tokens_in * (shape.tokens_in + 1) / 2),
        (decode, 1, shape.tokens_in + shape.tokens_out / 2),
    ):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            module(torch.zeros(tokens, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), *caches(shape))
        unseen = tokens * shape.context - seen  # the static cache is attended to whole, then masked
        masked = 4 * shape.layers * shape.heads * shape.head_dim * unseen
        assert cost.flops == pytest.approx(counter.get_total_flops() - masked, rel=0.001)


def test_decode_bytes_are_the_weights_and_the_cache() -> None:
    _, decode = Llm("edge", {}).costs("fp32", 1)
    cache = 2 * 16 * 8 * 64 * 4 * (128 + 64)
    assert decode.bytes == pytest.approx(4 * 1_235_814_400 + cache, rel=0.001)
    _, four_bit = Llm("edge", {}).costs("int4", 1)
    assert four_bit.bytes < decode.bytes / 7.9
    assert decode.streamed_bytes == pytest.approx(4 * 1_235_814_400, rel=0.001)


def test_the_least_is_a_prefill_whose_last_layer_outputs_for_the_last_token_only() -> None:
    prefill, decode = Llm("edge", {}).costs("fp32", 1)
    assert decode.min_flops == decode.flops
    last = 2 * 2048 * (2048 + 2048 + 3 * 8192)  # queries, output, and the three of the SwiGLU
    attention = 4 * 2048 * (128 * 129 / 2 - 128)
    assert prefill.min_flops == pytest.approx(prefill.flops - 127 * last - attention, rel=1e-9)


def test_each_prompt_is_drawn_whole() -> None:
    feeds = [feed["ids"] for feed in map(Llm("smoke", {}).feeds(1, 1), range(50))]
    assert max(float(np.mean(one == other)) for one, other in itertools.combinations(feeds, 2)) < 0.1  # of 4,096 tokens
    assert all(ids.shape == (32,) and 0 <= ids.min() <= ids.max() < 4096 for ids in feeds)
    with pytest.raises(Unsupported, match="one sample at a time"):
        Llm("smoke", {}).feeds(2, 0)(0)


class TestAudit(DecoderAudit):
    suite = Llm

    def rounding(self, network: Any, precision: str) -> Any:
        return activations(network.module, precision)


@pytest.fixture(scope="module")
def audit() -> Audit:
    with torch.inference_mode():
        return audited(Llm("smoke", {}))


def test_fp16_passes_for_bf16_and_not_for_fp32(audit: Audit) -> None:
    suite, _, teacher, feed = audit
    value = judged((suite, Eager(suite, torch.float16), teacher, feed))
    assert at_most(suite, "fp32") < value < at_most(suite, "bf16")


def test_tokens_without_hidden_states_pass_as_int8_at_most(audit: Audit) -> None:
    suite, session, _, feed = audit
    tokens = session(feed)[:, 0].astype(np.int64)
    value = judged(audit, tokens)
    assert at_most(suite, "bf16") < value <= at_most(suite, "int8")
    tokens[77] = 7
    assert judged(audit, tokens) > at_most(suite, "int8")


def test_weights_of_four_bits_lose_nothing_where_four_were_declared() -> None:
    suite = Llm("smoke", {}, 4)
    for weight in Eager(suite).module.state_dict().values():
        assert weight.dim() != 2 or torch.equal(integers(weight, 4), weight)


@pytest.mark.parametrize("layer", sweep(*range(4)))
def test_a_skipped_layer_fails(audit: Audit, layer: int) -> None:
    suite, network, _, _ = audit
    module: Any = network.modules["step"]
    with replaced(module.model.layers[layer], "forward", lambda x, *rest: x):
        value = judged(audit)
    assert value > 3 * max(at_most(suite, declared) for declared in ("bf16", "int8", "int4"))
