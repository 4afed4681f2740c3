"""What an audit says of an engine's outputs: the reference is computed by torch in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.protocols import Feed, Runner, Use
from mixmark.harness.contracts.schema import Device

ALONE = Use.of("single-stream")


def cpu(adapter: Any) -> Device:
    """The processor, as an adapter discovers it."""
    devices: list[Device] = [*adapter.discover()]
    return next(device for device in devices if device.id == "cpu:0")


def judged(runner: Runner, suite: Any, feed: Feed) -> float:
    """The value of an audit of the output that a runner yields for this feed."""
    output = np.concatenate([part.copy() for part in runner(feed)])
    with Torch({}).open(cpu(Torch({})), suite.reference(), "fp32", ALONE) as reference:
        truth = np.concatenate([part.copy() for part in reference({**feed, "output": output})])
    return float(suite.quality(output, truth))


def at_most(suite: Any, precision: str) -> float:
    """The bound of the suite's gate."""
    gate = suite.gate(precision)
    assert gate is not None
    return float(gate.at_most)
