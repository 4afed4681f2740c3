"""Joins the descriptions of all hosts of a run, as if the hosts were one machine."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.hosts import machine, messages, names
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host
from mixmark.harness.capabilities.hosts.messages import AgentCalls
from mixmark.harness.contracts.device_ids import local, on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent, Device, Domain, Environment, Hosts
from mixmark.harness.contracts.text import Reason, unnamed
from mixmark.harness.machine.devices import Found
from mixmark.harness.plan.phases import Target, Workload


@dataclass(frozen=True)
class Gathered:
    """The hosts that take part, with their devices and meters."""

    found: Found
    """Also the hosts that take no part, as absences."""
    hosts: tuple[Hosts, ...]
    domains: tuple[Domain, ...]
    neighbours: Mapping[str, Sequence[str]]
    """For each host all hosts on its machine, itself included."""


def gather(agents: Agents, hosts: Sequence[Host], query: messages.HostQuery, workloads: Sequence[Workload]) -> Gathered:
    """Asks all agents to describe their hosts. Raises MixmarkError if no host can take part.

    workloads: the suites that are measured; a host that has another version or other weights of one takes no part.
    """
    query = query.model_copy(update={"leader": machine.identity(), "run": uuid.uuid4().hex})
    replies = agents.call(AgentCalls.describe_host, agents.present, query=query)
    refused = dict(agents.refused)
    described: dict[str, messages.HostDescription] = {}
    machines: dict[str, list[str]] = {}
    cores = {host.name: set(host.cores) for host in hosts}
    for host in hosts:
        reply = replies.get(host.name)
        if isinstance(reply, messages.HostDescription):
            beside = machines.setdefault(reply.machine, [])
            if problem := _suite_problem(reply, workloads, query.files) or _cores_problem(host.name, beside, cores):
                refused[host.name] = problem
                agents[host.name].lose(problem)
            else:
                described[host.name] = reply
                beside.append(host.name)
        elif reply is not None:
            refused[host.name] = reply
    absent_hosts = tuple(Absent(kind="host", name=name, reason=reason) for name, reason in refused.items())
    if not described:
        reasons = "; ".join(f"{absent.name}: {absent.reason}" for absent in absent_hosts)
        raise MixmarkError("no host can be measured", reasons)
    neighbours = {name: several for several in machines.values() for name in several}
    targets, absent = _targets(described, neighbours)
    domains, unread = _open_meters(agents, neighbours)
    return Gathered(
        found=Found(targets, (*absent_hosts, *absent, *unread), _environments(described)),
        hosts=_grouped(described, neighbours),
        domains=domains,
        neighbours=neighbours,
    )


def _suite_problem(
    description: messages.HostDescription, workloads: Sequence[Workload], compared: Collection[str]
) -> Reason | None:
    """A suite that the host lacks, or has with another version or other weights than this host. compared: the suites
    whose files the agent compared."""
    installed = {suite.name: suite for suite in description.suites}
    for wanted in workloads:
        found = installed.get(wanted.name)
        if found is None:
            return f"it has no suite {wanted.name}"
        if found.version != wanted.version:
            return f"it has version {found.version} of the suite {wanted.name}, and this host {wanted.version}"
        if wanted.name not in compared and unnamed(found.weights) != unnamed(wanted.weights):
            return f"its weights of {wanted.name} are {found.weights}, and this host's are {wanted.weights}"
    return None


def _cores_problem(name: str, beside: Sequence[str], cores: Mapping[str, set[int]]) -> Reason | None:
    """Why a host cannot be measured beside others on its machine."""
    for neighbour in beside:
        if not cores[name] or not cores[neighbour] or cores[name] & cores[neighbour]:
            return f"it is the same machine as {neighbour}: give each cores = … of its own"
    return None


def _targets(
    described: Mapping[str, messages.HostDescription], neighbours: Mapping[str, Sequence[str]]
) -> tuple[tuple[Target, ...], list[Absent]]:
    """The targets of all hosts. A device that several hosts on one machine see belongs to the first of them."""
    targets: list[Target] = []
    absent: list[Absent] = []
    for name, description in described.items():
        absent += description.found.absent
        earlier = neighbours[name][: neighbours[name].index(name)]
        seen = [target.device for neighbour in earlier for target in described[neighbour].found.targets]
        for target in description.found.targets:
            if same := next((device for device in seen if _is_same(device, target.device)), None):
                reason = f"it is the same device as {same.id}"
                absent.append(Absent(kind="device", name=target.device.id, reason=reason))
            else:
                targets.append(target)
    return tuple(targets), absent


def _is_same(device: Device, other: Device) -> bool:
    """Whether two hosts on one machine see one accelerator. Processors are told apart by their cores."""
    return not (device.on_host or other.on_host) and names.to_host(device).overlaps(names.to_host(other))


def _open_meters(
    agents: Agents, neighbours: Mapping[str, Sequence[str]]
) -> tuple[tuple[Domain, ...], Sequence[Absent]]:
    """The domains of all meters. The first host of each machine reads them for all hosts on it."""
    readers = [name for name, several in neighbours.items() if name == several[0]]
    domains: list[Domain] = []
    absent: list[Absent] = []
    for name, reply in agents.call(AgentCalls.open_meters, readers).items():
        if isinstance(reply, str):
            absent.append(Absent(kind="meter", name=on(name, "meters"), reason=reply))
            continue
        for found in reply:
            if isinstance(found, Absent):
                absent.append(found)
                continue
            covers = tuple(on(host, local(id)) for host in neighbours[name] for id in found.covers)
            domains.append(found.model_copy(update={"covers": covers}))
    return tuple(domains), absent


def _environments(described: Mapping[str, messages.HostDescription]) -> dict[str, Environment]:
    """The software of each adapter; once if all hosts have the same."""
    found: dict[str, Environment] = {}
    for name, description in described.items():
        for adapter, environment in description.found.environments.items():
            if found.setdefault(adapter, environment) != environment:
                found[on(name, adapter)] = environment
    return found


def _grouped(
    described: Mapping[str, messages.HostDescription], neighbours: Mapping[str, Sequence[str]]
) -> tuple[Hosts, ...]:
    """Hosts with equal systems, as one entry."""
    equal: dict[str, list[str]] = defaultdict(list)
    for name, description in described.items():
        equal[description.system.model_dump_json()].append(name)
    found = []
    for several in equal.values():
        machines = sum(name == neighbours[name][0] for name in several)
        system = described[several[0]].system
        found.append(Hosts(names=tuple(several), machines=machines if machines < len(several) else None, system=system))
    return tuple(found)
