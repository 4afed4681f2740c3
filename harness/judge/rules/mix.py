"""Rules about the score of the mix: whether it is complete, bounded and graded, and its hosts' clocks known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mixmark.harness.contracts.numbers import counted
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.rules.rule import Severity, rule
from mixmark.harness.judge.score import took_no_part

LARGEST_CLOCK_FRACTION = 0.001
"""The largest fraction of a window by which the clock of a host may be uncertain."""
THREADS_PER_ACCELERATOR = 2
"""The hardware threads that a host needs for each accelerator: for the one that feeds it, and its driver's."""


@rule
def hosts_took_part(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """Every host that was asked for took part. A score says this itself, as a problem."""
    if evidence.score is None:
        for message in took_no_part(evidence.result):
            yield "invalid", "run", message


@rule
def clocks_synchronised(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The clock of every host is known to a thousandth of the window of each mixed run.

    The window is counted longer by what is not known, so an uncertain clock never raises the rate.
    """
    runs = {run.phase: run for run in evidence.runs}
    for connection in evidence.result.connections:
        run, bound_ns = runs.get(connection.phase), connection.clock.bound_ns
        if run is None:
            continue
        uncertain = bound_ns / (run.length_ns - 2 * run.clock_bound_ns)
        if uncertain > LARGEST_CLOCK_FRACTION:
            message = (
                f"{run.phase}: the clock of {connection.host} is known to ±{bound_ns / 1e6:,.1f} ms, "
                f"{uncertain * 100:.2g} % of the window (limit {LARGEST_CLOCK_FRACTION * 100:g} %), which is counted "
                f"{2 * run.clock_bound_ns / 1e6:,.1f} ms longer for it"
            )
            yield "warning", "run", message


@rule
def mix_complete(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """Every suite of the mix has units that count, no device and no host failed, and the stored prices prove λ*.

    A mix that cannot be run here, or not to the first feed, or that a simulated device took part in, is no error: the
    solo measurements stand.
    """
    for problem in evidence.score.problems if evidence.score else ():
        severity: Severity = "warning" if problem.harmless else "invalid"
        yield severity, "run", f"no score: {problem.text}"


@rule
def accelerators_fed(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """Each host has two hardware threads for each accelerator that took part in a mixed run."""
    phases = {run.phase for run in evidence.runs}
    used = {record.route.device for record in evidence.result.records if record.phase in phases}
    per_host: Counter[str] = Counter()
    for device in evidence.result.devices:
        if device.id in used and device.kind not in ("cpu", "simulated"):
            per_host[device.host] += len(device.silicon)
    systems = {name: group.system for group in evidence.result.hosts for name in group.names}
    for host, accelerators in per_host.items():
        threads = systems.get(host, evidence.result.system).cpu_threads
        if threads is not None and threads < THREADS_PER_ACCELERATOR * accelerators:
            message = (
                f"{counted(threads, 'hardware thread')} of a host for {counted(accelerators, 'accelerator')}, fewer "
                f"than {THREADS_PER_ACCELERATOR} for each: they may wait for the host"
            )
            yield "warning", host or "run", message


@rule
def score_graded(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """What the score lacks for the next better grade, and which disturbed runs it leaves out."""
    score = evidence.score
    if score is None or score.problems:
        return
    for run in score.runs:
        if run.phase in score.left_out:
            yield "note", "run", f"the score leaves out {run.phase}, which was disturbed: {run.disturbed}"
    if score.missing:
        yield "note", "run", f"the score is {score.graded}"


@rule
def mix_bounded(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """No more was done than the solo rates allow, and no route was clearly faster in the mix than alone."""
    for run in evidence.runs:
        diagnosis = evidence.diagnoses[run.phase]
        if diagnosis.faster:
            faster = ", ".join(f"{part.suite} on {part.device} {part.retained:.2f} times" for part in diagnosis.faster)
            message = (
                f"{run.phase}: faster in the mix than alone: {faster}; λ* counts what they did in the mix, "
                "for the machine was slow when they were measured alone: measure them again"
            )
            yield "warning", "run", message
        kappa, lowest = diagnosis.kappa.estimate, diagnosis.lowest_kappa(run)
        if lowest > 1 and diagnosis.bound_is_estimate:
            yield "note", "run", f"{run.phase}: κ is {kappa:.2f}: feeds that overlap did more than one at a time"
        elif lowest > 1:
            message = (
                f"{run.phase}: κ is {kappa:.2f}, at least {lowest:.2f}, and cannot be above 1: "
                "the solo rates are too low, measure them again"
            )
            yield "warning", "run", message
