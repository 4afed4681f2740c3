"""Rules about energy: what is metered, whether each window has its joules, whether sources agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mixmark.harness.contracts.schema import Domain, Finding, Result
from mixmark.harness.judge.energy.coverage import antichain, apart, told, uncovered, unmetered
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS, FEWEST_PERIODS, in_phase
from mixmark.harness.judge.energy.total import MachineEnergy, contradictions, disagreements, metered, needed, twins, why
from mixmark.harness.judge.evidence import Evidence

CROSS_CHECK = 0.05  # that two sources of the same thing may differ, or a whole be less than its parts
LATE_NS = 1_500_000_000  # stamps of whole seconds are up to one second old, and meters are read ten times a second
METERING = 0.005  # of one core


def energy_measured(evidence: Evidence) -> Iterator[Finding]:
    """At least one energy source was sampled. Where none was, the absent meters say what would be needed."""
    if not evidence.result.domains:
        missing = ", ".join(told(uncovered((), needed(evidence.result)), ()))
        absent = any(each.kind == "meter" for each in evidence.result.absent)
        where = "the absent meters say what would be needed" if absent else "mixmark meters says what would be needed"
        message = f"energy not measured, so there is no efficiency: nothing meters {missing}; {where}"
        yield Finding(rule="energy_measured", severity="note", about="run", message=message)


def energy_complete(evidence: Evidence) -> Iterator[Finding]:
    """The measured domains cover every device, used or not, the processor of every host, and what else the machine
    announces to meter."""
    result = evidence.result
    devices = needed(result)
    if result.domains and (missing := unmetered(_meterable(result), devices, result.absent)):
        nothing = f"nothing meters {', '.join(missing)}"
        if len({each.host for each in devices}) > 1:
            measured = [each for each in result.domains if each.method != "modelled"]
            nothing = "; ".join(apart(measured, devices)) or nothing
        modelled = [each.id for each in result.domains if each.method == "modelled"]
        also = f" ({', '.join(modelled)} is modelled, and does not count)" if modelled else ""
        message = f"energy of a part only, so there is no efficiency: {nothing}{also}"
        yield Finding(rule="energy_complete", severity="warning", about="run", message=message)


def energy_valid(evidence: Evidence) -> Iterator[Finding]:
    """Every domain whose joules would be added has them in the window of every record and mix, its edges within 1 %."""
    needed = [each.id for each in _meterable(evidence.result)]
    for about, phase, found in _energies(evidence):
        of = f"{phase}: " if about == "run" else ""
        metering = metered(evidence.result, phase)
        if metering is None:
            message = f"{of}no energy: the meters were not read in its phase"
            yield Finding(rule="energy_valid", severity="warning", about=about, message=message)
            continue
        for id in needed:
            reasons = found.readings[id].reasons
            severity: Literal["note", "warning"] = "note"
            if reasons == ("short window",):
                message = f"energy of {id}: {ENOUGH_PERIODS} of its updates do not fit into the window: ±5 %"
            elif reasons == ("window too short",):
                message = f"no energy of {id}: {FEWEST_PERIODS} of its updates do not fit into the window"
            elif reasons:
                severity = "warning"
                message = f"no energy of {id}: {', '.join(why(found.readings[id], metering.lost))}"
            else:
                continue
            yield Finding(rule="energy_valid", severity=severity, about=about, message=f"{of}{message}")


def energy_agrees(evidence: Evidence) -> Iterator[Finding]:
    """Two sources of the same thing differ by at most 5 %, no source uses less than what it holds, by more than that,
    and no two sources are the same reading."""
    for about, phase, found in _energies(evidence):
        metering = metered(evidence.result, phase)
        if metering is None:  # as `energy_valid` says
            continue
        of = f"{phase}: " if about == "run" else ""
        messages = [
            f"{other.id} is {by * 100:+.1f} % off {one.id}, which meters the same (limit {_percent(CROSS_CHECK)})"
            for one, other, by in disagreements(evidence.result.domains, found.readings)
            if abs(by) > CROSS_CHECK
        ]
        messages += [
            f"{whole} used {_percent(-by)} less than what it holds: are its unit and its clock right?"
            for whole, by in contradictions(evidence.result.domains, found.readings)
            if by < -CROSS_CHECK
        ]
        measured = [each.id for each in evidence.result.domains if each.method != "modelled"]
        messages += [
            f"{one} and {other} show one and the same reading: that they agree tells nothing, and they are never added"
            for one, other in twins(measured, metering)
        ]
        for message in messages:
            yield Finding(rule="energy_agrees", severity="warning", about=about, message=f"{of}{message}")


def meter_timestamps_recent(evidence: Evidence) -> Iterator[Finding]:
    """The stamps of a meter that stamps its own readings are at most 1.5 s old when its first readings arrive."""
    known = {each.id: each for each in evidence.result.domains}
    for about, phase, found in _energies(evidence):
        metering = metered(evidence.result, phase)
        for id in found.domains if metering else ():
            late_ns = metering.late_ns.get(id, 0) if metering else 0
            if metering is None or late_ns <= LATE_NS:
                continue
            read = found.readings[id]
            true = in_phase(known[id], metering, read.begin_ns - late_ns, read.end_ns - late_ns).joules
            off = (
                f"by {(read.joules / true - 1) * 100:+.1f} %"
                if true and read.joules is not None
                else "by an unknown part"
            )
            message = (
                f"the stamps of {id} are {late_ns / 1e9:.1f} s old or more when they arrive "
                f"(limit {LATE_NS / 1e9:g} s): if its clock is late, its joules are off {off}; "
                "set its clock by NTP, or declare late_s"
            )
            of = f"{phase}: " if about == "run" else ""
            yield Finding(rule="meter_timestamps_recent", severity="warning", about=about, message=f"{of}{message}")


def low_metering_overhead(evidence: Evidence) -> Iterator[Finding]:
    """Reading the meters took at most 0.5 % of one core."""
    for metering in evidence.result.meterings:
        share = metering.cpu_ns / max(metering.end_ns - metering.begin_ns, 1)
        if share > METERING:
            message = f"reading the meters took {_percent(share)} of one core (limit {_percent(METERING)})"
            yield Finding(rule="low_metering_overhead", severity="warning", about=metering.phase, message=message)


def _meterable(result: Result) -> tuple[Domain, ...]:
    """The domains that would be added if all of them were read well."""
    measured = {each.id for each in result.domains if each.method != "modelled"}
    return antichain(result.domains, measured, needed(result))


def _energies(evidence: Evidence) -> Iterator[tuple[str, str, MachineEnergy]]:
    """(about, phase, total) of every mix, and of every record but a probe's that has a phase for itself."""
    if not evidence.result.domains:
        return
    for run in evidence.score.runs if evidence.score else ():
        yield "run", run.phase, run.total
    for each in evidence.measured:
        if each.record.scenario != "probe" and each.energy is not None:
            yield each.key, each.record.phase, each.energy


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
