"""ResNet-50 v1.5 image classification, state-dict compatible with torchvision's checkpoint.

A deep residual network with random weights is chaotic: with unit gain on its branches, an honest bf16 run would be as
far from the reference as a run that skips a block. So biases and gains are chosen such that rounding errors grow little
from layer to layer and leaving out a block is detected (`fill`). The running statistics of the batch norms were
measured once on images of this suite, changed slightly so that folding them into the convolutions is exact, and
shipped for each weight class, because a new measurement would differ from machine to machine. `calibrate.py` writes
them.
"""

from __future__ import annotations

import io
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Session, Spec, Suite, Value, Weights
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames, WeightClass
from mixmark.suites import onnx_graphs
from mixmark.suites.limits import MS, SECOND, check_output, mlperf_limits, own_limits, tier_limits, unexplained_variance
from mixmark.suites.tiered import FixedSamples, Tiered
from mixmark.suites.weights import Draw, Fill, generator

if TYPE_CHECKING:
    from torch import nn

HOME = Path(__file__).parent

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""The stages, each as (blocks, width, stride of the first block)."""
EXPANSION = 4
CLASSES = 1000
PARAMETERS = 25_557_032

PIXELS = {"smoke": 64, "edge": 224, "server": 224}
POOL = 32  # patterns of noise made before the window; each image is the sum of two patterns
TINT = (0.3, 0.9, 1.45)  # the strengths of a pattern in the three channels, in any order and with any signs
GREY, SCALE = 128, 16  # a pixel of value v enters the network as (v − GREY) / SCALE, which is exact in every format

BRANCH_GAINS = {"layer1": 0.4, "layer2": 0.45, "layer3": 0.55, "layer4": 0.65}
"""The gain of a block's normalised branch; it grows with the stage, so that skipped blocks have similar effects."""

FIXED = 16  # images whose mean logits are the centre of the metric

SAMPLES = 8  # minimum number of images per audit
AT_MOST = {"16 bits": 0.0025, "fp8": 0.3, "int8": 0.12, "int4": 0.12}
"""Gates by the declared precision, from docs/separation.md. Edge and server share a network."""

LATENCY = tier_limits(own_limits(total_ns=2 * SECOND), mlperf_limits(total_ns=15 * MS))
"""Limits of the server scenario; the server tier has MLPerf's limit for resnet50."""


class ResNet50(Tiered):
    """Vision: ResNet-50 v1.5."""

    name = "resnet50"
    version = "3"
    unit = "image"
    unit_names = UnitNames(short="img", work="images classified")
    scenarios: Sequence[str] = ("offline", "single-stream", "server")

    shapes, latencies, samples = PIXELS, LATENCY, SAMPLES
    metric = "unexplained variance of an image's logits"
    gates = dict.fromkeys(PIXELS, AT_MOST)
    trained = 0.2
    """The gate of a checkpoint: unmeasured. The effect of a skipped block in a trained network is unknown."""
    shape: int
    """The pixels of an image's side."""

    @property
    def config(self) -> Mapping[str, Value]:
        """As in transformers' ResNetConfig; the weights keep torchvision's names."""
        return {
            "model_type": "resnet",
            "layer_type": "bottleneck",
            "hidden_act": "relu",
            "num_channels": 3,
            "image_size": self.shape,
            "embedding_size": 64,
            "depths": tuple(blocks for blocks, _, _ in STAGES),
            "hidden_sizes": tuple(EXPANSION * width for _, width, _ in STAGES),
            "downsample_in_first_stage": False,
            "downsample_in_bottleneck": False,
            "num_labels": CLASSES,
        }

    def weights(self) -> Weights:
        weights = super().weights()
        return weights if "weights" in self.options else Calibrated(weights, statistics(self.weight_class))

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """The gain or constant of each tensor, chosen so that a skipped block exceeds rounding errors by far.

        Rounding errors must be small at their origin and grow little from layer to layer. A ReLU of normalised values
        with mean 0 amplifies a small relative error by 1.47 in variance; with a positive mean it clips less and
        amplifies less. So the biases before ReLUs are positive. They are not so large that the mean outweighs the
        variance: only the variance distinguishes images, while the rounding error of a floating-point format is
        proportional to both. The stem's bias is negative, because the max pooling over 3×3 positions after it raises
        the mean. The shortcut of the last stage has no bias, because the average over positions after it reduces the
        variance and not the mean.
        """
        if len(size) > 1:
            return Draw(math.sqrt(2))
        match name.split("."):
            case ["bn1", "bias"]:
                return -1.0
            case [_, _, "bn1" | "bn2", "bias"]:
                return 2.0
            case ["layer1" | "layer2" | "layer3", _, "downsample", "1", "bias"]:
                return 1.0
            case [stage, _, "bn3", "weight"]:
                return BRANCH_GAINS[stage]
        return 0.0 if name.endswith("bias") else 1.0

    def graphs(self) -> Mapping[str, Graph]:
        inputs = {"images": Spec(("batch", 3, self.shape, self.shape), "uint8")}
        return {"classify": self.graph("classify", inputs, {}, {"logits": Spec(("batch", CLASSES))})}

    def network(self, graph: str, module: Any) -> nn.Module:
        network: nn.Module = module.ResNet()  # of one size at all tiers
        return network

    def feeds(self, batch: int, seed: int) -> Feeds:
        """Images of tinted 1/f noise, `images` [batch, 3, pixels, pixels] uint8.

        They have the spectrum of photographs, and correlated channels. An image is the sum of two patterns of the pool.
        Each pattern has a random roll and one of 48 equally strong tints. A network that averages over positions may
        ignore a roll of the whole image, but not the relative position of two patterns. There are 496 pairs, 48² tints
        and pixels² relative positions, so no image repeats, rolled or not.

        The pool has each pattern in each possible strength of a channel, halved, so a channel is one addition of bytes.
        A roll is a contiguous part of the repeated pattern. Its rows begin in the middle of a pattern's row, so to the
        right of the seam they continue with the pattern's next row.
        """
        side, area = self.shape, self.shape**2
        pattern = patterns(generator("resnet50/pool", seed), POOL, side).reshape(POOL, 1, area)
        strengths = np.array([*TINT, *(-part for part in TINT)], np.float32) * (SCALE / math.sqrt(2))
        halves = np.rint(pattern * strengths[:, None] + GREY / 2).clip(0, GREY - 1).astype(np.uint8)
        halves = np.tile(halves, 2)
        memory = ArrayPool((batch, 3, area), np.uint8)

        def feed(nonce: int) -> Feed:
            random = generator("resnet50/feed", seed, nonce)
            first = random.integers(POOL, size=batch)
            pairs = np.stack((first, (first + random.integers(1, POOL, size=batch)) % POOL), 1)
            begins = random.integers(area, size=(batch, 2))
            tints = random.random((2, batch, 3), np.float32).argsort(2) + random.integers(2, size=(2, batch, 3)) * 3
            images = memory()
            for image, (i, j), (a, b), first_tint, second_tint in zip(
                images, pairs.tolist(), begins.tolist(), *tints.tolist(), strict=True
            ):
                for channel, k, m in zip(image, first_tint, second_tint, strict=True):
                    np.add(halves[i, k, a : a + area], halves[j, m, b : b + area], out=channel)
            return {"images": images.reshape(batch, 3, side, side)}

        return feed

    def units(self, batch: int) -> int:
        return batch

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        (logits,) = session.run("classify", session.put(feed["images"]))
        yield session.get(logits)

    def reference(self) -> Suite:
        """Yields a feed's logits and then the mean logits over inputs."""
        return FixedSamples(self, FIXED, lambda logits: logits.mean(0, keepdims=True))

    def quality(self, output: Array, reference: Array) -> float:
        """The unexplained variance of the worst image.

        output: [images, 1000] float32. reference: [images + 1, 1000] float32, the last row being the centre.
        """
        *_, centre = reference
        return float(unexplained_variance(check_output(output, reference[:-1].shape), reference[:-1], centre).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The cost of one batch.

        FLOPs: convolutions and the last layer; ReLU, pooling, additions and batch norm, which is folded into the
        convolutions, are not counted. Bytes: the weights once, a byte a pixel and channel, the logits as float32;
        activations between layers may stay in a cache.
        """
        weights = PARAMETERS * BITS_PER_WEIGHT[precision] / 8
        ends = batch * (3 * self.shape**2 + 4 * CLASSES)
        cost = Cost(
            name="classify",
            flops=batch * _flops(self.shape),
            bytes=weights + ends,
            min_flops=batch * _flops(self.shape, winograd=1 / 4),
            streamed_bytes=weights,
        )
        return (cost,)


def _flops(pixels: int, winograd: float = 1) -> float:
    """FLOPs of one image; `winograd` is the fraction of multiplications that a 3×3 convolution of stride 1 needs."""
    side = pixels // 2
    macs: float = side**2 * 64 * 3 * 7**2
    side //= 2
    channels = 64
    for blocks, width, stride in STAGES:
        leaving = EXPANSION * width
        for index in range(blocks):
            macs += side**2 * channels * width
            if not index:
                side //= stride
                macs += side**2 * channels * leaving
            strided = stride > 1 and not index
            macs += side**2 * width * (9 * width * (1 if strided else winograd) + leaving)
            channels = leaving
    return 2 * (macs + channels * CLASSES)


def patterns(random: np.random.Generator, count: int, pixels: int) -> npt.NDArray[np.float32]:
    """Periodic fields of 1/f noise with mean 0 and variance 1: [count, pixels, pixels]."""
    frequency = np.hypot(np.fft.fftfreq(pixels)[:, None], np.fft.rfftfreq(pixels))
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(random.standard_normal((count, pixels, pixels), np.float32)) / frequency
    fields = np.fft.irfft2(spectrum, (pixels, pixels))
    return np.asarray(fields / fields.std((1, 2), keepdims=True), np.float32)


def statistics_file(weight_class: WeightClass) -> Path:
    return HOME / f"statistics-{weight_class}.npz"


@cache
def statistics(weight_class: WeightClass) -> Mapping[str, npt.NDArray[np.float32]]:
    """running_mean and running_var of each batch norm by name, as `calibrate.py` wrote them."""
    with np.load(io.BytesIO(onnx_graphs.read_shipped(statistics_file(weight_class)))) as stored:
        return {name: stored[name] for name in stored.files}


@dataclass(frozen=True)
class Calibrated:
    """Synthetic weights whose running statistics are replaced by the measured ones."""

    weights: Weights
    statistics: Mapping[str, npt.NDArray[np.float32]]

    def names(self) -> Sequence[str]:
        return self.weights.names()

    def spec(self, name: str) -> Spec:
        return self.weights.spec(name)

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        if name in self.statistics:
            into[...] = self.statistics[name]
        else:
            self.weights.read(name, into)


UNUSED = 3  # references to an array that is free: the pool's list, the loop over it, and the call of getrefcount


class ArrayPool:
    """Arrays of one shape and type. An array is handed out again once no reference to it or to a view of it is left.

    A fresh page costs as much time as the bytes that a feed writes into it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._shape, self._dtype = shape, dtype
        self._lock = threading.Lock()
        self._arrays: list[Array] = []

    def __call__(self) -> Array:
        """An array with arbitrary values. It is a view: it and all views of it refer to the array in the list."""
        with self._lock:
            for array in self._arrays:
                if sys.getrefcount(array) == UNUSED:
                    return array[:]
            self._arrays.append(np.empty(self._shape, self._dtype))
            return self._arrays[-1][:]
