"""The scale beside a score: what the datasheets of known devices would allow at most for the same mix.

It has the bounds of `assumed`, and so of `mixmark plan --add`, with weights of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.plan import assumed
from mixmark.harness.capabilities.plan.assumed import Workload
from mixmark.harness.contracts.schema import Mix, SuiteFacts
from mixmark.harness.plugins import registry

BITS = 16
NEAREST = 2
"""The devices on either side of the machine."""


@dataclass(frozen=True)
class KnownDevice:
    """The bound of a device."""

    device: str
    """Its name."""
    mixes_per_hour: float
    """The most that its datasheet allows."""
    source: str
    """Where the figures of the datasheet are from."""


@dataclass(frozen=True)
class Scale:
    """What known devices could do at most of the mix."""

    devices: tuple[KnownDevice, ...]
    """The nearest ones on either side of the limit of the machine's hardware, or of its score if that is unknown; the
    slowest first."""


def workloads(mix: Mix, measured: Iterable[SuiteFacts]) -> dict[str, Workload]:
    """The work of each suite of a mix that is built in and was measured in the installed version."""
    plugins, versions = registry.find("suites"), {suite.name: suite.version for suite in measured}
    built_in = (suite for suite in mix.units if suite in plugins and plugins[suite].built_in)
    same = [suite for suite in built_in if plugins[suite].load().version == versions.get(suite)]
    found = {suite: assumed.workload(suite, mix.tier, BITS) for suite in same}
    return {suite: work for suite, work in found.items() if not isinstance(work, str)}


def devices(mix_units: Mapping[str, float], works: Mapping[str, Workload]) -> list[KnownDevice]:
    """The known devices with a bound of the mix, the slowest first. Empty if the work of a suite is unknown."""
    if mix_units.keys() - works.keys():
        return []
    found = [
        KnownDevice(name, at_most, sheet.source or "")
        for name, sheet in assumed.datasheets().items()
        if (at_most := assumed.mixes_per_hour(sheet, mix_units, works)) is not None
    ]
    return sorted(found, key=lambda each: each.mixes_per_hour)


def bracket(known: Sequence[KnownDevice], per_hour: float) -> Scale:
    """The nearest devices on either side of a number of mixes per hour. known: the slowest first."""
    slower = sum(each.mixes_per_hour <= per_hour for each in known)
    return Scale(tuple(known[max(0, slower - NEAREST) : slower + NEAREST]))
