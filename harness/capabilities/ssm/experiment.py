"""Adaptability as the reports show it."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.ssm import Ssm
from mixmark.harness.capabilities.ssm.adaptability import Adaptability, adaptability
from mixmark.harness.contracts.schema import Fact, Route
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.plugins.experiments import Experiment
from mixmark.reporters import figures
from mixmark.reporters.document import Block, Heading, Paragraph, Table
from mixmark.suites.llm import Llm


class Adapts(Experiment):
    """It measures nothing: its figure is of every result that has both suites."""

    name = "adaptability"
    facts = (Fact, Fact)
    needs_mix = False
    of_any_result = True

    def figures(self, judged: Assessment) -> Adaptability | None:
        if not {Llm.name, Ssm.name} <= {solo.route.suite for solo in judged.solos}:
            return None
        return Adaptability(adaptability(judged.solos))

    def section(self, judged: Assessment, found: Adaptability) -> Iterator[Block]:
        yield Heading("Adaptability", "adaptability")
        if found.devices:
            yield _table(judged, found)
            yield Paragraph(
                "The fraction of the roofline that the device reaches on a state-space model, divided by its fraction "
                "on a transformer of about as many weights. It is no part of a score.",
                style="quiet",
            )
        else:
            yield Paragraph(
                "Unknown: no device has a fraction of its roofline on both llm and ssm. The findings say why."
            )


def _table(judged: Assessment, found: Adaptability) -> Table:
    names = figures.device_names(judged.result)

    def kept(route: Route, fraction: float) -> str:
        return f"{figures.roofline(fraction)} by {figures.name(route.adapter)} {route.precision}"

    rows = [
        (
            names[each.device],
            kept(each.llm, each.llm_fraction),
            kept(each.ssm, each.ssm_fraction),
            figures.significant(each.ratio),
        )
        for each in found.devices
    ]
    return Table("", ("device", "roofline of llm", "roofline of ssm", "adaptability"), rows, text_columns=3)
