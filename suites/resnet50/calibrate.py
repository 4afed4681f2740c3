"""Measures the statistics of the batch norms and writes them: `python -m suites.resnet50.calibrate`.

Run it after a change to the weights or the feeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from suites.resnet50 import STATISTICS, ResNet50


def measure(images: int = 64, tier: str = "edge", seed: int = 0) -> Mapping[str, npt.NDArray[np.float32]]:
    """running_mean and running_var by name, measured on one batch while all earlier layers normalise with theirs."""
    suite = ResNet50(tier, {})
    (graph,) = suite.graphs().values()
    network = graph.module().to_empty(device="cpu")
    weights = suite.uncalibrated()
    for name, tensor in network.state_dict().items():
        weights.read(name, tensor.numpy())
    with torch.inference_mode():
        network.train()(torch.from_numpy(suite.feeds(images, seed)(0)["images"]))
    return {name: tensor.numpy() for name, tensor in network.state_dict().items() if "running" in name}


def main() -> None:
    halves: dict[str, Any] = {}  # Any, because numpy declares savez's own keyword before the arrays
    for name, values in measure().items():
        bits = values.view(np.uint32)
        halves[name] = ((bits + 0x8000) >> 16).astype(np.uint16)  # rounds to the nearest bf16
    np.savez_compressed(STATISTICS, **halves)


if __name__ == "__main__":
    main()
