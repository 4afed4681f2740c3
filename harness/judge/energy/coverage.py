"""The choice of energy domains that may be added, and the parts of a machine that they cover: domains overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import get_args

from mixmark.harness.contracts.device_ids import host_of, is_covered, meet, named, on, piece
from mixmark.harness.contracts.schema import HOST_POOL, HOST_PROCESSOR, Absent, Boundary, Device, Domain
from mixmark.harness.judge.energy.reading import WHOLE

CLASSES: tuple[Boundary, ...] = get_args(Boundary)  # the widest first
METHODS = ("external", "counter", "integrated", "modelled")  # the one to prefer first
LEFT_OUT: Mapping[Boundary, tuple[str, ...]] = {
    "wall": (),
    "node": ("power supply",),
    "devices": ("memory", "mainboard", "drives", "fans", "network", "power supply"),
}


def by_machine(domains: Iterable[Domain]) -> Collection[list[Domain]]:
    """The domains in groups that have no host in common. Domains of different groups never overlap."""
    of_host: dict[str, list[Domain]] = {}
    for domain in domains:
        met = {id(group): group for group in map(of_host.get, domain.hosts) if group}
        joined = [*(each for group in met.values() for each in group), domain]
        of_host |= {host: joined for each in joined for host in each.hosts}
    return {id(group): group for group in of_host.values()}.values()


def pairs(domains: Iterable[Domain]) -> Iterator[tuple[Domain, Domain]]:
    """The pairs that may overlap."""
    return (pair for group in by_machine(domains) for pair in combinations(group, 2))


def rivals(domains: Iterable[Domain]) -> Iterator[tuple[Domain, Domain]]:
    """The pairs of external meters of one boundary that claim the same thing, neither as a part of the other.

    They may be two readings of one thing, or one reading each of two parts, such as two power supplies. Only the owner
    of the machine knows.
    """
    known = {each.id: each for each in domains if each.method == "external"}
    for one, other in pairs(known.values()):
        nested = contains(one, other, known) or contains(other, one, known)
        nested = nested or set(one.covers) < set(other.covers) or set(other.covers) < set(one.covers)
        if one.boundary == other.boundary and not nested and overlap(one, other, known):
            yield one, other


def contains(one: Domain, other: Domain, domains: Mapping[str, Domain]) -> bool:
    """Whether a meter says that one domain contains the other."""
    return one.id in _ancestors(other, domains)


def overlap(one: Domain, other: Domain, domains: Mapping[str, Domain]) -> bool:
    """Whether adding both would count something twice: one contains the other, or both cover the same thing.

    Meters know nothing of each other's domains, so the wall of a host contains its node, and the node every device.
    """
    return (
        (one.boundary != other.boundary and not one.hosts.isdisjoint(other.hosts))
        or contains(one, other, domains)
        or contains(other, one, domains)
        or any(meet(mine, yours) for mine in one.covers for yours in other.covers)
    )


def _ancestors(domain: Domain, domains: Mapping[str, Domain]) -> set[str]:
    """The ids of all domains that contain this one. A forged file may hold a circle."""
    found: set[str] = set()
    while domain.parent is not None and domain.parent not in found:
        found.add(domain.parent)
        if domain.parent not in domains:
            break
        domain = domains[domain.parent]
    return found


def antichain(domains: Iterable[Domain], readable: Collection[str], devices: Iterable[Device]) -> tuple[Domain, ...]:
    """The domains to add, without overlap. They belong to the widest boundary that covers every device, or to the
    boundary `devices` if none does."""
    domains, devices = tuple(domains), tuple(devices)
    chosen: tuple[Domain, ...] = ()
    for boundary in CLASSES:
        chosen = within(boundary, domains, readable)
        if not uncovered(chosen, devices):
            break
    return chosen


def within(boundary: Boundary, domains: Iterable[Domain], readable: Collection[str]) -> tuple[Domain, ...]:
    """The domains of one boundary to add, without overlap.

    Among those that overlap, the one that covers more is taken, then a counter before polled power, then the parent.
    """
    known = {domain.id: domain for domain in domains}
    of_it = [each for each in known.values() if each.boundary == boundary and each.id in readable]
    chosen: dict[str, list[Domain]] = defaultdict(list)
    for domain in sorted(of_it, key=lambda each: _rank(each, known)):
        if not any(overlap(domain, other, known) for host in domain.hosts for other in chosen[host]):
            for host in domain.hosts:
                chosen[host].append(domain)
    return tuple({each.id: each for own in chosen.values() for each in own}.values())


def lacking(domains: Iterable[Domain], needed: Iterable[str]) -> tuple[str, ...]:
    """What of `needed`, such as `memory/2-of-2`, none of the domains covers, in order."""
    covers = covered(domains)
    return tuple(each for each in dict.fromkeys(needed) if not is_held(each, covers))


Covers = Mapping[str, Collection[str]]
"""The names of what is covered, by host."""


def covered(domains: Iterable[Domain]) -> Covers:
    covers: dict[str, set[str]] = defaultdict(set)
    for name in (each for domain in domains for each in domain.covers):
        covers[host_of(name)].add(name)
    return covers


def is_held(name: str, covers: Covers) -> bool:
    """Whether something of a host is covered, by its own name or with the whole host."""
    host = host_of(name)
    own = covers.get(host, ())
    return is_covered(name, own) or is_covered(on(host, WHOLE), own)


def _rank(domain: Domain, known: Mapping[str, Domain]) -> tuple[object, ...]:
    covered = sum(1 / piece(each)[2] for each in domain.covers)
    return (-covered, METHODS.index(domain.method), domain.accuracy or 1, len(_ancestors(domain, known)), domain.id)


def needed(devices: Iterable[Device], hosts: Iterable[str] = ("",)) -> tuple[Device, ...]:
    """What must be metered: the processor of each host, even if no adapter reaches it, and the devices."""
    devices = tuple(devices)
    computing = {device.host for device in devices if device.on_host}
    processors = (
        Device(id=on(host, HOST_PROCESSOR), kind="cpu", memory_pool=on(host, HOST_POOL))
        for host in hosts
        if host not in computing
    )
    return (*processors, *devices)


def uncovered(domains: Iterable[Domain], devices: Iterable[Device]) -> tuple[str, ...]:
    """The devices that are not wholly covered, in order."""
    covers = covered(domains)
    return tuple(each.id for each in devices if not is_whole(each, covers))


def unmetered(domains: Iterable[Domain], devices: Iterable[Device], absent: Iterable[Absent]) -> tuple[str, ...]:
    """What no domain covers: devices, and what the machine announces to meter beside them and nothing can read."""
    domains = tuple(domains)
    return (*uncovered(domains, devices), *lacking(domains, (part for each in absent for part in each.covers)))


def unmetered_parts(domains: Iterable[Domain], devices: Iterable[Device]) -> tuple[str, ...]:
    """The devices without a meter, for a reader. A host is named as a whole if these domains cover nothing on it."""
    domains = tuple(domains)
    metered = {host for each in domains for host in each.hosts}
    missing = uncovered(domains, devices)
    return tuple(dict.fromkeys(each if host_of(each) in metered else named(host_of(each)) for each in missing))


def why_no_boundary(domains: Sequence[Domain], devices: Sequence[Device]) -> Iterator[str]:
    """Why these domains have no common energy: some device has no meter, or no boundary holds all devices."""
    if missing := unmetered_parts(domains, devices):
        yield from (f"{each} is not metered" for each in missing)
        return
    ids, kinds = {each.id for each in domains}, dict[str, list[Boundary]]()
    chosen = {kind: covered(within(kind, domains, ids)) for kind in CLASSES}
    for device in devices:
        known = kinds.setdefault(device.host, [*CLASSES])
        known[:] = [kind for kind in known if is_whole(device, chosen[kind])]
    if not set(CLASSES).intersection(*kinds.values()):
        by = ", ".join(f"{named(host)} by {' or '.join(each) or 'several'}" for host, each in kinds.items())
        yield f"different boundaries are never added: {by}"


def is_whole(device: Device, covers: Covers) -> bool:
    """Whether all of a device is covered: of a group every part, of a slice the device that it is a slice of."""
    return is_held(device.whole.id, covers) or all(is_held(part, covers) for part in device.silicon)
