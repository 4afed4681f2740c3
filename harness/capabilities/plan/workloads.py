"""The work of a suite by its own cost model."""

from __future__ import annotations

import math

from mixmark.harness.capabilities.plan.assumed import Batch, Workload
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Tier, WeightClass, weight_class
from mixmark.harness.contracts.text import Reason
from mixmark.harness.plugins import registry

SIZES = tuple(2**power for power in range(13))
"""The batch sizes of a suite's workload."""


def workload(suite: str, tier: Tier, bits: int) -> Workload | Reason:
    """A suite's work in each precision of at least `bits` bits and each batch size, or why it is unknown."""
    batches: list[Batch] = []
    memory_bytes: dict[str, int] = {}
    for precision, width in BITS_PER_WEIGHT.items():
        if (own := weight_class(precision)) < bits:
            continue
        try:
            built = _built_in(suite, tier, own)
        except Unsupported:  # it has no weights of this class
            continue
        if built is None:
            return "its cost model is not of Mixmark: give its rate"
        weights = built.weights()
        values = sum(math.prod(map(int, weights.spec(name).shape)) for name in weights.names())
        memory_bytes[precision] = values * width // 8
        for size in SIZES if "offline" in built.scenarios else (1,):
            batches.append(Batch(precision, built.units(size), tuple(built.costs(precision, size))))
    return Workload(batches, memory_bytes)


def answer_units(suite: str, tier: Tier) -> int:
    """The units of one feed with one sample: the tokens of an answer. 1 if it is unknown."""
    built = _built_in(suite, tier, 16)
    return 1 if built is None else built.units(1)


def _built_in(suite: str, tier: Tier, own: WeightClass) -> Suite | None:
    """A suite of Mixmark: no other package's code runs for a plan."""
    plugin = registry.find("suites").get(suite)
    return registry.load_suite(suite, tier, weight_class=own) if plugin and plugin.built_in else None
