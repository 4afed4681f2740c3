"""The hosts of each mixed run: how well their clocks were known, and what their networks carried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.mixed_run import ScoredRun, Traffic, carried, touching


@dataclass(frozen=True)
class HostsOfRun:
    """The hosts of a mixed run."""

    phase: str
    """The name of its phase."""
    clock_bound_ns: int
    """How far a timestamp of a host may be off."""
    traffic: tuple[Traffic, ...]
    """What the network of each host carried."""


def of_runs(judged: Assessment) -> tuple[HostsOfRun, ...] | None:
    """None if the run has no score, or this machine alone."""
    runs = judged.score.runs if judged.score and judged.result.connections else ()
    found = (HostsOfRun(run.phase, run.clock_bound_ns, tuple(_traffic(judged.result, run))) for run in runs)
    return tuple(each for each in found if each.traffic) or None


def _traffic(result: Result, run: ScoredRun) -> Iterator[Traffic]:
    """The traffic of each host that the leading host reached, in the window."""
    watched = {each.route.host: each.conditions for each in reversed(result.records) if each.phase == run.phase}
    for host in (each.host for each in result.connections if each.phase == run.phase):
        yield carried(result, run.phase, host, touching(watched.get(host, ()), run.begin_ns, run.end_ns))
