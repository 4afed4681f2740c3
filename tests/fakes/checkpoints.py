"""Checkpoints that hold a suite's own weights."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import save_file

from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.weights import read_weight


def write_checkpoint(suite: Suite, file: Path) -> None:
    """Writes the suite's weights in fp32, by their names in the suite."""
    weights = suite.weights()
    save_file({name: read_weight(weights, name) for name in weights.names()}, file)
