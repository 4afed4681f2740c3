"""llm's parts: together they are llm, apart each is costed as counted, and decoding takes what a prefill yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from bench.separation import integers
from mixmark.harness.capabilities.pipelines.llm_parts import Decode, Part, Prefill
from mixmark.harness.contracts.errors import Unsupported, WrongOutput
from mixmark.harness.contracts.protocols import Array, Continues, Feed
from mixmark.suites.llm import Llm
from tests.suites.decoders import Eager, one_thread  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


def prompt() -> Array:
    return np.random.default_rng(0).integers(4096, size=32)


@pytest.fixture(scope="module")
def cache() -> Array:
    with torch.inference_mode():
        return Eager(Prefill("smoke", {}))({"ids": prompt()[:-1]})


def test_the_parts_together_are_llm(cache: Array) -> None:
    whole = Eager(Llm("smoke", {}))({"ids": prompt()})
    decode = Decode("smoke", {})
    together = Eager(decode)({"ids": prompt()[-1:], **decode.given(cache)})
    assert np.array_equal(together[:, 0], whole[:, 0]) and np.allclose(together, whole, atol=1e-4)
    other = Eager(decode)({"ids": prompt()[-1:], "cache": cache[:, ::-1].copy()})
    assert not np.array_equal(other[:, 0], whole[:, 0])


def test_decoding_is_judged_by_what_it_was_given(cache: Array) -> None:
    decode = Decode("smoke", {})
    feed = {"ids": prompt()[-1:], "cache": cache}
    output = Eager(decode)(feed)

    def judged(feed: Feed) -> float:
        teacher = decode.reference()
        return decode.quality(output, Eager(teacher)({**feed, "output": output}))

    assert judged(feed) < 1e-5
    assert judged({**feed, "cache": decode.feeds(1, 0)(0)["cache"]}) > 0.1


def test_weights_of_eight_bits_fail_where_bf16_passes() -> None:
    decode = Decode("smoke", {})
    teacher, feed = Eager(decode.reference()), decode.feeds(1, 0)(0)
    narrow = Eager(decode)
    for weight in narrow.module.state_dict().values():
        weight.copy_(integers(weight, 8) if weight.dim() == 2 else weight)
    gate = decode.gate("bf16")
    assert gate is not None
    outputs = Eager(decode, torch.bfloat16)(feed), narrow(feed)
    honest, cheat = (decode.quality(output, teacher({**feed, "output": output})) for output in outputs)
    assert 1.1 * honest < gate.at_most < cheat / 1.1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cache: cache[1:],
        lambda cache: cache[:, 1:],
        lambda cache: cache.astype(np.float64),
        lambda cache: cache * np.nan,
    ],
)
def test_what_is_no_cache_is_refused(cache: Array, wrong: Callable[[Array], Array]) -> None:
    decode = Decode("smoke", {})
    assert isinstance(decode, Continues) and decode.continues == Prefill.name
    assert decode.given(cache)["cache"] is cache
    with pytest.raises(WrongOutput):
        decode.given(wrong(cache))


def test_a_prefill_is_judged_by_its_worst_token(cache: Array) -> None:
    """A token whose keys in one layer are off by a tenth leaves a hundredth unexplained."""
    prefill = Prefill("smoke", {})
    assert prefill.quality(cache, cache) == 0
    off = cache.copy()
    off[7, 2, 0] *= 1.1
    assert prefill.quality(off, cache) == pytest.approx(0.01, rel=1e-4)
    with pytest.raises(WrongOutput):
        prefill.quality(cache[:-1], cache)


@pytest.mark.parametrize("tier", ["edge", "server"])
def test_the_cost_is_what_the_counter_counts(tier: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    prefill, decode = Prefill(tier, {}), Decode(tier, {})
    for suite in (prefill, decode):
        suite.shape = replace(suite.shape, layers=2)  # the others are these again
    shape = decode.shape
    tokens = shape.tokens_in

    def counted(network: object, *inputs: object) -> int:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            network(*inputs)  # type: ignore[operator]
        return int(counter.get_total_flops())

    with torch.device("meta"):
        ids = torch.zeros(tokens, dtype=torch.int64)
        one, cache = torch.zeros(1, dtype=torch.int64), torch.zeros(prefill.cache)
        state = [torch.zeros(shape.kv_heads, shape.context, shape.head_dim) for _ in range(2 * shape.layers)]
    (cost,) = prefill.costs("bf16", 1)
    attention = 4 * shape.heads * shape.head_dim  # causal attention is counted as if it were whole
    more = attention * (tokens * tokens - tokens * (tokens + 1) / 2)
    module = prefill.graphs()["prefill"].module()
    assert cost.flops == cost.min_flops == pytest.approx(counted(module, ids) - more, rel=1e-9)
    (cost,) = decode.costs("bf16", 1)
    assert cost.yields == decode.units(1) == shape.tokens_out
    mean = tokens + (1 + shape.tokens_out) / 2
    more = shape.layers * attention * (shape.context - mean)
    module = decode.graphs()["resume"].module()
    assert cost.flops == pytest.approx(counted(module, one, one, cache, *state) - more, rel=1e-9)


def test_bytes() -> None:
    (prefill,), (decode,) = (suite("edge", {}).costs("fp32", 1) for suite in (Prefill, Decode))
    _, whole = Llm("edge", {}).costs("fp32", 1)
    assert decode.bytes == pytest.approx(whole.bytes, rel=1e-4)
    layer, keys = 60_817_408, 2 * 2048 * 512
    assert prefill.streamed_bytes == 4 * (15 * layer + keys)
    assert prefill.bytes == pytest.approx(4 * (15 * layer + keys) + 8 * prod(Prefill("edge", {}).cache), rel=1e-3)


def test_feeds_are_never_alike_and_come_again_from_the_same_seed() -> None:
    def some(seed: int) -> list[bytes]:
        return [feed["cache"].tobytes() for feed in map(Decode("smoke", {}).feeds(1, seed), range(20))]

    assert len({*some(1), *some(2)}) == 40 and some(1) == some(1)
    assert Prefill("smoke", {}).feeds(1, 1)(0)["ids"].shape == (31,)
    with pytest.raises(Unsupported, match="llm-decode"):
        Decode("smoke", {}).feeds(2, 0)


@pytest.mark.parametrize("part", [Prefill, Decode])
def test_no_part_has_weights_of_fewer_bits(part: type[Part]) -> None:
    assert part("smoke", {}).weights().names() == Llm("smoke", {}).weights().names()
    with pytest.raises(Unsupported):
        part("smoke", {}, 8)
