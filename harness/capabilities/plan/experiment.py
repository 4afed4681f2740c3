"""The scale as the reports show it."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.plan import scale
from mixmark.harness.capabilities.plan.scale import Scale
from mixmark.harness.contracts.schema import Fact
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.plugins.experiments import Experiment


class ByDatasheet(Experiment):
    """It measures nothing: its figures are of every score with weights of 16 bits. The smoke tier has none, since its
    weights fit into caches, whose bandwidth no datasheet states."""

    name = "datasheets"
    facts = (Fact, Fact)
    needs_mix = False
    of_any_result = True

    def figures(self, judged: Assessment) -> Scale | None:
        score = judged.score
        if (
            score is None
            or score.mixes_per_hour is None
            or score.weight_class != scale.BITS
            or score.mix.tier == "smoke"
        ):
            return None
        found = scale.devices(score.mix.units, scale.workloads(score.mix, judged.result.suites))
        return scale.bracket(found, judged.hardware_limit_per_hour or score.mixes_per_hour.estimate) if found else None

    def standing(self, judged: Assessment, figures: Scale) -> Iterator[tuple[float, str, str]]:
        for each in figures.devices:
            yield each.mixes_per_hour, each.device, "by datasheet, at most"
