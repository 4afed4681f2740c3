"""The scale beside a score: what the datasheets of known devices would allow at most for the same mix.

It has the bounds of `assumed`, and so of `mixmark plan --add`, with weights of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mixmark.harness.capabilities.plan import assumed
from mixmark.harness.capabilities.plan.assumed import Workload
from mixmark.harness.contracts.schema import Fact, Mix, SuiteFacts
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.experiments import Experiment

BITS = 16
NEAREST = 2
"""The devices on either side of the machine."""


@dataclass(frozen=True)
class Scale:
    """What known devices could do at most of the mix."""

    mixes_per_hour: Mapping[str, float]
    """The most that its datasheet allows, by the name of the device. The devices are the nearest ones on either side of
    the limit of the machine's hardware, or of its score if that is unknown."""


class ByDatasheet(Experiment):
    """It measures nothing: its figures are of every score with weights of 16 bits. The smoke tier has none, since its
    weights fit into caches, whose bandwidth no datasheet states."""

    name = "datasheets"
    facts = (Fact, Fact)
    needs_mix = False
    of_any_result = True

    def figures(self, judged: Assessment) -> Scale | None:
        score = judged.score
        if score is None or score.mixes_per_hour is None or score.mix.tier == "smoke" or score.weight_class != BITS:
            return None
        found = bounds(score.mix.units, workloads(score.mix, judged.result.suites))
        return bracket(found, judged.hardware_limit_per_hour or score.mixes_per_hour.estimate) if found else None

    def standing(self, judged: Assessment, figures: Scale) -> Iterator[tuple[float, str, str]]:
        yield from ((most, name, "by datasheet, at most") for name, most in figures.mixes_per_hour.items())


def workloads(mix: Mix, measured: Iterable[SuiteFacts]) -> dict[str, Workload]:
    """The work of each suite of a mix that is built in and was measured in the installed version."""
    versions = {suite.name: suite.version for suite in measured}
    installed = {suite: plugin for suite, plugin in registry.find("suites").items() if plugin.built_in}
    same = [name for name in mix.units if name in installed and installed[name].load().version == versions.get(name)]
    found = {suite: assumed.workload(suite, mix.tier, BITS) for suite in same}
    return {suite: work for suite, work in found.items() if not isinstance(work, str)}


def bounds(mix_units: Mapping[str, float], works: Mapping[str, Workload]) -> dict[str, float]:
    """The most mixes per hour of each known device that has a bound of the mix. Empty if the work of a suite is
    unknown."""
    found = {name: assumed.mixes_per_hour(sheet, mix_units, works) for name, sheet in assumed.datasheets().items()}
    return {name: most for name, most in found.items() if most is not None}


def bracket(found: Mapping[str, float], per_hour: float) -> Scale:
    """The nearest devices on either side of a number of mixes per hour."""
    known = sorted(found.items(), key=lambda each: each[1])
    slower = sum(most <= per_hour for _, most in known)
    return Scale(dict(known[max(0, slower - NEAREST) : slower + NEAREST]))
