"""The energy of the whole machine in a window, and the power of its devices: the sum of the right readings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap

import numpy as np

from mixmark.harness.contracts.device_ids import is_covered, local, on, piece
from mixmark.harness.contracts.figures import RAW, figure
from mixmark.harness.contracts.schema import Absent, Boundary, Device, Domain, Int64s, Metering, Record, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.energy.coverage import (
    CLASSES,
    LEFT_OUT,
    antichain,
    by_machine,
    contains,
    covered,
    is_held,
    is_whole,
    lacking,
    needed,
    pairs,
    rivals,
    uncovered,
    why_no_boundary,
    within,
)
from mixmark.harness.judge.energy.reading import (
    TOO_SHORT,
    WHOLE,
    EnergyReading,
    cumulative,
    in_phase,
    rows_of_changes,
    same,
)
from mixmark.harness.judge.statistics.timestamps import Floats, window_ns

IN_COMMON = 0.2  # of the rows of changes of two sources, which are compared then
CROSS_CHECK = 0.05  # two sources of the same thing may differ by this fraction, or a whole be less than its parts
COARSER = 1.5  # times the uncertainty of the edges: of two sources that are read equally often, neither is coarser
CLAIM = (
    "{one} and {other} both claim to meter the same thing: if each meters a part of it, declare the parts, "
    'covers = "node/1-of-2" and "node/2-of-2"; else keep one of them'
)


@dataclass(frozen=True)
class MachineEnergy:
    """The energy that the whole machine used in one window, as far as it is known."""

    boundary: Boundary | None
    """None if some device is not metered, or not validly, or only modelled; then there are no joules either."""
    joules: float | None
    domains: tuple[str, ...]
    """The domains that were added, or would be: no two overlap."""
    unmetered: tuple[str, ...]
    """What has no meter: devices if `boundary` is None, else what lies outside of the boundary."""
    reasons: tuple[str, ...]
    """Why there is no boundary, a sentence each."""
    edge_uncertainty: float | None
    """How far the window's edges may put the joules of the worst domain off, as a fraction."""
    readings: Mapping[str, EnergyReading] = field(metadata=RAW)
    """The reading of every domain, added or not."""
    lost: tuple[str, ...] = ()
    """The domains that should have been added and have no joules in this window, with the reasons. A score needs all of
    them, even if a narrower boundary or another source of the same device has joules."""
    idle_watts: tuple[float | None, ...] = ()
    """The idle power of the same boundary, before and after the phase. None if not known."""
    sources: Mapping[str, str] = field(default_factory=dict, metadata=RAW)
    """The domains that were added, each by the one in whose place it is: a power by its counter, others by
    themselves."""

    @property
    def of_edges(self) -> tuple[float, float]:
        """The factors by which an efficiency may be too high and too low, as the edges of the window may be wrong."""
        if not self.joules:
            return 1.0, 1.0
        least, most = np.sum([self.readings[each].joules_between for each in self.domains], axis=0).tolist()
        return self.joules / most, self.joules / max(least, self.joules / 100)

    @property
    @figure
    def watts(self) -> float | None:
        watts = [self.readings[each].watts for each in self.domains]
        return None if self.joules is None else sum(each for each in watts if each is not None)


def to_meter(result: Result) -> tuple[Device, ...]:
    """The devices of a run that must be metered; see `needed`."""
    return needed(result.devices, result.systems)


def boundary(
    domains: Sequence[Domain],
    readings: Mapping[str, EnergyReading],
    devices: Iterable[Device],
    lost: Mapping[str, str] | None = None,
    absent: Iterable[Absent] = (),
) -> MachineEnergy:
    """Adds the domains of the widest boundary that holds every device and all else that the boundary was announced to
    hold.

    readings: of one window, by domain. lost: Metering.lost. absent: what the machine announces and nothing can read.
    Modelled energy counts as none: its domains are read and shown, and never added.
    """
    devices, absent = tuple(devices), [each for each in absent if each.covers]
    announced = {each.id for each in domains if each.method != "modelled"}
    powers = in_place(domains, readings)
    valid = {id for id in announced if readings[id].valid} - powers.keys()
    gone: list[str] = []
    unheld: list[str] = []
    for kind in CLASSES:
        planned, chosen = (within(kind, domains, each) for each in (announced, valid))
        if not planned or uncovered(planned, devices):
            continue
        gone += [
            f"{each.id}: {', '.join(why(readings[each.id], lost or {}))}"
            for each in planned
            if not readings[each.id].valid and readings[each.id].reasons != (TOO_SHORT,)
        ]
        if claims := list(rivals(each for each in domains if each.boundary == kind and each.id in announced)):
            reasons = [CLAIM.format(one=one.id, other=other.id) for one, other in claims]
            return MachineEnergy(None, None, (), uncovered((), devices), tuple(reasons), None, readings, tuple(gone))
        held = [part for each in planned for part in each.covers]
        unread = [each for each in absent if kind == "devices" and lacking(planned, each.covers)]
        unheld += [f"{each.name} is not read, and the boundary {kind} must hold it" for each in unread]
        if not (uncovered(chosen, devices) or lacking(chosen, held) or unread):
            found = _sum(kind, chosen, readings, tuple(gone), devices)
            counters = {power: counter for counter, power in powers.items()}
            return replace(found, sources={counters.get(each, each): each for each in found.domains})
    chosen = within("devices", domains, valid)
    missing = uncovered(chosen, devices)
    reasons = [*why_no_boundary([each for each in domains if each.id in announced], devices), *unheld]
    reasons += [
        f"{each.id}: {', '.join(why(readings[each.id], lost or {}))}" for each in domains if not readings[each.id].valid
    ]
    reasons += [f"{each.id} is modelled, not measured" for each in domains if each.method == "modelled"]
    return MachineEnergy(
        None, None, tuple(each.id for each in chosen), missing, tuple(reasons), None, readings, tuple(gone)
    )


def in_place(domains: Iterable[Domain], readings: Mapping[str, EnergyReading]) -> dict[str, str]:
    """The power that is added in place of a counter, by the counter: of the same devices, where the counter is read too
    seldom for the window, or so seldom that a power which confirms it has finer edges."""
    known = {each.id: each for each in domains if each.method != "modelled"}
    found = {}
    for each in known.values():
        of = known.get(each.parent or "")
        if of is None or (of.quantity, each.quantity) != ("energy", "power") or set(of.covers) != set(each.covers):
            continue
        counter, power = readings[of.id], readings[each.id]
        finer = (counter.edge_uncertainty or 0) > COARSER * (power.edge_uncertainty or 0)
        agrees = counter.joules and power.joules and abs(power.joules / counter.joules - 1) <= CROSS_CHECK
        if power.valid and (counter.reasons == (TOO_SHORT,) or (finer and agrees)):
            found[of.id] = each.id
    return found


def _sum(
    kind: Boundary,
    chosen: Sequence[Domain],
    readings: Mapping[str, EnergyReading],
    lost: tuple[str, ...],
    devices: Iterable[Device],
) -> MachineEnergy:
    added = [readings[each.id] for each in chosen]
    outside = tuple(_outside(kind, chosen, dict.fromkeys(each.host for each in devices)))
    joules = sum(each.joules for each in added if each.joules is not None)
    edges = max((each.edge_uncertainty for each in added if each.edge_uncertainty is not None), default=None)
    return MachineEnergy(kind, joules, tuple(each.domain for each in added), outside, (), edges, readings, lost)


def _outside(kind: Boundary, chosen: Iterable[Domain], of_hosts: Collection[str]) -> Iterator[str]:
    """What lies outside of the boundary. If it does so on some hosts only, with their names."""
    covers = covered(chosen)
    for name in LEFT_OUT[kind]:
        lacking = [host for host in of_hosts if not is_covered(on(host, name), covers.get(host, ()))]
        if len(lacking) == len(of_hosts):
            yield name
        elif lacking:
            yield f"{name} of {', '.join(lacking)}"


def unmeasured(totals: Mapping[str, MachineEnergy]) -> Reason | None:
    """Why the energies of several runs, by phase, make no common figure. None if they do.

    All must have joules of the same boundary, from the same domains, and no domain that should have been added may have
    been lost in any run: else less of the machine would count, and its efficiency would rise.
    """
    reasons = {
        phase: "; ".join(dict.fromkeys((*each.reasons, *each.lost)))
        for phase, each in totals.items()
        if each.joules is None or each.lost
    }
    alike = len(reasons) == len(totals) and len(set(reasons.values())) == 1
    faults = [*reasons.values()][:1] if alike else [f"{phase}: {reason}" for phase, reason in reasons.items()]
    if not faults and len({(each.boundary, frozenset(each.sources)) for each in totals.values()}) > 1:
        told = [f"{phase} {each.boundary} ({', '.join(each.domains)})" for phase, each in totals.items()]
        faults = [f"the runs have the energy of different boundaries or sources: {'; '.join(told)}"]
    return "; ".join(faults) or None


def why(read: EnergyReading, lost: Mapping[str, str]) -> tuple[str, ...]:
    """The reasons why a reading has no joules, and in its meter's own words why the source was lost."""
    return (*read.reasons, *((lost[read.domain],) if read.domain in lost else ()))


def total(result: Result, phase: str, begin_ns: int, end_ns: int) -> MachineEnergy:
    """The machine's energy in a window of a phase. If a meter is missing, the reasons say so."""
    metering = metered(result, phase)
    if metering is None or not result.domains:
        missing = uncovered((), to_meter(result))
        unread = (f"{each.name}: {each.reason}" for each in result.absent if each.kind == "meter" and each.covers)
        reasons = ("the meters were not read in its phase",) if result.domains else ("no meter was read", *unread)
        return MachineEnergy(None, None, (), missing, reasons, None, {})
    readings = {each.id: in_phase(each, metering, begin_ns, end_ns) for each in result.domains}
    for id in less_than_parts(result.domains, readings):
        readings[id] = replace(readings[id], joules=None, reasons=("less than its parts",))
    found = boundary(result.domains, readings, to_meter(result), metering.lost, result.absent)
    if doubled := list(twins(found.domains, metering)):
        reasons = tuple(f"{one} and {other} show one and the same reading" for one, other in doubled)
        return replace(found, boundary=None, joules=None, reasons=reasons)

    def at_rest(begin_ns: int, end_ns: int) -> float | None:
        read = {each.id: in_phase(each, metering, begin_ns, end_ns) for each in result.domains}
        rested = boundary(result.domains, read, to_meter(result), metering.lost, result.absent)
        return rested.watts if rested.boundary == found.boundary else None

    return replace(found, idle_watts=tuple(starmap(at_rest, metering.idle_ns)) if found.boundary else ())


def twins(ids: Iterable[str], metering: Metering) -> Iterator[tuple[str, str]]:
    """The pairs of sources that showed one and the same reading in a phase: to add them would count it twice, and that
    they agree tells nothing. Of several alike, each is paired with the first. The sources of all hosts are compared if
    they have enough `rows_of_changes` in common."""
    read = {id: metering.samples[id] for id in ids if id in metering.samples}
    rows = {id: rows_of_changes(samples) for id, samples in read.items()}
    first: dict[int, str] = {}
    common = Counter((first.setdefault(row, id), id) for id, own in rows.items() for row in own)
    for (one, other), count in common.items():
        alike = one != other and count >= IN_COMMON * min(len(rows[one]), len(rows[other]))
        if alike and same(read[one], read[other]):
            yield one, other


def of_record(result: Result, record: Record) -> MachineEnergy | None:
    """The machine's energy in the record's window, from its first issue to its last mark.

    None if nothing finished, or other records share its phase and no meter can tell their joules apart.
    """
    sharing = [each for each in result.records if each.phase == record.phase]
    planned = [
        share for each in result.phases if each.name == record.phase for task in each.tasks for share in task.shares
    ]
    if record.completions is None or max(len(sharing), len(planned)) > 1:
        return None
    begin_ns, end_ns = window_ns(record.completions)
    return total(result, record.phase, begin_ns, end_ns) if end_ns > begin_ns else None


def blocks(found: MachineEnergy, result: Result, phase: str, edges_ns: Int64s) -> Floats | None:
    """[edges - 1], the machine's joules in neighbouring blocks of a window of a phase. None if `found` has no joules.

    found: the total of the window; the joules of the blocks add up to its joules.
    """
    metering = metered(result, phase)
    if found.joules is None or metering is None:
        return None
    known = {each.id: each for each in result.domains}
    sums = [cumulative(known[id], metering.samples.get(id), edges_ns) for id in found.domains]
    return np.asarray(sum(np.diff(each) for each in sums if each is not None))


def metered(result: Result, phase: str) -> Metering | None:
    return next((each for each in reversed(result.meterings) if each.phase == phase), None)


def device_watts(result: Result, phase: str, device: Device, begin_ns: int, end_ns: int) -> float | None:
    """The mean power of a device's own domains, which cover it and no other device. None if not measured.

    A domain that it shares with others, such as a package with an accelerator inside, is not its own.
    """
    metering = metered(result, phase)
    if metering is None:
        return None
    of_it = {device.id, *device.silicon}
    own = [
        each
        for each in result.domains
        if each.boundary == "devices"
        and each.method != "modelled"
        and all(is_covered(part, of_it) for part in each.covers)
    ]
    readings = {each.id: in_phase(each, metering, begin_ns, end_ns) for each in own}
    valid = {id for id, each in readings.items() if each.valid} - in_place(own, readings).keys()
    chosen = antichain(own, valid, (device,))
    if not is_whole(device, covered(chosen)):
        return None
    return sum(watts for each in chosen if (watts := readings[each.id].watts) is not None)


def disagreements(
    domains: Iterable[Domain], readings: Mapping[str, EnergyReading]
) -> Iterator[tuple[Domain, Domain, float]]:
    """(one, other, by how much of the one's joules the other's differ) of each two sources of the same thing; a counter
    is the one. If one of two counters, or of two powers, contains the other, the part may be less."""
    known = {each.id: each for each in domains if each.method != "modelled" and readings[each.id].valid}
    ranked = sorted(known.values(), key=lambda each: (each.method != "counter", each.method == "external", each.id))
    for one, other in pairs(ranked):
        if one.boundary != other.boundary or set(one.covers) != set(other.covers):
            continue
        contained = one.quantity == other.quantity and (contains(one, other, known) or contains(other, one, known))
        whole, part = (other, one) if contained and contains(other, one, known) else (one, other)
        joules, beside = readings[whole.id].joules, readings[part.id].joules
        if joules and beside is not None and not (contained and beside < joules):
            yield whole, part, beside / joules - 1


def less_than_parts(domains: Iterable[Domain], readings: Mapping[str, EnergyReading]) -> frozenset[str]:
    """The sources that read less than their parts together, by more than `CROSS_CHECK`: a wall or a node, or all
    pieces of one, against what it holds, and a source that covers more than others of its boundary, against those."""
    valid = [each for each in domains if each.method != "modelled" and readings[each.id].valid]
    return frozenset(
        id for own in by_machine(valid) for id in _less_than_parts({each.id: each for each in own}, readings)
    )


def _less_than_parts(read: Mapping[str, Domain], readings: Mapping[str, EnergyReading]) -> set[str]:
    """The sources of one machine that read less than their parts."""

    def joules(of: Iterable[Domain]) -> float:
        return sum(readings[each.id].joules or 0 for each in of)

    less: set[str] = set()
    for kind in CLASSES:
        of_kind = [each for each in read.values() if each.boundary == kind]
        pieces: dict[frozenset[str], list[Domain]] = defaultdict(list)
        for each in of_kind:
            if _in_part(each):
                pieces[each.hosts].append(each)
        split = [tuple(own) for of, own in pieces.items() if of <= _wholly(own)]
        for wholes in [(each,) for each in of_kind] + split:
            covers, names = covered(wholes), {part for each in wholes for part in each.covers}
            inner = [within(kind, (each for each in of_kind if set(each.covers) < names and each not in wholes), read)]
            held = [each for each in read.values() if all(is_held(part, covers) for part in each.covers)]
            inner += [within(each, held, read) for each in CLASSES[CLASSES.index(kind) + 1 :]]
            if joules(wholes) < (1 - CROSS_CHECK) * max(map(joules, inner), default=0):
                less |= {each.id for each in wholes}
    return less


def _wholly(domains: Sequence[Domain]) -> frozenset[str]:
    """The hosts that these domains cover as a whole."""
    covers = {part for each in domains for part in each.covers}
    return frozenset(host for each in domains for host in each.hosts if is_covered(on(host, WHOLE), covers))


def _in_part(domain: Domain) -> bool:
    """Whether it covers one of several parts of its host, such as one power supply."""
    return any(local(name) == WHOLE and of > 1 for name, _, of in map(piece, domain.covers))


def ready_watts(result: Result, phase: str) -> float | None:
    """The power while everything was loaded before a phase of the mix, and nothing was asked. None if not measured."""
    metering = metered(result, phase)
    if metering is None or metering.ready_ns is None:
        return None
    return total(result, phase, *metering.ready_ns).watts
