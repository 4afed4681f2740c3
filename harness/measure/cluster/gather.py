"""What the agents of a run found on their hosts, put together as if it were one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.contracts.device_ids import on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent, Device, Domain, Environment, Hosts, System
from mixmark.harness.discover.devices import Found
from mixmark.harness.measure.cluster import messages, names
from mixmark.harness.measure.cluster.agents import Remotes
from mixmark.harness.measure.cluster.launchers import Host
from mixmark.harness.plan.phases import Target, Workload


@dataclass(frozen=True)
class Gathered:
    """The hosts that take part, and what they have."""

    found: Found
    refused: tuple[Absent, ...]
    """The hosts that take no part."""
    hosts: tuple[Hosts, ...]
    domains: tuple[Domain, ...]
    neighbours: Mapping[str, Sequence[str]]
    """For each host all hosts on its machine, itself included."""


def gather(remotes: Remotes, hosts: Sequence[Host], look: messages.Look, workloads: Sequence[Workload]) -> Gathered:
    """Asks all agents. Raises MixmarkError where no host can take part.

    workloads: the suites that are measured; a host that has another version or other weights of one takes no part.
    """
    look = look.model_copy(update={"leader": remotes.machine})
    told = remotes.ask(dict.fromkeys(remotes.there, look), messages.Seen)
    refused = dict(remotes.refused)
    seen: dict[str, messages.Seen] = {}
    machines: dict[str, list[str]] = {}
    cores = {host.name: set(host.cores) for host in hosts}
    for host in hosts:
        answer = told.get(host.name)
        if isinstance(answer, messages.Seen):
            beside = machines.setdefault(answer.machine, [])
            if problem := _differs(answer, workloads) or _shares_cores(host.name, beside, cores):
                refused[host.name] = problem
                remotes[host.name].lose(problem)
            else:
                seen[host.name] = answer
                beside.append(host.name)
        elif answer is not None:
            refused[host.name] = answer
    without = tuple(Absent(kind="host", name=name, reason=reason) for name, reason in refused.items())
    if not seen:
        raise MixmarkError("no host can be measured", "; ".join(f"{each.name}: {each.reason}" for each in without))
    absent = [*without]
    neighbours = {name: several for several in machines.values() for name in several}
    targets: list[Target] = []
    for name, answer in seen.items():
        absent += [names.absent_on(name, each) for each in answer.absent]
        for target in answer.targets:
            if same := _same(target.device, name, neighbours[name], seen):
                reason = f"it is the same device as {same}"
                absent.append(Absent(kind="device", name=on(name, target.device.id), reason=reason))
            else:
                targets.append(Target(names.device_on(name, target.device), target.adapter, target.options))
    domains, unread = _covered(remotes, neighbours)
    return Gathered(
        refused=without,
        found=Found(tuple(targets), (*absent, *unread), _environments(seen)),
        hosts=_grouped(seen),
        domains=domains,
        neighbours=neighbours,
    )


def _differs(seen: messages.Seen, workloads: Sequence[Workload]) -> str:
    """What a host has otherwise than this one; empty where it has the same."""
    there = {each.name: each for each in seen.suites}
    for each in workloads:
        other = there.get(each.name)
        if other is None:
            return f"it has no suite {each.name}"
        if other.version != each.version:
            return f"it has version {other.version} of the suite {each.name}, and this host {each.version}"
        if other.weights != each.weights:
            return f"its weights of {each.name} are {other.weights}, and those of this host {each.weights}"
    return ""


def _shares_cores(name: str, beside: Sequence[str], cores: Mapping[str, set[int]]) -> str:
    """Why a host cannot be measured beside others on its machine; empty where it can."""
    for other in beside:
        if not cores[name] or not cores[other] or cores[name] & cores[other]:
            return f"it is the same machine as {other}: give each cores = … of its own"
    return ""


def _same(device: Device, name: str, beside: Sequence[str], seen: Mapping[str, messages.Seen]) -> str:
    """The device of an earlier host on the same machine that is this one, or a part of it; empty where there is none.
    Processors are apart by their cores."""
    if not device.on_host:
        for other in beside[: beside.index(name)]:
            for target in seen[other].targets:
                if not target.device.on_host and target.device.overlaps(device):
                    return on(other, target.device.id)
    return ""


def _covered(remotes: Remotes, neighbours: Mapping[str, Sequence[str]]) -> tuple[tuple[Domain, ...], Sequence[Absent]]:
    """The domains of all meters. The first host of each machine reads them for all hosts on it."""
    readers = [name for name, several in neighbours.items() if name == several[0]]
    domains: list[Domain] = []
    absent: list[Absent] = []
    for name, covered in remotes.ask({name: messages.Cover() for name in readers}, messages.Covered).items():
        if isinstance(covered, str):
            absent.append(Absent(kind="meter", name=on(name, "meters"), reason=covered))
            continue
        domains += [names.domain_on(name, each, neighbours[name][1:]) for each in covered.domains]
        absent += [names.absent_on(name, each) for each in covered.absent]
    return tuple(domains), absent


def _environments(seen: Mapping[str, messages.Seen]) -> dict[str, Environment]:
    """The software of each adapter, once where all hosts have the same."""
    found: dict[str, Environment] = {}
    for name, answer in seen.items():
        for adapter, environment in answer.environments.items():
            if found.setdefault(adapter, environment) != environment:
                found[on(name, adapter)] = environment
    return found


def _grouped(seen: Mapping[str, messages.Seen]) -> tuple[Hosts, ...]:
    """Equal hosts once."""
    groups: list[tuple[System, list[str]]] = []
    for name, answer in seen.items():
        for system, several in groups:
            if system == answer.system:
                several.append(name)
                break
        else:
            groups.append((answer.system, [name]))
    return tuple(Hosts(names=tuple(several), system=system) for system, several in groups)
