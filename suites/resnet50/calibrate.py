"""Measures the statistics of the batch norms and writes them: `python -m mixmark.suites.resnet50.calibrate`.

Run it after a change to the weights or the feeds.

Fast engines fold a batch norm into the convolution before it. With an arbitrary factor for a channel, the folded
weights would not be exact in the bits of their class, and their rounding error, which is the same at every position of
an image, would be 20 times as large as the activations'. So the variance of a channel is changed such that its factor
becomes one of the two neighbouring powers of two. The two alternate over the channels so that the mean power of all
channels stays; otherwise one block would weigh twice as much as another. The mean is changed by less than the rounding
of bf16, such that the folded bias is exact in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.resnet50 import ResNet50, statistics_file
from mixmark.suites.resnet50.network import BatchNorm
from mixmark.suites.weights import Synthetic

EPSILON = 1e-5  # torch's default for a batch norm


def measure(
    weight_class: WeightClass, images: int = 64, tier: str = "edge", seed: int = 0
) -> Mapping[str, npt.NDArray[np.float32]]:
    """running_mean and running_var by name, measured on one batch; earlier layers already use the new statistics."""
    suite = ResNet50(tier, {}, weight_class)
    (graph,) = suite.graphs().values()
    network = graph.module().to_empty(device="cpu")
    weights = Synthetic(suite.name, suite.specs(), suite.fill, weight_class)
    for name, tensor in network.state_dict().items():
        weights.read(name, tensor.numpy())
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.register_forward_pre_hook(_calibrate)
    with torch.inference_mode():
        network(torch.from_numpy(suite.feeds(images, seed)(0)["images"]))
    return {name: tensor.numpy() for name, tensor in network.state_dict().items() if "running" in name}


def _calibrate(norm: BatchNorm, inputs: tuple[Tensor]) -> None:
    """Sets the statistics of a batch norm to its input's statistics, changed such that folding is exact."""
    x = inputs[0].double()
    weight, bias = norm.weight.double(), norm.bias.double()
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    wanted = weight / torch.sqrt(variance + EPSILON)
    below = torch.exp2(torch.log2(wanted).floor())
    doubled = torch.cumsum((wanted / below) ** 2 / 3 - 1 / 3, 0)  # the number of channels with the upper power so far
    factor = torch.where(torch.diff((doubled + 0.5).floor(), prepend=torch.zeros(1)) > 0, 2 * below, below)
    folded = (bias - mean * factor).bfloat16().double()
    norm.running_var.copy_((weight / factor) ** 2 - EPSILON)
    norm.running_mean.copy_((bias - folded) / factor)


def main() -> None:
    for weight_class in get_args(WeightClass):
        # Any, because numpy declares a keyword of savez before the arrays
        statistics: dict[str, Any] = dict(measure(weight_class))
        np.savez_compressed(statistics_file(weight_class), **statistics)


if __name__ == "__main__":
    main()
