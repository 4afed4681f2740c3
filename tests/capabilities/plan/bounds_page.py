"""harness/capabilities/plan/bounds.json: the bounds of each suite of Mixmark by each datasheet that is shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.plan import assumed, prices
from mixmark.harness.capabilities.plan.assumed import Workload
from mixmark.harness.capabilities.plan.scale import BITS, BOUNDS, Most
from mixmark.harness.contracts.schema import Tier
from mixmark.harness.contracts.text import Reason
from mixmark.harness.plugins.registry import BUILT_IN, find

TIERS: tuple[Tier, ...] = ("edge", "server")
"""The smoke tier has no scale."""


def most(work: Workload | Reason) -> Most:
    """The bounds of a workload. Empty if it has none."""
    if isinstance(work, str):
        return {}
    found = {name: assumed.bound(sheet, work) for name, sheet in prices.datasheets().items()}
    return {name: (basis.at_most, basis.memory_bytes) for name, basis in found.items() if basis and basis.at_most}


def content() -> Mapping[str, Mapping[str, Any]]:
    suites = {name: plugin for name, plugin in find("suites").items() if name in BUILT_IN["suites"]}
    found: dict[str, dict[str, Any]] = {
        name: {tier: of_tier for tier in TIERS if (of_tier := most(assumed.workload(name, tier, BITS)))}
        for name in suites
    }
    return {name: {"version": suites[name].load().version, **own} for name, own in found.items() if own}


def pages() -> dict[Path, str]:
    """One line for each device."""
    return {BOUNDS: re.sub(r"\[\s+(.+),\s+(.+)\s+\]", r"[\1, \2]", json.dumps(content(), indent=1)) + "\n"}
