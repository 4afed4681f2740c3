"""Equal in numbers to transformers, and outputs that depend on every part of the network."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from bench.separation import integers
from mixmark.harness.capabilities.speech import SECONDS, SHAPES, TOKENS, Speech, WhisperShape
from mixmark.harness.contracts.errors import Unsupported, WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import WeightClass
from tests.suites.test_llm import one_thread  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

from bench.capabilities.speech.separation import changed, heard, part, rounding, skipped  # noqa: E402
from bench.separation.diffusion import replaced  # noqa: E402
from bench.separation.networks import Network  # noqa: E402

TINY = WhisperShape(2, 32, 2, 8, 64, (60, 61, 62, 63), positions=20, target_positions=100)


def peer(suite: Speech) -> Any:
    """The public network of a suite's config, on the current device."""
    transformers = pytest.importorskip("transformers")
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**suite.config)).eval()


def tiny() -> Speech:
    suite = Speech("smoke", {})
    suite.shape = TINY
    return suite


def caches(shape: WhisperShape) -> list[Any]:
    return [torch.zeros(shape.heads, shape.context, shape.head_dim) for _ in range(2 * shape.layers)]


def test_equal_to_transformers() -> None:
    """Every weight is drawn, norms and biases too, so that none can be left out unseen."""
    from mixmark.harness.capabilities.speech.network import Encode, Step

    theirs = peer(tiny())
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    state = {name: tensor for name, tensor in theirs.state_dict().items() if name != "proj_out.weight"}
    encode, step = Encode(TINY), Step(TINY)
    encode.load_state_dict(state)
    step.load_state_dict(state)
    features, ids = torch.randn(1, 8, 40), torch.randint(64, (30,))
    expected = theirs(input_features=features, decoder_input_ids=ids[None]).logits[0]
    start, cache, rows = torch.zeros(1, dtype=torch.int64), caches(TINY), []
    keys_and_values = encode(features)
    for tokens, at in ((ids[:10], 0), (ids[10:11], 10), (ids[11:], 11)):  # at once, and token by token
        hidden = step.model.decoder(tokens, start + at, *keys_and_values, *cache, rows=len(tokens))
        rows.append(step.logits(hidden))
    assert ((torch.cat(rows) - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize(("tier", "parameters"), [("smoke", None), ("edge", 72_593_920), ("server", 1_543_490_560)])
def test_the_tiers_are_the_public_models(tier: str, parameters: int | None) -> None:
    suite = Speech(tier, {})
    weights = suite.weights()
    ours = {name: weights.spec(name).shape for name in weights.names()}
    assert parameters in (None, sum(prod(map(int, shape)) for shape in ours.values()))
    with torch.device("meta"):
        theirs = {name: tuple(each.shape) for name, each in peer(suite).state_dict().items()}
    assert theirs.pop("proj_out.weight") == theirs["model.decoder.embed_tokens.weight"]
    assert ours == theirs


@pytest.mark.parametrize("tier", ["edge", "server"])
def test_the_cost_is_what_the_counter_counts(tier: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    suite = Speech(tier, {})
    suite.shape = shape = replace(suite.shape, layers=2)  # the others are these again
    encode, step = (graph.module() for graph in suite.graphs().values())

    def counted(module: Any, *inputs: Any) -> tuple[int, Any]:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            outputs = module(*inputs)
        return counter.get_total_flops(), outputs

    with torch.device("meta"):
        features, cache, start = torch.zeros(1, shape.mel, 3000), caches(shape), torch.zeros(1, dtype=torch.int64)
    encoder, keys_and_values = counted(encode, features)
    prefill, _ = counted(step, torch.zeros(4, dtype=torch.int64, device="meta"), start, *keys_and_values, *cache)
    decode, _ = counted(step, start, start, *keys_and_values, *cache)
    first, later = suite.costs("bf16", 1)
    assert first.yields + later.yields == SECONDS
    # the static cache is attended to whole, then masked
    assert first.flops == pytest.approx(encoder + prefill + 2 * decode, rel=0.001)
    assert later.flops == pytest.approx(3 * decode, rel=0.01)


def test_the_bytes_are_the_weights_and_what_is_kept() -> None:
    first, later = Speech("edge", {}).costs("fp32", 1)
    kept = 2 * 6 * 512 * 4  # keys and values of a row, in all layers
    decoder = 51_865 * 512 + 6 * 14 * 512**2
    encoder = 3 * 80 * 512 + 3 * 512**2 + 6 * 14 * 512**2
    assert later.bytes == pytest.approx(3 * (4 * decoder + kept * (1500 + 50)), rel=0.002)
    assert later.streamed_bytes == 3 * 4 * decoder
    assert first.bytes == pytest.approx(
        4 * (encoder + 3 * decoder) + kept * (1500 + 3 * 1500) + 4 * (1500 * 512 + 240_000), rel=0.002
    )
    assert Speech("edge", {}).costs("int4", 1)[1].streamed_bytes == later.streamed_bytes / 8


def test_the_least_has_winograd_and_a_last_layer_for_the_last_token() -> None:
    first, later = Speech("edge", {}).costs("fp32", 1)
    assert later.min_flops == later.flops
    prompt = 2 * 3 * 12 * 512**2 + 4 * 512 * (10 - 4 + 3 * 1500)
    assert first.min_flops == pytest.approx(first.flops - 3000 * 3 * 80 * 512 - prompt, rel=1e-9)


def test_feeds_are_never_alike_and_like_speech() -> None:
    def some(seed: int) -> list[Feed]:
        return list(map(Speech("smoke", {}).feeds(1, seed), range(20)))

    feeds = some(1)
    heard = [feed["features"] for feed in feeds]
    assert len({each.tobytes() for each in heard}) == 20
    assert all(each.tobytes() == again["features"].tobytes() for each, again in zip(heard, some(1), strict=True))
    assert not any(np.array_equal(each, other["features"]) for each, other in zip(heard, some(2), strict=True))
    assert all(each.dtype == np.float32 and each.shape == (1, 32, 600) for each in heard)
    assert all(-1 <= each.min() < each.mean() < 0 < each.max() <= 1 for each in heard)
    assert all(np.corrcoef(one.ravel(), other.ravel())[0, 1] < 0.2 for one, other in itertools.combinations(heard, 2))
    assert {tuple(feed["ids"]) for feed in feeds} == {SHAPES["smoke"].prompt}
    with pytest.raises(Unsupported, match="one sample at a time"):
        Speech("smoke", {}).feeds(2, 0)


@pytest.fixture(scope="module")
def networks() -> tuple[Network, Network, Feed]:
    """A network of smoke, its teacher, and a feed."""
    suite = Speech("smoke", {})
    with torch.inference_mode():
        return Network(suite), Network(suite.reference()), suite.feeds(1, 0)(0)


def judged(networks: tuple[Network, Network, Feed], output: Array | None = None) -> float:
    network, teacher, feed = networks
    output = network(feed) if output is None else output
    return network.suite.quality(output, teacher({**feed, "output": output}))


def at_most(precision: str = "int4", suite: Speech | None = None) -> float:
    gate = (suite or Speech("smoke", {})).gate(precision)
    assert gate is not None
    return gate.at_most


def test_outputs_cannot_be_guessed(networks: tuple[Network, Network, Feed]) -> None:
    network, _, _ = networks
    outputs = []
    for feed in map(network.suite.feeds(1, 0), range(3)):
        yields = list(network.suite.infer(network, feed))
        assert len(yields) == SECONDS
        assert all(each.shape == (1, TOKENS, 129) for each in yields)
        outputs.append(np.concatenate(yields)[..., 0].ravel())
    assert min(len(set(output)) for output in outputs) >= 50
    for one, other in itertools.combinations(outputs, 2):
        assert np.mean(one == other) < 0.2


def test_the_teacher_would_have_answered_the_same(networks: tuple[Network, Network, Feed]) -> None:
    network, teacher, feed = networks
    assert 0 < judged(networks) < 1e-5  # not 0: the order of the sums differs
    assert len(network(feed)) == network.suite.units(1)
    assert teacher.suite.weights().names() == network.suite.weights().names()
    with pytest.raises(Unsupported, match="no ONNX graph"):
        teacher.suite.graphs()["teach"].onnx()


@pytest.mark.parametrize("rounded", ["int8", "int8-tensor"])
def test_int8_activations_pass_in_8_and_4_bits(networks: tuple[Network, Network, Feed], rounded: str) -> None:
    with rounding(networks[0], rounded):
        value = judged(networks)
    assert 0 < value < min(at_most("int8"), at_most("int4"))


def test_bf16_passes(networks: tuple[Network, Network, Feed]) -> None:
    _, teacher, feed = networks
    suite = Speech("smoke", {})
    assert judged((Network(suite, torch.bfloat16), teacher, feed)) < at_most("bf16")


def test_fp8_passes_and_not_where_bf16_was_declared(networks: tuple[Network, Network, Feed]) -> None:
    network, teacher, _ = networks
    with rounding(network, "fp8"):
        worst = max(judged((network, teacher, feed)) for feed in map(network.suite.feeds(1, 0), range(3)))
    assert at_most("bf16") < worst < at_most("fp8")


@pytest.mark.parametrize(
    ("weight_class", "declared", "bits", "times"), [(16, "bf16", 8, 1.2), (16, "bf16", 4, 2), (8, "int8", 4, 2)]
)
def test_weights_of_fewer_bits_than_declared_fail(
    weight_class: WeightClass, declared: str, bits: int, times: float
) -> None:
    suite = Speech("smoke", {}, weight_class)
    network = Network(suite)
    with changed(network, lambda weight: integers(weight, bits)):
        assert judged((network, Network(suite.reference()), suite.feeds(1, 0)(0))) > times * at_most(declared)


@pytest.mark.parametrize(
    "parts",
    [[f"{side}.layers.{layer}"] for side in ("encoder", "decoder") for layer in range(3)]
    + [["encoder.layers.2.self_attn"], ["decoder.layers.2.self_attn"], ["decoder.layers.2.encoder_attn"]],
    ids=lambda parts: parts[0],
)
def test_a_skipped_part_fails(networks: tuple[Network, Network, Feed], parts: list[str]) -> None:
    with skipped(networks[0], *parts):
        assert judged(networks) > 2 * at_most()


def test_audio_that_was_not_heard_fails(networks: tuple[Network, Network, Feed]) -> None:
    for kept in (slice(150), slice(None, None, 2)):
        with heard(networks[0], kept):
            assert judged(networks) > 1.5 * at_most()
    encoder = part(networks[0], "encoder.layer_norm")
    with replaced(encoder, "forward", torch.zeros_like):
        assert judged(networks) > 5 * at_most()


def test_what_was_not_computed_from_this_feed_fails(networks: tuple[Network, Network, Feed]) -> None:
    network, _, feed = networks
    output = network(feed)
    other = network(network.suite.feeds(1, 0)(1))
    made_up = output.copy()
    made_up[17, 1, 0] = 7
    for wrong in (other, np.full_like(output, output[0, 0]), np.concatenate((output[:20], output[:10])), made_up):
        assert judged(networks, wrong) > at_most()


def test_what_is_no_output_is_told(networks: tuple[Network, Network, Feed]) -> None:
    suite = networks[0].suite
    output = np.ones((30, 3, 129), np.float32)
    output[..., 0] = np.arange(90).reshape(30, 3)
    reference = np.ones((90, 128 + 2048), np.float32)
    for wrong, complaint in (
        (output[..., 0], r"float32 \(30, 3\), but should be float32 \(30, 3, 129\)"),
        (output[:29], r"\(29, 3, 129\)"),
        (output - 1, "1 of 90 tokens are not in the vocabulary of 2048"),
        (output + 2000, "42 of 90 tokens"),
    ):
        with pytest.raises(WrongOutput, match=complaint):
            suite.quality(wrong, reference)
        with pytest.raises(WrongOutput, match=complaint):
            judged(networks, wrong)
