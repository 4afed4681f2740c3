"""Rules about energy: what is metered, whether each window has its joules, whether sources agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Domain, Finding, FindingValue, Metering, Result
from mixmark.harness.judge.energy.coverage import antichain, lacking, unmetered_parts, why_no_boundary
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS, FEWEST_PERIODS, SHORT, TOO_SHORT, in_phase
from mixmark.harness.judge.energy.total import (
    CROSS_CHECK,
    MachineEnergy,
    disagreements,
    metered,
    to_meter,
    twins,
    why,
)
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import READS, found, note, warning
from mixmark.harness.judge.rules.registered import Room

room = Room(300)
LATE_NS = 1_500_000_000  # timestamps of whole seconds are up to one second old, and meters are read ten times a second
METERING = 0.005  # of one core


@room.rule(
    absent=note(
        "energy not measured, so there is no efficiency: nothing meters {missing}; the absent meters say what would be "
        "needed"
    ),
    none=note(
        "energy not measured, so there is no efficiency: nothing meters {missing}; mixmark meters says what would be "
        "needed"
    ),
)
def energy_measured(evidence: Evidence) -> Iterator[Finding]:
    """At least one energy source was sampled. If none was, the absent meters say what would be needed."""
    if not evidence.result.domains:
        absent = any(absence.kind == "meter" for absence in evidence.result.absent)
        missing = unmetered_parts((), to_meter(evidence.result))
        yield found("energy_measured.absent" if absent else "energy_measured.none", missing=missing)


@room.rule(
    warning("energy of a part only, so there is no efficiency: {why}"),
    modelled=warning(
        "energy of a part only, so there is no efficiency: {why} ({domains} is modelled, and does not count)"
    ),
)
def energy_complete(evidence: Evidence) -> Iterator[Finding]:
    """The measured domains cover every device, used or not, the processor of every host, and everything else that the
    machine announces to meter."""
    result, devices = evidence.result, to_meter(evidence.result)
    unread = lacking(_meterable(result), (part for each in result.absent for part in each.covers))
    nothing = "; ".join((*why_no_boundary(_measured(result), devices), *(f"{part} is not metered" for part in unread)))
    if nothing and result.domains:
        if modelled := tuple(domain.id for domain in result.domains if domain.method == "modelled"):
            yield found("energy_complete.modelled", why=nothing, domains=modelled)
        else:
            yield found("energy_complete", why=nothing)


@room.rule(
    not_read=warning("{phase:phase}no energy: the meters were not read in its phase"),
    short=note("{phase:phase}energy of {domain}: {needed} of its updates do not fit into the window: ±5 %"),
    too_short=note("{phase:phase}no energy of {domain}: {needed} of its updates do not fit into the window"),
    unknown=warning("{phase:phase}no energy of {domain}: {why}"),
    noticed=warning("an energy source gave no joules{share:share}", READS),
)
def energy_valid(evidence: Evidence) -> Iterator[Finding]:
    """Every domain that would be added has joules in the window of every record and mix, its edges within 1 %."""
    for window in _windows(evidence):
        if window.metering is None:
            yield window.found("energy_valid.not_read")
            continue
        for domain in _meterable(evidence.result):
            reading = window.energy.readings[domain.id]
            if reading.reasons == (SHORT,):
                yield window.found("energy_valid.short", domain=domain.id, needed=ENOUGH_PERIODS)
            elif reading.reasons == (TOO_SHORT,):
                yield window.found("energy_valid.too_short", domain=domain.id, needed=FEWEST_PERIODS)
            elif reading.reasons:
                reasons = tuple(why(reading, window.metering.lost))
                yield window.found("energy_valid.unknown", domain=domain.id, why=reasons)


@room.rule(
    differ=warning(
        "{phase:phase}{domain} is {by_pct:+.1f} % off {source}, which meters the same (limit {limit:percent})"
    ),
    twins=warning(
        "{phase:phase}{domain} and {other} show one and the same reading: that they agree tells nothing, and they are "
        "never added"
    ),
    noticed=warning("two energy sources disagree{share:share}", "mixmark meters shows what they read"),
)
def energy_agrees(evidence: Evidence) -> Iterator[Finding]:
    """Two sources of the same thing differ by at most 5 %, and no two sources show the same reading."""
    domains = evidence.result.domains
    for window in _windows(evidence):
        if window.metering is None:  # as `energy_valid` says
            continue
        for source, checked, by in disagreements(domains, window.energy.readings):
            if abs(by) > CROSS_CHECK:
                ids = {"domain": checked.id, "source": source.id}
                yield window.found("energy_agrees.differ", **ids, by_pct=by * 100, limit=CROSS_CHECK)
        for one, other in twins([domain.id for domain in _measured(evidence.result)], window.metering):
            yield window.found("energy_agrees.twins", domain=one, other=other)


@room.rule(
    warning(
        "{phase:phase}the timestamps of {domain} are {age_s:.1f} s old or more when they arrive (limit {limit_s:g} s): "
        "if its clock is late, its joules are off by an unknown part; set its clock by NTP, or declare late_s"
    ),
    known=warning(
        "{phase:phase}the timestamps of {domain} are {age_s:.1f} s old or more when they arrive (limit {limit_s:g} s): "
        "if its clock is late, its joules are off by {off_pct:+.1f} %; set its clock by NTP, or declare late_s"
    ),
    noticed=warning("the clock of a meter is late{share:share}"),
)
def meter_timestamps_recent(evidence: Evidence) -> Iterator[Finding]:
    """The timestamps of a meter that has a clock of its own are at most 1.5 s old when its first readings arrive."""
    known = {domain.id: domain for domain in evidence.result.domains}
    for window in _windows(evidence):
        for id in window.energy.domains:
            if window.metering is None or (reading_age_ns := window.metering.reading_age_ns.get(id, 0)) <= LATE_NS:
                continue
            read = window.energy.readings[id]
            true = in_phase(
                known[id], window.metering, read.begin_ns - reading_age_ns, read.end_ns - reading_age_ns
            ).joules
            late: dict[str, FindingValue] = {"domain": id, "age_s": reading_age_ns / 1e9, "limit_s": LATE_NS / 1e9}
            if true and read.joules is not None:
                off_pct = (read.joules / true - 1) * 100
                yield window.found("meter_timestamps_recent.known", **late, off_pct=off_pct)
            else:
                yield window.found("meter_timestamps_recent", **late)


@room.rule(
    warning("reading the meters took {used:percent} of one core (limit {limit:percent})"),
    noticed=warning("reading the meters took much CPU time"),
)
def low_metering_overhead(evidence: Evidence) -> Iterator[Finding]:
    """Reading the meters took at most 0.5 % of one core."""
    for metering in evidence.result.meterings:
        used = metering.cpu_ns / max(metering.end_ns - metering.begin_ns, 1)
        if used > METERING:
            yield found("low_metering_overhead", metering.phase, used=used, limit=METERING)


def _measured(result: Result) -> list[Domain]:
    return [domain for domain in result.domains if domain.method != "modelled"]


def _meterable(result: Result) -> tuple[Domain, ...]:
    """The domains that would be added if all of them were read well."""
    return antichain(result.domains, {domain.id for domain in _measured(result)}, to_meter(result))


@dataclass(frozen=True)
class _MeteredWindow:
    """A window whose energy the rules look at."""

    about: str
    phase: str
    energy: MachineEnergy
    metering: Metering | None
    """None if the meters were not read in its phase."""

    def found(self, code: str, **values: FindingValue) -> Finding:
        return found(code, self.about, phase=self.phase if self.about == "run" else "", **values)


def _windows(evidence: Evidence) -> Iterator[_MeteredWindow]:
    """The window of every mix, and of every record but a probe's that has a phase for itself."""
    result = evidence.result
    if not result.domains:
        return
    for run in evidence.runs:
        yield _MeteredWindow("run", run.phase, run.total, metered(result, run.phase))
    for measured in evidence.measured:
        phase = measured.record.phase
        if measured.record.scenario != "probe" and measured.energy is not None:
            yield _MeteredWindow(measured.key, phase, measured.energy, metered(result, phase))
