"""The scale beside a score: what the datasheets of known devices would allow at most for the same mix.

It has the bounds of `assumed`, and so of `mixmark plan --add`, with weights of 16 bits. bounds.json ships them, so that
no suite is loaded where a result is judged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.plan.machine import HOUR_S
from mixmark.harness.capabilities.plan.prices import GIGA, datasheets
from mixmark.harness.contracts.schema import Mix, SuiteFacts
from mixmark.harness.judge.assessment import Assessment

BOUNDS = Path(__file__).with_name("bounds.json")
BITS = 16
NEAREST = 2
"""The devices on either side of the machine."""
Most = Mapping[str, tuple[float, int]]
"""The most units per second of a suite and the bytes of its weights, by the name of the device."""


@dataclass(frozen=True)
class Scale:
    """What known devices could do at most of the mix."""

    mixes_per_hour: Mapping[str, float]
    """The most that its datasheet allows, by the name of the device. The devices are the nearest ones on either side of
    the limit of the machine's hardware, or of its score if that is unknown."""


def scale(judged: Assessment) -> Scale | None:
    """It is of every score with weights of 16 bits. The smoke tier has none, since its weights fit into caches, whose
    bandwidth no datasheet states."""
    score = judged.score
    if score is None or score.mixes_per_hour is None or score.mix.tier == "smoke" or score.weight_class != BITS:
        return None
    found = bounds(score.mix.units, shipped(score.mix, judged.result.suites))
    return bracket(found, (judged.hardware_limit_per_hour or score.mixes_per_hour).estimate) if found else None


@cache
def _content() -> Any:
    return json.loads(BOUNDS.read_text("utf-8"))


def shipped(mix: Mix, measured: Iterable[SuiteFacts]) -> dict[str, Most]:
    """The bounds of each suite of a mix that was measured in the version that the bounds are of."""
    found = {each.name: _content().get(each.name, {}) for each in measured if each.name in mix.units}
    versions = {each.name: each.version for each in measured}
    return {name: own[mix.tier] for name, own in found.items() if own.get("version") == versions[name]}


def bounds(mix_units: Mapping[str, float], suites: Mapping[str, Most]) -> dict[str, float]:
    """The most mixes per hour of each known device that has a bound of each suite, and whose memory holds the weights
    of all suites at once."""
    found = {}
    for device, sheet in datasheets().items():
        known = {suite: own[device] for suite, own in suites.items() if device in own}
        fits = sum(size for _, size in known.values()) <= (sheet.memory_gb or math.inf) * GIGA
        if fits and mix_units.keys() <= known.keys():
            found[device] = HOUR_S / sum(units / known[suite][0] for suite, units in mix_units.items())
    return found


def bracket(found: Mapping[str, float], per_hour: float) -> Scale:
    """The nearest devices on either side of a number of mixes per hour."""
    known = sorted(found.items(), key=lambda each: each[1])
    slower = sum(most <= per_hour for _, most in known)
    return Scale(dict(known[max(0, slower - NEAREST) : slower + NEAREST]))
