"""The clocks of the hosts and what their networks carried, in words and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.capabilities.hosts.figures import HostsOfRun
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters import figures
from mixmark.reporters.document import Block, Facts, Heading, Table
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN

MOST = 12  # hosts that a table lists; the others are in the JSON
YES_OR_NO = {True: "yes", False: "NO", None: "not known"}


class HostsSection(Section):
    def section(self, judged: Assessment, found: Sequence[HostsOfRun]) -> Iterator[Block]:
        yield Heading("Hosts", "hosts")
        for run in found:
            yield Facts(list(_facts(run)))
            yield _table(run)


def _facts(run: HostsOfRun) -> Iterator[tuple[str, str]]:
    """How well the clocks of the hosts were known, and whether the run was self-contained."""
    longer = figures.duration(2 * run.clock_bound_ns)
    yield "clocks", f"known to ±{figures.duration(run.clock_bound_ns)}; the window is counted {longer} longer for it"
    yield "traffic", _traffic(run)


def _traffic(run: HostsOfRun) -> str:
    outside = sum(traffic.outside_bytes for traffic in run.traffic)
    agents = sum(traffic.agent_bytes for traffic in run.traffic)
    answers = {traffic.self_contained for traffic in run.traffic}
    known = "self-contained" if None not in answers else "self-contained as far as known"
    conclusion = "not self-contained" if False in answers else known
    return f"{figures.prefixed(outside, 'B')} beside the agents' own {figures.prefixed(agents, 'B')}: {conclusion}"


def _table(run: HostsOfRun) -> Table:
    """The hosts with the most other traffic."""
    rows = [
        (
            traffic.host,
            figures.prefixed(traffic.agent_bytes, "B"),
            figures.prefixed(traffic.outside_bytes, "B") if traffic.seconds else UNKNOWN,
            figures.prefixed(traffic.outside_per_s, "B/s") if traffic.seconds else UNKNOWN,
            YES_OR_NO[traffic.self_contained],
        )
        for traffic in sorted(run.traffic, key=lambda traffic: -traffic.outside_per_s)[:MOST]
    ]
    return Table(run.phase, ("host", "its agent", "other traffic", "a second", "self-contained"), rows)
