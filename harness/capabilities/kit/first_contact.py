"""What new silicon showed at its first contact with Mixmark, in one file: for those who have none of it.

The file holds the conformance report, and the facts behind it: what discovery and the driver told, each claimed route
with its facts, timestamps, audit and the state of the machine, and what the energy meters read. The tests of Mixmark
replay such files: each check must come to the same result on the recorded facts.
"""

from __future__ import annotations

from typing import Any, Literal

from mixmark.harness.capabilities.kit.report import Report
from mixmark.harness.contracts.schema import Absent, Domain, Fact, Result
from mixmark.harness.machine.config import Config
from mixmark.harness.measure.meter_trial import live
from mixmark.harness.measure.metering import metered

METERED_S = 5.0  # of a machine at rest


class EnergySource(Fact):
    """An energy domain, and what its meter read in METERED_S."""

    domain: Domain
    reads: int
    watts: float | None
    reasons: tuple[str, ...]
    """Why these readings give no joules."""


class FirstContact(Fact):
    """A recording of an adapter on a machine."""

    schema_version: Literal[1] = 1
    report: Report
    result: dict[str, Any] | None
    """The `Result` of the claimed routes as JSON, without timestamps. None if no device was discovered."""
    completions: dict[str, dict[str, tuple[int, ...]]]
    """The columns of the timestamps of each record that has them, by its key."""
    energy: tuple[EnergySource, ...]
    no_energy: tuple[Absent, ...]
    """The energy sources that could not be read."""


def recording(report: Report, result: Result | None, config: Config) -> FirstContact:
    """The recording of a kit's report, of what the kit measured, and of what the energy meters of this machine read
    now."""
    with metered(report.devices, [report.name], config) as meters:
        sources = [
            EnergySource(domain=each.domain, reads=each.reads, watts=each.watts, reasons=tuple(each.reading.reasons))
            for each in live(meters, METERED_S)
        ]
    return FirstContact(
        report=report,
        result=None if result is None else result.model_dump(mode="json"),
        completions={
            each.key: {name: tuple(column.tolist()) for name, column in vars(each.completions).items()}
            for each in (result.records if result else ())
            if each.completions is not None
        },
        energy=tuple(sources),
        no_energy=tuple(meters.absent),
    )
