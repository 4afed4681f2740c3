"""The scale beside a score, in the table that says where the machine stands."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.plan.scale import Scale
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters.experiments import Section


class ScaleSection(Section):
    def standing(self, judged: Assessment, found: Scale) -> Iterator[tuple[float, str, str]]:
        yield from ((most, name, "by datasheet, at most") for name, most in found.mixes_per_hour.items())
