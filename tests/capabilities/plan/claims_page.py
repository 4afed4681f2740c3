"""The tables in docs/capabilities/plan/claims.md: what the shipped datasheets allow.

python -m tests.capabilities.plan.claims_page    rewrites its tables; read the diff before you commit it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mixmark.harness.capabilities.plan import assumed
from mixmark.harness.capabilities.plan.machine import Kind
from mixmark.harness.capabilities.plan.prices import datasheets
from mixmark.harness.contracts.numbers import percent, significant
from mixmark.harness.plan import mixes
from tests.docs import parts

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "capabilities" / "plan" / "claims.md"
UNITS = {"llm": "tok/s", "diffusion": "img/s", "dlrm": "samples/s", "resnet50": "img/s"}
SHOWN = 5


def renewed(page: str) -> str:
    """The page with the bounds of the datasheets as they are now."""
    told = {"bounds": bounds("edge-1"), "pairs": pairs("edge-1")}
    return parts.renewed(page, **{name: "\n".join((*lines, "")) for name, lines in told.items()})


Bounds = tuple[str, Kind, dict[str, float], dict[str, float]]
"""A device, its bounds, the seconds that each suite's part of a mix takes, and their joules: empty if no watts are
published."""


@cache
def bounds_of(name: str) -> tuple[Bounds, ...]:
    """The bounds of each shipped datasheet for the work of a mix."""
    mix = mixes.frozen()[name]
    workloads = {suite: assumed.workload(suite, mix.tier, 16) for suite in mix.units}
    found: list[Bounds] = []
    for device, sheet in datasheets().items():
        kind = assumed.kind(device, sheet, workloads, fraction=1.0)
        rates = {speed.suite: speed.units_per_s.estimate for speed in kind.speeds}
        took_s = {suite: units / rates[suite] if suite in rates else math.inf for suite, units in mix.units.items()}
        joules = {suite: kind.idle_watts * each for suite, each in took_s.items() if kind.idle_watts}
        found.append((device, kind, took_s, joules))
    return tuple(found)


def bounds(name: str) -> Iterator[str]:
    yield f"| device | {' | '.join(f'{suite}, {unit}' for suite, unit in UNITS.items())} | mix/h | mix/kWh |"
    yield f"|---|{'---:|' * (len(UNITS) + 2)}"
    for device, kind, took_s, joules in bounds_of(name):
        rates = {speed.suite: speed.units_per_s.estimate for speed in kind.speeds}
        per_hour = significant(3600 / sum(took_s.values())) if math.inf not in took_s.values() else "no mix"
        per_kwh = significant(3.6e6 / sum(joules.values())) if joules else "watts not published"
        cells = (significant(rates[suite]) if suite in rates else "does not fit" for suite in UNITS)
        yield f"| {device} | {' | '.join(cells)} | {per_hour} | {'no mix' if per_hour == 'no mix' else per_kwh} |"


def pairs(name: str) -> Iterator[str]:
    """The pairs of devices that gain most per watt: each suite runs on the device that does more of it per joule."""
    known = {device: joules for device, _, _, joules in bounds_of(name) if joules}
    gains: dict[str, float] = {}
    for (one, first), (other, second) in itertools.combinations(known.items(), 2):
        alone = min(sum(first.values()), sum(second.values()))
        gains[f"{one} and {other}"] = alone / sum(min(first[suite], second[suite]) for suite in first) - 1
    yield from ("| pair | more work per joule than the better one |", "|---|---:|")
    for pair in sorted(gains, key=lambda pair: -gains[pair])[:SHOWN]:
        yield f"| {pair} | {percent(gains[pair])} |"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
