"""Rules about energy: what is metered, whether each window has its joules, whether sources agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mixmark.harness.contracts.numbers import percent
from mixmark.harness.contracts.schema import Domain, Metering, Result
from mixmark.harness.judge.energy.coverage import antichain, apart, told, uncovered, unmetered
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS, FEWEST_PERIODS, in_phase
from mixmark.harness.judge.energy.total import MachineEnergy, contradictions, disagreements, metered, needed, twins, why
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.rules.rule import Severity, rule

CROSS_CHECK = 0.05  # by which two sources of the same thing may differ, or a whole be less than its parts
LATE_NS = 1_500_000_000  # timestamps of whole seconds are up to one second old, and meters are read ten times a second
METERING = 0.005  # of one core


@rule
def energy_measured(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """At least one energy source was sampled. If none was, the absent meters say what would be needed."""
    if not evidence.result.domains:
        missing = ", ".join(told(uncovered((), needed(evidence.result)), ()))
        absent = any(absence.kind == "meter" for absence in evidence.result.absent)
        where = "the absent meters say what would be needed" if absent else "mixmark meters says what would be needed"
        yield "note", "run", f"energy not measured, so there is no efficiency: nothing meters {missing}; {where}"


@rule
def energy_complete(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The measured domains cover every device, used or not, the processor of every host, and everything else that the
    machine announces to meter."""
    result, devices = evidence.result, needed(evidence.result)
    missing = unmetered(_meterable(result), devices, result.absent) if result.domains else ()
    if missing:
        nothing = f"nothing meters {', '.join(missing)}"
        if len({device.host for device in devices}) > 1:
            nothing = "; ".join(apart(_measured(result), devices)) or nothing
        modelled = [domain.id for domain in result.domains if domain.method == "modelled"]
        also = f" ({', '.join(modelled)} is modelled, and does not count)" if modelled else ""
        yield "warning", "run", f"energy of a part only, so there is no efficiency: {nothing}{also}"


@rule
def energy_valid(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """Every domain that would be added has joules in the window of every record and mix, its edges within 1 %."""
    for window in _windows(evidence):
        if window.metering is None:
            yield "warning", window.about, f"{window.prefix}no energy: the meters were not read in its phase"
            continue
        for domain in _meterable(evidence.result):
            reading = window.energy.readings[domain.id]
            severity: Severity = "note"
            if not reading.reasons:
                continue
            if reading.reasons == ("short window",):
                message = f"energy of {domain.id}: {ENOUGH_PERIODS} of its updates do not fit into the window: ±5 %"
            elif reading.reasons == ("window too short",):
                message = f"no energy of {domain.id}: {FEWEST_PERIODS} of its updates do not fit into the window"
            else:
                severity = "warning"
                message = f"no energy of {domain.id}: {', '.join(why(reading, window.metering.lost))}"
            yield severity, window.about, window.prefix + message


@rule
def energy_agrees(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """Two sources of the same thing differ by at most 5 %, no source uses less than what it holds by more than that,
    and no two sources show the same reading."""
    domains = evidence.result.domains
    for window in _windows(evidence):
        if window.metering is None:  # as `energy_valid` says
            continue
        messages = [
            f"{checked.id} is {by * 100:+.1f} % off {source.id}, which meters the same (limit {percent(CROSS_CHECK)})"
            for source, checked, by in disagreements(domains, window.energy.readings)
            if abs(by) > CROSS_CHECK
        ]
        messages += [
            f"{whole} used {percent(-by)} less than what it holds: are its unit and its clock right?"
            for whole, by in contradictions(domains, window.energy.readings)
            if by < -CROSS_CHECK
        ]
        ids = [domain.id for domain in _measured(evidence.result)]
        messages += [
            f"{a} and {b} show one and the same reading: that they agree tells nothing, and they are never added"
            for a, b in twins(ids, window.metering)
        ]
        for message in messages:
            yield "warning", window.about, window.prefix + message


@rule
def meter_timestamps_recent(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
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
            off = "by an unknown part"
            if true and read.joules is not None:
                off = f"by {(read.joules / true - 1) * 100:+.1f} %"
            message = (
                f"the timestamps of {id} are {reading_age_ns / 1e9:.1f} s old or more when they arrive "
                f"(limit {LATE_NS / 1e9:g} s): if its clock is late, its joules are off {off}; "
                "set its clock by NTP, or declare late_s"
            )
            yield "warning", window.about, window.prefix + message


@rule
def low_metering_overhead(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """Reading the meters took at most 0.5 % of one core."""
    for metering in evidence.result.meterings:
        used = metering.cpu_ns / max(metering.end_ns - metering.begin_ns, 1)
        if used > METERING:
            message = f"reading the meters took {percent(used)} of one core (limit {percent(METERING)})"
            yield "warning", metering.phase, message


def _measured(result: Result) -> list[Domain]:
    return [domain for domain in result.domains if domain.method != "modelled"]


def _meterable(result: Result) -> tuple[Domain, ...]:
    """The domains that would be added if all of them were read well."""
    return antichain(result.domains, {domain.id for domain in _measured(result)}, needed(result))


@dataclass(frozen=True)
class _MeteredWindow:
    """A window whose energy the rules look at."""

    about: str
    phase: str
    energy: MachineEnergy
    metering: Metering | None
    """None: the meters were not read in its phase."""

    @property
    def prefix(self) -> str:
        return f"{self.phase}: " if self.about == "run" else ""


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
