"""What is judged of several hosts: their clocks, and that each took part and was reached."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.contracts.schema import Finding, Result
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import found, warning
from mixmark.harness.judge.rules.registered import Room

LARGEST_CLOCK_FRACTION = 0.001
"""The largest uncertainty of a host's clock, as a fraction of a window."""
LARGEST_DRIFT = 0.1
"""The largest drift of a clock against another: 0.0005 is real, and the line through few messages may be steeper."""


@Room(530).rule(
    warning(
        "{phase}: the clock of {host} is known to ±{bound_ms:,.1f} ms, {uncertain_pct:.2g} % of the window (limit "
        "{limit_pct:g} %), which is counted {longer_ms:,.1f} ms longer for it"
    ),
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


@Room(900).rule(
    warning("{host} took no part: {why}; the figures are of the other hosts"),
    noticed=warning("a host took no part, so the figures are of the others"),
)
def hosts_took_part(evidence: Evidence) -> Iterator[Finding]:
    """Every host that was asked for took part. The run is of those that did."""
    for absence in evidence.result.absent:
        if absence.kind == "host":
            yield found("hosts_took_part", host=absence.name, why=absence.reason)


def contradictions(result: Result) -> Iterator[str]:
    """No clock drifts as none does, and each host was reached while it measured."""
    for connection in result.connections:
        if not abs(connection.clock.drift) <= LARGEST_DRIFT:
            drift = connection.clock.drift
            yield f"the clock of {connection.host} drifts by {drift:g} in {connection.phase}, as no clock does"
    reached = {(connection.phase, connection.host) for connection in result.connections}
    led = {name for group in result.hosts for name in group.names}
    for record in result.records:
        host = record.route.host
        if host in led and record.completions is not None and (record.phase, host) not in reached:
            yield f"{record.key} was measured on {host}, and the bound of its clock is not known"
