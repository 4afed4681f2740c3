"""Rotary positions with Llama 3's scaling, from a suite's config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def frequencies(config: Mapping[str, Any]) -> tuple[Doubles, Doubles]:
    """The rotary frequencies without scaling, and the factor by which each is scaled: [head_dim / 2] each.

    A frequency of fewer than `low_freq_factor` turns within the original context is divided by `factor`, a frequency of
    more than `high_freq_factor` turns is kept, and frequencies between them are blended linearly.
    """
    frequency = 1 / config["rope_theta"] ** (np.arange(0, config["head_dim"], 2) / config["head_dim"])
    turns = config["rope_scaling.original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = config["rope_scaling.low_freq_factor"], config["rope_scaling.high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return frequency, blend + (1 - blend) / config["rope_scaling.factor"]
