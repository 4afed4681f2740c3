"""The disturbed measurements of a result, by the counters of the machine while they ran.

Whether a mixed run counts and whether it is repeated depends on this alone and never on its figure, so that no run is
chosen by its score.
"""

from __future__ import annotations

from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.evidence import Evidence, Measurement

MUCH_FOREIGN = 0.05  # of the machine's CPU time: others moved the figures by more than an official score may be wide
MUCH_STOLEN = 0.05  # the same, taken by the hypervisor


def mixed_runs(evidence: Evidence) -> dict[str, Reason]:
    """Why each disturbed mixed run is, by the name of its phase, in the order of the runs."""
    found: dict[str, Reason] = {}
    for phase in (phase.name for phase in evidence.result.phases if phase.purpose == "mixed"):
        reasons = (_disturbed(measured) for measured in evidence.measured if measured.record.phase == phase)
        if reason := next(filter(None, reasons), None):
            found[phase] = reason
    return found


def foreign(measured: Measurement) -> float:
    """The fraction of the CPU time of the record's host that other programs used. 0: the machine does not say."""
    cores, cpus = measured.foreign_cores or (0.0, 1)
    return cores / cpus


def stolen(measured: Measurement) -> float:
    """The fraction of that time that the hypervisor gave to others. 0: the machine does not say."""
    return measured.stolen[0] if measured.stolen else 0.0


def _disturbed(measured: Measurement) -> Reason | None:
    if foreign(measured) > MUCH_FOREIGN:
        return f"other programs used {foreign(measured) * 100:.0f} % of {measured.host or 'the machine'}"
    if stolen(measured) > MUCH_STOLEN:
        cpus = f"the time of the CPUs of {measured.host}" if measured.host else "the CPUs' time"
        return f"the hypervisor gave {stolen(measured) * 100:.0f} % of {cpus} to others"
    return None
