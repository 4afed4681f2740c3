"""Equal in numbers to transformers, and outputs that depend on every part of the network."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from mixmark.harness.capabilities.speech import SECONDS, Speech, WhisperShape
from mixmark.harness.contracts.protocols import Feed
from tests.fakes.audits import at_most
from tests.suites.decoders import Audit, DecoderAudit, audited, judged, one_thread  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

from bench.capabilities.speech.separation import heard, part, rounding, skipped  # noqa: E402
from bench.separation.diffusion import replaced  # noqa: E402

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


def test_features_are_within_the_range_of_whispers_spectra() -> None:
    heard = [feed["features"] for feed in map(Speech("smoke", {}).feeds(1, 1), range(20))]
    assert all(-1 <= each.min() < each.mean() < 0 < each.max() <= 1 for each in heard)
    assert all(np.corrcoef(one.ravel(), other.ravel())[0, 1] < 0.2 for one, other in itertools.combinations(heard, 2))


class TestAudit(DecoderAudit):
    suite = Speech

    def rounding(self, network: Any, precision: str) -> Any:
        return rounding(network, precision)

    def prompts(self, suite: Speech) -> list[Feed]:
        return list(map(suite.feeds(1, 0), range(3)))


@pytest.fixture(scope="module")
def audit() -> Audit:
    with torch.inference_mode():
        return audited(Speech("smoke", {}))


GATE = at_most(Speech("smoke", {}), "int4")


@pytest.mark.parametrize(
    "parts",
    [[f"{side}.layers.{layer}"] for side in ("encoder", "decoder") for layer in range(3)]
    + [["encoder.layers.2.self_attn"], ["decoder.layers.2.self_attn"], ["decoder.layers.2.encoder_attn"]],
    ids=lambda parts: parts[0],
)
def test_a_skipped_part_fails(audit: Audit, parts: list[str]) -> None:
    with skipped(audit[1], *parts):
        assert judged(audit) > 2 * GATE


def test_audio_that_was_not_heard_fails(audit: Audit) -> None:
    for kept in (slice(150), slice(None, None, 2)):
        with heard(audit[1], kept):
            assert judged(audit) > 1.5 * GATE
    encoder = part(audit[1], "encoder.layer_norm")
    with replaced(encoder, "forward", torch.zeros_like):
        assert judged(audit) > 5 * GATE
