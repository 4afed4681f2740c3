"""Equal in numbers to transformers and diffusers, and every image its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.separation import activations
from bench.separation.diffusion import repeated, skipped, together
from bench.separation.networks import Network
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.suites.diffusion import TIERS, Diffusion, DiffusionShape, shapes
from mixmark.suites.diffusion.network import Denoise, DenoiseNoise
from mixmark.suites.diffusion.shapes import SD15_UNET, SD15_VAE, SDXL_UNET, TextShape, UNetShape, VaeShape
from mixmark.suites.diffusion.text_encoder import TextEncoder
from mixmark.suites.diffusion.unet import UNet
from mixmark.suites.diffusion.vae import Vae
from tests.fakes.audits import at_most
from tests.marks import sweep

# the public libraries warn about themselves and about each other on import and on use
WARN = ("ignore:::diffusers", "ignore:::transformers", "ignore:::torch.jit")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(*WARN)]


@pytest.fixture(scope="module")
def diffusers() -> Iterator[ModuleType]:
    """Slow to import; told to look nothing up on the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    yield pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def transformers() -> Iterator[ModuleType]:
    yield pytest.importorskip("transformers")


def relative_difference(ours: Any, peer: Any) -> float:
    return float((ours - peer).abs().max() / peer.abs().max())


def randomised(module: Any) -> Any:
    """Every parameter drawn, norms and biases too, so that none can be left out unseen."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        fan_in = max(1, parameter[0].numel())
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
    return module.eval()


def count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def random(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def prompts(vocabulary: int) -> Any:
    """Two prompts, the end of the text once in the middle and then to the end of the row."""
    ids = torch.randint(vocabulary - 1, (2, 77), generator=torch.Generator().manual_seed(3))
    ids[0, 20:] = ids[1, 40:] = vocabulary - 1
    return ids


SMALL_TEXT = TextShape(width=64, layers=3, heads=4, activation="quick_gelu", vocabulary=100)


def load_clip(peer: Any, ours: TextEncoder) -> None:
    """By the public files' names; transformers 5 dropped the `text_model.` of its own encoder without projection."""
    state = {name.removeprefix("text_model."): tensor for name, tensor in ours.state_dict().items()}
    own = {name.removeprefix("text_model."): name for name in peer.state_dict()}
    missing, _ = peer.load_state_dict({own[name]: tensor for name, tensor in state.items()}, strict=False)
    unused = [name for name in missing if "layers.2" not in name and "final_layer_norm" not in name]
    assert not [name for name in unused if "position_ids" not in name]


@pytest.mark.parametrize(
    "changes",
    [{}, {"penultimate": True}, {"activation": "gelu", "penultimate": True, "projection": 48}],
    ids=["SD 1.5's", "SDXL's first", "SDXL's second"],
)
def test_a_text_encoder_is_the_public_one(transformers: ModuleType, changes: dict[str, Any]) -> None:
    """CLIP, CLIP without its last layer, and OpenCLIP with its projection."""
    shape = replace(SMALL_TEXT, **changes)
    ours = randomised(TextEncoder(shape))
    whole = shape.projection or not shape.penultimate
    assert bool(whole) == any("layers.2" in name or "final" in name for name in ours.state_dict())
    kind = transformers.CLIPTextModelWithProjection if shape.projection else transformers.CLIPTextModel
    peer = kind(transformers.CLIPTextConfig(**shapes.text_config(shape), bos_token_id=0, eos_token_id=2)).eval()
    load_clip(peer, ours)
    ids = prompts(100)
    with torch.no_grad():
        context, *pooled = ours(ids)
        told = peer(ids, output_hidden_states=True)
    expected = [told.hidden_states[-2] if shape.penultimate else told.last_hidden_state]
    expected += [told.text_embeds] if shape.projection else []
    for own, public in zip((context, *pooled), expected, strict=True):
        assert relative_difference(own, public) < 1e-4


SMALL_SD15 = UNetShape(
    channels=(32, 64, 64),
    heads=(4, 4, 4),
    depths=(1, 1, 0),
    middle_depth=1,
    context=48,
    linear_projection=False,
    groups=8,
)
SMALL_SDXL = UNetShape(
    channels=(32, 64),
    heads=(2, 4),
    depths=(0, 2),
    middle_depth=2,
    context=48,
    linear_projection=True,
    pooled=40,
    groups=8,
)


@pytest.mark.parametrize("shape", [SMALL_SD15, SMALL_SDXL], ids=["SD 1.5's", "SDXL's"])
def test_the_unet_is_the_public_one(diffusers: ModuleType, shape: UNetShape) -> None:
    ours = randomised(UNet(shape))
    peer = diffusers.UNet2DConditionModel(**shapes.unet_config(shape, 16)).eval()
    peer.load_state_dict(ours.state_dict())
    latent, context, pooled, timestep = random(2, 4, 16, 16), random(2, 77, 48), random(2, 40), torch.tensor([501.0])
    sizes = torch.tensor([1024.0, 1024.0, 0.0, 0.0, 1024.0, 1024.0])
    with torch.no_grad():
        added = {"text_embeds": pooled, "time_ids": sizes.expand(2, -1)} if shape.pooled else None
        expected = peer(latent, timestep, context, added_cond_kwargs=added).sample
        own = ours(latent, timestep, context, *([pooled, sizes] if shape.pooled else []))
    assert relative_difference(own, expected) < 1e-4


SMALL_VAE = VaeShape(channels=(16, 32, 32), scaling=0.5, groups=8)


def test_the_vae_decodes_like_the_public_one(diffusers: ModuleType) -> None:
    ours = randomised(Vae(SMALL_VAE))
    peer = diffusers.AutoencoderKL(**shapes.vae_config(SMALL_VAE)).eval()
    missing, unexpected = peer.load_state_dict(ours.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith(("encoder.", "quant_conv.")) for name in missing)
    latent = random(2, 4, 8, 8)
    with torch.no_grad():
        assert relative_difference(ours(latent), peer.decode(latent / SMALL_VAE.scaling).sample) < 1e-4


def config(suite: Diffusion, part: str) -> dict[str, Any]:
    """A part of a suite's config."""
    return {name.removeprefix(f"{part}."): each for name, each in suite.config.items() if name.startswith(f"{part}.")}


@pytest.mark.parametrize("velocity", [False, True], ids=["noise", "velocity"])
@pytest.mark.parametrize("steps", [3, 4])
def test_a_guided_loop_ends_where_the_public_one_does(diffusers: ModuleType, steps: int, velocity: bool) -> None:
    """Their loop of U-Net, guidance and Euler steps against ours, whose latents are scaled between the steps."""
    guidance, size = 8.0, 128
    shape = DiffusionShape(SMALL_TEXT, None, SMALL_SDXL, SMALL_VAE, size, steps, guidance)
    ours = randomised((Denoise if velocity else DenoiseNoise)(shape))
    noise, context, pooled = random(1, 4, 16, 16), random(1, 2, 77, 48), random(1, 2, 40)
    scheduler = diffusers.EulerDiscreteScheduler(
        **config(Diffusion("smoke", {} if velocity else {"weights": "sdxl"}), "scheduler")
    )
    scheduler.set_timesteps(steps)
    peer = diffusers.UNet2DConditionModel(**shapes.unet_config(SMALL_SDXL, 16)).eval()
    peer.load_state_dict(ours.unet.state_dict())
    added = {"text_embeds": pooled[0], "time_ids": torch.tensor([[size, size, 0, 0, size, size]] * 2)}
    latent, step, expected = noise, torch.zeros(1, dtype=torch.int64), noise * (scheduler.sigmas[0] ** 2 + 1) ** 0.5
    with torch.no_grad():
        for timestep in scheduler.timesteps:
            latent, step = ours(latent, step, context, pooled)
            scaled = scheduler.scale_model_input(expected, timestep).expand(2, -1, -1, -1)
            unconditional, own = peer(scaled, timestep, context[0], added_cond_kwargs=added).sample
            predicted = unconditional + guidance * (own - unconditional)
            expected = scheduler.step(predicted[None], timestep, expected).prev_sample
    assert step.tolist() == [steps]
    assert relative_difference(latent, expected) < 1e-4


def test_the_published_parameter_counts(diffusers: ModuleType) -> None:
    with torch.device("meta"):
        assert count(TextEncoder(shapes.CLIP_L)) == 123_060_480
        assert count(UNet(SD15_UNET)) == 859_520_964
        assert count(UNet(SDXL_UNET)) == 2_567_463_684
        peer = diffusers.AutoencoderKL(**shapes.vae_config(SD15_VAE))
        assert count(Vae(SD15_VAE)) == count(peer.decoder) + count(peer.post_quant_conv)


@pytest.mark.parametrize("tier", TIERS)
def test_the_cost_model_counts_every_weight(tier: str) -> None:
    suite = Diffusion(tier, {})
    shape = suite.shape
    texts = [text for text in (shape.text, shape.text_2) if text]
    counts = {name: count(graph.module()) for name, graph in suite.graphs().items()}
    assert counts == {
        "encode": sum(shapes.text_encoder(text).weights for text in texts),
        "denoise": shapes.unet(shape.unet, shape.latent_size).weights,
        "decode": shapes.vae_decoder(shape.vae, shape.latent_size).weights,
    }


class Shapes:
    """A session in torch on the meta device: it computes shapes alone."""

    def __init__(self, suite: Diffusion) -> None:
        self.modules = {name: graph.module() for name, graph in suite.graphs().items()}

    def put(self, array: Array) -> Any:
        return torch.from_numpy(array).to("meta")

    def state(self, graph: str) -> Any:
        raise AssertionError("no graph of diffusion has a state")

    def run(self, graph: str, *inputs: Any, state: Any = None) -> list[Any]:
        return list(self.modules[graph](*inputs))

    def get(self, tensor: Any) -> Array:
        return np.zeros(tensor.shape, np.float32)


def correlation(one: Array, other: Array) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


@pytest.fixture(scope="module")
def smoke() -> tuple[Any, Network]:
    suite: Any = Diffusion("smoke", {})
    return suite, Network(suite)


@pytest.mark.parametrize("part", ["ids", "noise"])
def test_the_image_depends_on_the_prompt_and_on_the_noise(smoke: tuple[Any, Network], part: str) -> None:
    suite, session = smoke
    one, other = map(suite.feeds(1, seed=1), range(2))
    assert correlation(session(one), session({**one, part: other[part]})) < 0.9


def test_a_batch_is_its_samples(smoke: tuple[Any, Network]) -> None:
    suite, session = smoke
    feed = suite.feeds(2, seed=1)(0)
    both = session(feed)
    second = session({name: array[1:] for name, array in feed.items()})
    np.testing.assert_allclose(both[1:], second, atol=1e-3 * np.abs(both).max())


@pytest.fixture(scope="module")
def answered(smoke: tuple[Any, Network]) -> list[tuple[Feed, Array]]:
    """Feeds of two prompts and their images in fp32."""
    suite, session = smoke
    return [(feed, session(feed)) for feed in map(suite.feeds(2, seed=1), range(2))]


def test_bf16_passes_the_gate(smoke: tuple[Any, Network], answered: list[tuple[Feed, Array]]) -> None:
    suite, _ = smoke
    session = Network(suite, torch.bfloat16)
    for feed, image in answered:
        assert 0 < suite.quality(session(feed), image) < at_most(suite, "bf16")


@pytest.mark.parametrize(
    ("graph", "branch", "declared"),
    [
        ("encode", "text_encoder.text_model.encoder.layers.1", "int8"),
        ("denoise", "unet.down_blocks.1.resnets.0", "fp8"),
        ("denoise", "unet.mid_block.attentions.0", "int4"),
        ("decode", "vae.decoder.mid_block.resnets.0", "fp8"),
        ("encode", "text_encoder_2.text_model.encoder.layers.2", "bf16"),  # what 8 bits round as much as
        ("denoise", "unet.mid_block.resnets.1", "bf16"),
        ("denoise", "unet.up_blocks.0.resnets.1", "bf16"),
    ],
)
def test_a_branch_that_is_left_out_fails_the_gate(
    smoke: tuple[Any, Network], answered: list[tuple[Feed, Array]], graph: str, branch: str, declared: str
) -> None:
    suite, session = smoke
    (feed, image), _ = answered
    with skipped(session.modules[graph].get_submodule(branch)):
        assert suite.quality(session(feed), image) > at_most(suite, declared)


def test_every_step_counts(smoke: tuple[Any, Network], answered: list[tuple[Feed, Array]]) -> None:
    """The last one's prediction is taken from the step before."""
    suite, session = smoke
    (feed, image), _ = answered
    unet = session.modules["denoise"].get_submodule("unet")
    with repeated(unet, {suite.shape.steps - 1}):
        assert suite.quality(session(feed), image) > at_most(suite, "fp8")


def test_int8_passes_the_gate(smoke: tuple[Any, Network], answered: list[tuple[Feed, Array]]) -> None:
    """With a scale for each row. With one for each tensor, some processors come within a tenth of the gate."""
    suite, session = smoke
    (feed, image), _ = answered
    with together([activations(module, "int8") for module in session.modules.values()]):
        assert 0 < suite.quality(session(feed), image) < min(at_most(suite, "int8"), at_most(suite, "int4"))


def test_an_image_that_did_not_come_from_the_feed_fails(
    smoke: tuple[Any, Network], answered: list[tuple[Feed, Array]]
) -> None:
    suite, _ = smoke
    (_, before), (_, image) = answered
    assert suite.quality(before, image) > 1
    for constant in (np.zeros_like(image), np.full_like(image, image.mean()), np.broadcast_to(before[:1], image.shape)):
        assert suite.quality(constant.astype(np.float32), image) > 4 * at_most(suite, "fp8")


def test_the_worst_image_of_a_feed_decides(smoke: tuple[Any, Network], answered: list[tuple[Feed, Array]]) -> None:
    suite, _ = smoke
    (_, before), (_, image) = answered
    assert suite.quality(np.stack([image[0], before[1]]), image) == suite.quality(before[1:], image[1:])


def test_a_checkpoint_predicts_noise_by_a_graph_of_its_own() -> None:
    drawn, trained = Diffusion("smoke", {}), Diffusion("smoke", {"weights": "sdxl"})
    assert drawn.graphs()["denoise"].module().velocity
    assert not trained.graphs()["denoise"].module().velocity
    assert not list((drawn.home / "graphs").glob("*-denoise-noise*"))
    assert drawn.graphs().keys() == trained.graphs().keys()


def test_noises_do_not_resemble_each_other_and_prompts_have_their_marks() -> None:
    feeds = list(map(Diffusion("smoke", {}).feeds(2, seed=1), range(9)))
    noises = np.stack([feed["noise"] for feed in feeds]).reshape(18, -1)
    assert np.abs(np.corrcoef(noises) - np.eye(18)).max() < 0.35  # of 256 values each: drawn whole, and not altered
    assert all((feed["ids"][..., 0] == 1022).all() and (feed["ids"][..., -1] == 1023).all() for feed in feeds)


def in_one_step(tier: str) -> Diffusion:
    """The other steps are the same graph again."""
    suite = Diffusion(tier, {})
    suite.shape = replace(suite.shape, steps=1)
    return suite


def test_each_step_is_counted() -> None:
    one, all_steps = in_one_step("server"), Diffusion("server", {})
    unet = shapes.unet(SDXL_UNET, 128).flops
    assert all_steps.costs("fp16", 1)[0].flops - one.costs("fp16", 1)[0].flops == 19 * 2 * unet


@pytest.mark.parametrize("tier", TIERS)
def test_the_least_work_has_the_keys_and_values_of_the_prompt_once(tier: str) -> None:
    suite = Diffusion(tier, {})
    shape = suite.shape
    denoise = suite.graphs()["denoise"].module()
    layers = [layer for name, layer in denoise.named_modules() if name.endswith(("attn2.to_k", "attn2.to_v"))]
    assert shapes.prompt_projections(shape.unet).weights == sum(count(layer) for layer in layers)
    one, all_steps = (each.costs("fp16", 1)[0].min_flops or 0 for each in (in_one_step(tier), suite))
    again = shapes.unet(shape.unet, shape.latent_size).min_flops - shapes.prompt_projections(shape.unet).flops
    assert all_steps - one == (shape.steps - 1) * shape.prompts * again


def test_narrower_weights_take_fewer_bytes_and_a_batch_shares_them() -> None:
    suite = Diffusion("edge", {})
    bytes_of = {bits: suite.costs(bits, 1)[0].bytes for bits in ("fp32", "fp16", "int4")}
    assert bytes_of["fp32"] == pytest.approx(2 * bytes_of["fp16"], rel=0.01)
    assert bytes_of["int4"] < 0.27 * bytes_of["fp16"]
    assert suite.costs("fp16", 8)[0].bytes < 1.02 * bytes_of["fp16"]


@pytest.mark.parametrize("tier", sweep(*TIERS))
def test_the_cost_is_what_torch_counts_and_the_least_leaves_out_what_winograd_does(tier: str) -> None:
    """Three quarters of the modules' own convolutions; what is left out but for them is the prompt's part of later
    steps."""
    suite = in_one_step(tier)
    sizes: dict[Any, int] = {}
    session = Shapes(suite)
    for module in session.modules.values():
        for layer in module.modules():
            if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size == (3, 3) and layer.stride == (1, 1):

                def count_flops(layer: Any, _: Any, output: Any) -> None:
                    sizes[layer] = 2 * layer.weight[0].numel() * output.numel()

                layer.register_forward_hook(count_flops)
    with FlopCounterMode(display=False) as counter:
        list(suite.infer(session, suite.feeds(1, seed=1)(0)))
    (cost,) = suite.costs("fp16", 1)
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert cost.min_flops is not None
    assert cost.flops - cost.min_flops == pytest.approx(0.75 * sum(sizes.values()), rel=1e-6)


@pytest.mark.parametrize("tier", TIERS)
def test_what_is_streamed_is_read_and_does_not_fit_a_quarter_of_it(tier: str) -> None:
    """An accused engine would else be one that keeps the U-Net in its cache."""
    suite = Diffusion(tier, {})
    (cost,) = suite.costs("int8", 1)
    assert cost.streamed_bytes < cost.bytes
    if tier != "smoke":
        assert shapes.unet(suite.shape.unet, suite.shape.latent_size).weights > cost.streamed_bytes / 4


def test_every_tensor_of_every_tier_has_a_gain() -> None:
    named: Mapping[str, tuple[int, ...]] = {
        name: tuple(tensor.shape)
        for tier in TIERS
        for graph in Diffusion(tier, {}).graphs().values()
        for name, tensor in graph.module().state_dict().items()
    }
    assert {name for name, shape in named.items() if isinstance(Diffusion("smoke", {}).fill(name, shape), float)} == {
        name for name in named if "norm" in name and name.endswith(".weight")
    }


@pytest.mark.parametrize("tier", ["smoke", "edge"])
def test_the_config_builds_the_public_networks(diffusers: ModuleType, transformers: ModuleType, tier: str) -> None:
    suite = Diffusion(tier, {})
    weights = suite.weights()
    with torch.device("meta"):
        peers = {
            "unet": diffusers.UNet2DConditionModel(**config(suite, "unet")),
            "vae": diffusers.AutoencoderKL(**config(suite, "vae")),
        }
        for part in ("text_encoder", "text_encoder_2")[: 1 + bool(suite.shape.text_2)]:
            text = transformers.CLIPTextConfig(**config(suite, part))
            peers[part] = transformers.CLIPTextModelWithProjection(text)
    public = {f"{part}.{name}": each.shape for part, peer in peers.items() for name, each in peer.state_dict().items()}
    ours = {name: weights.spec(name).shape for name in weights.names()}
    assert ours == {name: tuple(public[name]) for name in ours}
    assert all("encoder" in name or "quant_conv" in name for name in public.keys() - ours), (
        "the VAE's, or an end of one"
    )
    assert suite.config["_class_name"] == ("StableDiffusionPipeline" if tier == "edge" else "StableDiffusionXLPipeline")
