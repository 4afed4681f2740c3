"""ResNet-50 is the public one, its synthetic weights tell inputs apart, and its costs are what torch counts."""

from collections.abc import Mapping
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bench.separation import GROUP, activations, integers
from bench.separation.resnet50 import BLOCKS, Eager, changed, loaded, skipped
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import WeightClass, weight_class
from mixmark.harness.contracts.weights import read_weight
from mixmark.suites.limits import unexplained_variance
from mixmark.suites.resnet50 import AT_MOST, GREY, PARAMETERS, SCALE, ArrayPool, ResNet50, statistics
from mixmark.suites.resnet50.network import BatchNorm, ResNet
from tests.fakes.audits import at_most
from tests.marks import sweep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return loaded(ResNet50("smoke", {}).weights())


def logits(network: nn.Module, images: np.ndarray) -> Tensor:
    with torch.inference_mode():
        out: Tensor = network(torch.from_numpy(images))[0]
    return out


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
    ours = ResNet().eval()
    ours.load_state_dict(state, assign=True)
    config = ResNetConfig.from_dict(dict(ResNet50("edge", {}).config))
    with torch.device("meta"):
        peer = ResNetForImageClassification(config)
    missing, unexpected = peer.load_state_dict(_of_transformers(state), strict=False, assign=True)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)

    peer.train(False)

    images = torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8)
    with torch.inference_mode():
        ours_says, expected = ours(images)[0], peer((images.float() - GREY) / SCALE).logits
    assert (ours_says - expected).abs().max() <= 1e-4 * expected.abs().max()


SUITE = ResNet50("smoke", {})
FEED, NEXT = map(SUITE.feeds(8, seed=2), range(2))


def output(network: nn.Module, feed: Feed = FEED) -> Array:
    return np.concatenate(list(SUITE.infer(Eager(network), feed)))


@pytest.fixture(scope="module")
def reference(network: nn.Module) -> Array:
    given = {**FEED, "output": output(network)}
    return np.concatenate(list(SUITE.reference().infer(Eager(network), given)))


def passes(output: Array, reference: Array, declared: str = "fp8") -> bool:
    return SUITE.quality(output, reference) <= at_most(SUITE, declared)


@pytest.mark.parametrize(
    ("rounding", "declared"), [("bf16", "bf16"), ("fp8", "fp8"), ("int8-tensor", "int8"), ("int8-tensor", "int4")]
)
def test_rounding_passes(network: nn.Module, reference: Array, rounding: str, declared: str) -> None:
    """In fp32 with what goes into every layer rounded: few processors convolve in bf16 fast enough for a test."""
    with activations(network, rounding):
        assert passes(output(network), reference, declared)


def test_fewer_bits_than_declared_fail(network: nn.Module, reference: Array) -> None:
    with activations(network, "fp8"):
        assert not passes(output(network), reference, "bf16")


@pytest.mark.parametrize(("bits", "declared"), sweep((8, "bf16"), (4, "bf16"), (4, "int8")))
def test_weights_of_fewer_bits_than_declared_fail(bits: int, declared: str) -> None:
    suite = ResNet50("smoke", {}, weight_class(declared))
    network = loaded(suite.weights())
    reference = np.concatenate(list(suite.reference().infer(Eager(network), FEED)))
    with changed(network, partial(integers, bits=bits, group=None if bits == 8 else GROUP)):
        wrong = output(network)
    assert not passes(wrong, reference, declared)


@pytest.mark.parametrize("block", sweep(*BLOCKS))
def test_a_skipped_block_fails(network: nn.Module, reference: Array, block: str) -> None:
    with skipped(network, block):
        wrong = output(network)
    assert not any(passes(wrong, reference, declared) for declared in ("bf16", "fp8", "int8", "int4"))
    assert passes(output(network), reference)


def test_outputs_that_do_not_depend_on_the_feed_fail(network: nn.Module, reference: Array) -> None:
    mean = np.repeat(reference[-1:], 8, 0)
    assert SUITE.quality(mean, reference) == pytest.approx(1)
    assert SUITE.quality(np.zeros_like(mean), reference) > 0.9
    assert not passes(output(network, NEXT), reference)


def test_one_wrong_image_decides(network: nn.Module, reference: Array) -> None:
    wrong = output(network)
    wrong[5] = wrong[4]
    assert not passes(wrong, reference)


@pytest.mark.parametrize("bits", sweep(*get_args(WeightClass)))
def test_shipped_statistics_are_those_of_the_drawn_weights(bits: WeightClass) -> None:
    """Images that the calibration has not seen leave every batch norm centred and, over its channels, of power 1."""
    suite = ResNet50("edge", {}, bits)
    network = loaded(suite.weights())
    seen: list[tuple[float, float]] = []

    def look(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(norm, BatchNorm)
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3))
        off = (mean - norm.running_mean) / variance.sqrt()
        seen.append((float(off.abs().median()), float((variance / norm.running_var).mean())))

    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.register_forward_pre_hook(look)
    with torch.inference_mode():
        network(torch.from_numpy(suite.feeds(4, seed=7)(0)["images"]))
    offs, powers = zip(*seen, strict=True)
    assert len(seen) == 53
    assert max(offs) < 0.1
    assert 0.8 < min(powers) <= max(powers) < 1.25


@pytest.mark.parametrize("bits", get_args(WeightClass))
def test_batch_norms_fold_exactly_into_the_convolutions_before_them(bits: WeightClass) -> None:
    """Each channel's factor is a power of two and its shift a bf16, as far as fp32 tells."""
    assert set(statistics(bits)) == {name for name in ResNet().state_dict() if "running" in name}
    weights = ResNet50("edge", {}, bits).weights()
    for norm in (name.removesuffix(".running_var") for name in statistics(bits) if name.endswith("_var")):
        gain, shift, mean, variance = (
            read_weight(weights, f"{norm}.{part}") for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + np.float32(1e-5))
        np.testing.assert_allclose(factor, np.exp2(np.log2(factor).round()), rtol=1e-6)
        folded = shift - factor * mean
        rounded = torch.from_numpy(folded).bfloat16().float().numpy()
        np.testing.assert_allclose(folded, rounded, rtol=1e-5, atol=1e-6)


def test_images_are_bytes_of_even_contrast_and_differ_as_patterns_do() -> None:
    """No byte overflows, which would show as the largest of all differences between neighbours."""
    images = ResNet50("smoke", {}).feeds(300, seed=3)(0)["images"]
    assert images.dtype == np.uint8
    values = (images.astype(np.float32) - GREY) / SCALE
    assert abs(float(values.mean())) < 0.01 and float(values.var()) == pytest.approx(1, rel=0.05)
    assert 0.7 < values.std((1, 2, 3)).min() < values.std((1, 2, 3)).max() < 1.4
    assert np.abs(np.diff(values[:, :, 1:], axis=2)).max() < 6
    alike = np.abs(np.corrcoef(values.reshape(300, -1)) - np.eye(300))
    assert alike.max() < 0.9 and alike.mean() < 0.2


def test_patterns_at_another_place_have_other_logits(network: nn.Module) -> None:
    """Or else the logits of an image could be kept for those that are made of the same patterns."""
    images = ResNet50("smoke", {}).feeds(16, seed=4)(0)["images"]
    says = [logits(network, np.roll(images, by, axis=2)).numpy() for by in (0, 1)]
    centre = says[0].mean(0)
    assert unexplained_variance(says[1], says[0], centre).min() > AT_MOST["fp8"]


@pytest.mark.parametrize("tier", ["smoke", "edge"])
def test_flops_are_what_torch_counts_and_winograd_takes_a_quarter_of_a_3x3_convolution(tier: str) -> None:
    suite = ResNet50(tier, {})
    clever = 0

    def count(layer: nn.Conv2d, _: object, out: Tensor) -> None:
        nonlocal clever
        if layer.kernel_size == (3, 3) and layer.stride == (1, 1):
            clever += 2 * out.numel() * layer.in_channels * 9

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network = ResNet().eval()
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(count)
        network(torch.empty(2, 3, suite.shape, suite.shape, dtype=torch.uint8))
    (cost,) = suite.costs("fp32", 2)
    assert cost.flops == counter.get_total_flops()
    assert cost.bytes > suite.costs("int8", 2)[0].bytes > PARAMETERS == suite.costs("int8", 2)[0].streamed_bytes
    assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS
    assert clever > 0.3 * cost.flops
    assert cost.min_flops == cost.flops - clever * 3 / 4


def test_memory_is_used_again_once_no_view_of_it_is_held() -> None:
    memory = ArrayPool((4, 8), np.uint8)
    first = memory()
    at = first.ctypes.data
    part = first.reshape(8, 4)[1:]
    second = memory()
    assert not np.shares_memory(first, second)
    del first
    third = memory()  # `part` is held still
    assert not np.shares_memory(part, third)
    del part
    assert memory().ctypes.data == at
    assert third.shape == (4, 8) and third.dtype == np.uint8
