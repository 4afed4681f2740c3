"""Rules about the score of the mix: whether it is complete, bounded and graded, and its hosts' clocks known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import found, note, warning
from mixmark.harness.judge.hosts import took_no_part
from mixmark.harness.judge.rules.registered import Room

room = Room(900)
LARGEST_CLOCK_FRACTION = 0.001
"""The largest uncertainty of a host's clock, as a fraction of a window."""
THREADS_PER_ACCELERATOR = 2
"""The hardware threads that a host needs for each accelerator: for the one that feeds it, and its driver's."""


@room.rule()
def hosts_took_part(evidence: Evidence) -> Iterator[Finding]:
    """Every host that was asked for took part."""
    yield from took_no_part(evidence.result)


@room.rule()
def mix_complete(evidence: Evidence) -> Iterator[Finding]:
    """Every suite of the mix has units that count, no device and no host failed, and the stored prices prove λ*.

    It is a warning if the mix cannot be run here, if a suite finished no feed, or if a simulated device took part: the
    solo measurements stand. What other rules found about a record, they say themselves.
    """
    problems = evidence.score.problems if evidence.score else ()
    yield from (problem for problem in problems if problem.rule == "mix_complete")


@room.rule(
    faster=warning(
        "{phase}: {suite} on {device} was {times:.2f} times as fast in the mix as alone, so λ* counts its rate in the "
        "mix: the machine was slow when it was measured alone, measure it again"
    ),
    overlap=note("{phase}: κ is {kappa:.2f}: feeds that overlap did more than one at a time"),
    above=warning(
        "{phase}: κ is {kappa:.2f}, at least {lowest:.2f}, and cannot be above 1: the solo rates are too low, measure "
        "them again"
    ),
    noticed=warning("the solo rates do not fit the rates of the mix", "measure again"),
)
def mix_bounded(evidence: Evidence) -> Iterator[Finding]:
    """No more was done than the solo rates allow, and no route was clearly faster in the mix than alone."""
    for run in evidence.runs:
        diagnosis = evidence.diagnoses[run.phase]
        for part in diagnosis.faster:
            assert part.retained is not None  # it is faster than its solo rate
            values = {"phase": run.phase, "suite": part.suite, "device": part.device}
            yield found("mix_bounded.faster", **values, times=part.retained)
        kappa, lowest = diagnosis.kappa.estimate, diagnosis.lowest_kappa(run)
        if lowest > 1 and diagnosis.bound_is_estimate:
            yield found("mix_bounded.overlap", phase=run.phase, kappa=kappa)
        elif lowest > 1:
            yield found("mix_bounded.above", phase=run.phase, kappa=kappa, lowest=lowest)


@room.rule(
    warning(
        "{phase}: the clock of {host} is known to ±{bound_ms:,.1f} ms, {uncertain_pct:.2g} % of the window (limit "
        "{limit_pct:g} %), which is counted {longer_ms:,.1f} ms longer for it"
    ),
    weight=530,
    noticed=warning("the clock of a host is not known well", "a link of shorter round trips to it"),
)
def clocks_synchronised(evidence: Evidence) -> Iterator[Finding]:
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
            yield found(
                "clocks_synchronised",
                phase=run.phase,
                host=connection.host,
                bound_ms=bound_ns / 1e6,
                uncertain_pct=uncertain * 100,
                limit_pct=LARGEST_CLOCK_FRACTION * 100,
                longer_ms=2 * run.clock_bound_ns / 1e6,
            )


@room.rule(
    warning(
        "{threads:counted hardware thread} of a host for {accelerators:counted accelerator}, fewer than {needed} for "
        "each: they may wait for the host"
    ),
    weight=530,
    noticed=warning("few threads of a host feed its accelerators"),
)
def accelerators_fed(evidence: Evidence) -> Iterator[Finding]:
    """Each host has two hardware threads for each accelerator that took part in a mixed run."""
    phases = {run.phase for run in evidence.runs}
    used = {record.route.device for record in evidence.result.records if record.phase in phases}
    per_host: Counter[str] = Counter()
    for device in evidence.result.devices:
        if device.id in used and device.kind not in ("cpu", "simulated"):
            per_host[device.host] += len(device.silicon)
    for host, accelerators in per_host.items():
        system = evidence.result.system_of(host)
        threads = int(system.cpu_quota) if system.cpu_quota else system.cpu_threads
        if threads is not None and threads < THREADS_PER_ACCELERATOR * accelerators:
            values = {"threads": threads, "accelerators": accelerators, "needed": THREADS_PER_ACCELERATOR}
            yield found("accelerators_fed", host, **values)


@Room(440, sees="grade").rule(
    left_out=note("the score leaves out {phase}, which was disturbed: {why}"),
    missing=note("the score is {grade}, not {better}: {missing}"),
)
def score_graded(evidence: Evidence) -> Iterator[Finding]:
    """What the score lacks for the next better grade, and which disturbed runs it leaves out."""
    score = evidence.score
    if score is None or score.problems:
        return
    for run in score.runs:
        if run.disturbed and run.phase in score.left_out:
            yield found("score_graded.left_out", phase=run.phase, why=(run.disturbed,))
    if score.missing:
        yield found("score_graded.missing", grade=score.grade, better=score.better_grade, missing=score.missing)
