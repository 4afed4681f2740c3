"""ResNet-50 is the public one, its drawn weights tell inputs apart, and its costs are what torch counts."""

from collections.abc import Mapping
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harness.contracts import Weights
from harness.errors import Unsupported
from suites.resnet50 import PARAMETERS, STAGES, ResNet50, noise, statistics
from suites.resnet50.calibrate import measure
from suites.resnet50.network import resnet50


def loaded(weights: Weights) -> nn.Module:
    network = resnet50().to_empty(device="cpu")
    for name, tensor in network.state_dict().items():
        weights.read(name, tensor.numpy())
    return network


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return loaded(ResNet50("smoke", {}).weights())


def logits(network: nn.Module, images: np.ndarray) -> Tensor:
    with torch.inference_mode():
        out: Tensor = network(torch.from_numpy(images))[0]
    return out


def test_names_and_size_are_those_of_the_public_checkpoint() -> None:
    network = resnet50()
    names = set(network.state_dict())
    assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS
    assert len(names) == 267  # torchvision's 320 without its 53 counters of batches
    assert {"conv1.weight", "bn1.running_var", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias", "fc.bias"} <= names


def _of_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under the names that transformers gives it."""
    renamed = {}
    for name, tensor in state.items():
        module, kind = name.rsplit(".", 1)
        *block, layer = module.split(".")
        if module == "fc":
            target = "classifier.1"
        elif not block:
            target = "resnet.embedder.embedder." + {"conv1": "convolution", "bn1": "normalization"}[module]
        else:
            where = f"resnet.encoder.stages.{int(block[0][5]) - 1}.layers.{block[1]}"
            if "downsample" in block:
                target = f"{where}.shortcut." + ("convolution", "normalization")[int(layer)]
            else:
                target = f"{where}.layer.{int(layer[-1]) - 1}." + (
                    "convolution" if layer.startswith("conv") else "normalization"
                )
        renamed[f"{target}.{kind}"] = tensor
    return renamed


def test_it_equals_transformers_resnet(network: nn.Module) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    state = network.state_dict()
    for name, tensor in state.items():  # biases too, which the drawn ones leave at zero
        if name.endswith("bias"):
            state[name] = torch.randn_like(tensor) / 8
    ours = resnet50()
    ours.load_state_dict(state, assign=True)
    config = ResNetConfig.from_dict({"depths": [blocks for blocks, _, _ in STAGES], "num_labels": 1000})
    with torch.device("meta"):
        theirs = ResNetForImageClassification(config)
    missing, unexpected = theirs.load_state_dict(_of_transformers(state), strict=False, assign=True)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)

    theirs.train(False)

    images = torch.from_numpy(noise(np.random.default_rng(0), 2, 96))
    with torch.inference_mode():
        ours_says, theirs_says = ours(images)[0], theirs(images).logits
    assert (ours_says - theirs_says).abs().max() <= 1e-4 * theirs_says.abs().max()


def test_different_images_get_different_classes(network: nn.Module) -> None:
    feed = next(ResNet50("smoke", {}).feeds(32, seed=1))
    assert len(set(logits(network, feed["images"]).argmax(1).tolist())) >= 30


def test_skipping_a_block_shows_more_than_bf16_does(network: nn.Module) -> None:
    images = next(ResNet50("smoke", {}).feeds(8, seed=2))["images"]
    reference = logits(network, images)

    def likeness(other: Tensor) -> float:
        """The least over the images of the correlation with the reference."""
        pairs = zip(reference, other.float(), strict=True)
        return min(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs)

    def rounded(_: nn.Module, __: object, out: Tensor) -> Tensor:
        return out.bfloat16().float()

    # In fp32 with every output rounded: few processors convolve in bf16 fast enough for a test.
    hooks = [layer.register_forward_hook(rounded) for name, layer in network.named_modules() if "." in name]
    honest = likeness(logits(network, images))
    for hook in hooks:
        hook.remove()
    gain = network.get_submodule("layer4.2.bn3").get_parameter("weight")
    kept = gain.detach().clone()
    gain.data.zero_()
    cheat = likeness(logits(network, images))  # of all blocks the one whose absence shows least
    gain.data.copy_(kept)
    assert cheat < 0.95 < 0.99 < honest


def test_shipped_statistics_are_those_of_the_drawn_weights() -> None:
    """Shuffling the channels of every batch norm takes the worst to 0.14 and 0.24."""
    shipped = statistics()
    for name, values in measure(images=4, seed=7).items():
        if "mean" in name:
            deviation = np.sqrt(shipped[name.replace("mean", "var")])
            assert np.median(np.abs(values - shipped[name]) / deviation) < 0.1, name
        else:
            assert np.median(np.abs(np.log(values / shipped[name]))) < 0.15, name


def test_shipped_statistics_survive_bf16() -> None:
    assert set(statistics()) == {name for name in resnet50().state_dict() if "running" in name}
    for values in statistics().values():
        assert np.array_equal(torch.from_numpy(values).bfloat16().float().numpy(), values)


def test_no_two_feeds_are_alike_and_a_seed_repeats_them() -> None:
    suite = ResNet50("smoke", {})
    feeds = [feed["images"] for feed in islice(suite.feeds(4, seed=3), 3)]
    again = [feed["images"] for feed in islice(suite.feeds(4, seed=3), 3)]
    assert all(np.array_equal(one, other) for one, other in zip(feeds, again, strict=True))
    assert len({image.tobytes() for feed in feeds for image in feed}) == 12
    assert np.abs(feeds[0].std((2, 3)) - 1).max() < 0.05


@pytest.mark.parametrize("tier", ["smoke", "edge"])
def test_flops_are_what_torch_counts(tier: str) -> None:
    suite = ResNet50(tier, {})
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        resnet50()(torch.empty(2, 3, suite.pixels, suite.pixels))
    (cost,) = suite.costs("fp32", 2)
    assert cost.flops == counter.get_total_flops()
    assert cost.bytes > suite.costs("int8", 2)[0].bytes > PARAMETERS


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(Unsupported, match="no tier 'huge'"):
        ResNet50("huge", {})
