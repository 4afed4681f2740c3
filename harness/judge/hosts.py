"""The hosts of a result: which of them failed, how well the clock of each is known, and what its network carried.

A run on this machine alone has one host, whose name is empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mixmark.harness.contracts.figures import figure
from mixmark.harness.contracts.schema import Conditions, Connection, Finding, Record, Result
from mixmark.harness.judge.findings import declare, found, invalid

AT_REST_BYTES_PER_S = 64_000  # received and sent: a remote shell, discovery of services and a meter stay below


declare("hosts_took_part", invalid("{host} took no part: {why}"))


@dataclass(frozen=True)
class Traffic:
    """What the network of a host carried while a phase ran: sent and received, on all interfaces but the loopback."""

    host: str
    """The name of the host."""
    seconds: float
    """How long it was watched. 0: it was not, or its system does not say."""
    network_bytes: int
    """What the host sent and received."""
    agent_bytes: int
    """What the stream between the host's agent and the leading host carried."""

    @property
    def outside_bytes(self) -> int:
        """What is not the agent's own, if its stream went over one of these interfaces."""
        return max(0, self.network_bytes - self.agent_bytes)

    @property
    @figure
    def outside_per_s(self) -> float:
        """`outside_bytes` a second. 0: the host was not watched."""
        return self.outside_bytes / self.seconds if self.seconds else 0.0

    @property
    @figure
    def self_contained(self) -> bool | None:
        """Whether the host had no more traffic with the outside than a machine at rest has. None if not known."""
        return self.outside_per_s <= AT_REST_BYTES_PER_S if self.seconds else None


def took_no_part(result: Result) -> tuple[Finding, ...]:
    """A finding for each host that was asked for and took no part."""
    return tuple(
        found("hosts_took_part", host=absence.name, why=absence.reason)
        for absence in result.absent
        if absence.kind == "host"
    )


def lost(records: Iterable[Record], failed: Collection[str]) -> dict[str, list[Record]]:
    """The hosts whose records all failed, each with its records. The only host of a run is never among them.

    failed: the keys of the records that failed.
    """
    by_host: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_host[record.route.host].append(record)
    return {host: own for host, own in sorted(by_host.items()) if host and all(each.key in failed for each in own)}


def connection(result: Result, phase: str, host: str) -> Connection | None:
    """How the leading host reached another one during a phase."""
    return next((each for each in result.connections if (each.phase, each.host) == (phase, host)), None)


def clock_bound_ns(result: Result, phase: str, host: str | None = None) -> int:
    """How far a timestamp of a host, or if host is None of any host, may be off in a phase. It is 0 on this machine
    alone."""
    known = (each for each in result.connections if each.phase == phase and host in (None, each.host))
    return max((each.clock.bound_ns for each in known), default=0)


def touching(blocks: tuple[Conditions, ...], begin_ns: int, end_ns: int) -> tuple[Conditions, ...]:
    """The blocks of a watch that touch a window."""
    return tuple(each for each in blocks if each.begin_ns < end_ns and begin_ns < each.end_ns)


def carried(result: Result, phase: str, host: str, blocks: tuple[Conditions, ...]) -> Traffic:
    """The traffic of a host in these blocks of a phase."""
    known = [
        (each.received_bytes + each.sent_bytes, each.end_ns - each.begin_ns)
        for each in blocks
        if each.received_bytes is not None and each.sent_bytes is not None
    ]
    stream = connection(result, phase, host)
    return Traffic(
        host=host,
        seconds=sum(ns for _, ns in known) / 1e9,
        network_bytes=sum(moved for moved, _ in known),
        agent_bytes=stream.sent_bytes + stream.received_bytes if stream else 0,
    )


def traffic(result: Result, phase: str, begin_ns: int, end_ns: int) -> tuple[Traffic, ...]:
    """The traffic of each host that the leading host reached, in a window of a phase. Empty if the run has this
    machine alone."""
    watched = {record.route.host: record.conditions for record in reversed(result.records) if record.phase == phase}
    reached = (connection.host for connection in result.connections if connection.phase == phase)
    return tuple(carried(result, phase, host, touching(watched.get(host, ()), begin_ns, end_ns)) for host in reached)
