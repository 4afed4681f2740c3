"""The checks of a meter, in the order of docs/vendors/conformance.md: what the kit read -> what it saw."""

from __future__ import annotations

import re
from itertools import combinations

from mixmark.harness.contracts.device_ids import piece
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Domain
from mixmark.harness.judge.energy.coverage import LEFT_OUT, WHOLE, contains, overlap
from mixmark.harness.measure.conformance.readings import BUSY_PERCENT, Readings
from mixmark.harness.measure.conformance.report import Check, NotChecked, fail_if

DOMAINS_WITHIN_S = 10.0
MOST_WATTS = 1e6  # of any machine
RISES = 1.02  # times the power at rest, under load
RAISED = re.compile(r"[A-Za-z]+(Error|Exception|Exit)\b")
"""The begin of a reason if a meter raised another error than MixmarkError."""
PARTS = frozenset({WHOLE, *(part for several in LEFT_OUT.values() for part in several)})
"""The names that a domain may cover beside devices."""


def domains_are_quick(read: Readings) -> str:
    """`domains` returns within 10 s."""
    took_s = min(each.took_s for each in read.asked)
    fail_if(took_s > DOMAINS_WITHIN_S, f"it took {took_s:.0f} s, and may take {DOMAINS_WITHIN_S:g} s")
    return f"{took_s:.2f} s"


def domains_are_repeatable(read: Readings) -> str:
    """Two fresh meters report the same domains, and the same sources that cannot be read."""
    first, second = read.asked
    fail_if(first.domains != second.domains, "the second time it told other domains")
    fail_if(first.absent != second.absent, "the second time it told other sources that cannot be read")
    return f"twice the same: {', '.join(each.id for each in first.domains) or 'no domain'}"


def absent_sources_say_why(read: Readings) -> str:
    """A source that cannot be read says why; if only a permission is missing, with the command that gives it. A meter
    raises only MixmarkError."""
    for each in read.asked[0].absent:
        fail_if(RAISED.match(each.reason), f"it raised {each.reason}")
        fail_if(not each.reason.strip(), f"{each.name}: there is no reason")
        denied = "denied" in each.reason.lower() and "sudo" not in each.reason
        fail_if(denied, f"{each.name}: {each.reason}: it lacks the command that makes it readable")
    return "; ".join(f"{each.name}: {each.reason}" for each in read.asked[0].absent) or "nothing is absent"


def covers_are_known(read: Readings) -> str:
    """`covers` names devices by their ids, their pieces, or parts of a machine that the docs name."""
    known = PARTS | {HOST_PROCESSOR, *(id for each in read.devices for id in (each.id, *each.silicon))}
    for domain in read.domains:
        unknown = [each for each in domain.covers if piece(each)[0] not in known]
        fail_if(unknown, f"{domain.id} covers {', '.join(unknown)}, which is no device and no part of a machine")
        fail_if(domain.meter != read.meter.name, f"{domain.id} says that it is of the meter {domain.meter}")
    return "; ".join(f"{each.id}: {', '.join(each.covers)}" for each in read.domains)


def parents_exist(read: Readings) -> str:
    """The parent of a domain is another domain of the meter, and no domain contains itself."""
    known = {each.id: each for each in read.domains}
    for domain in known.values():
        fail_if(domain.parent is not None and domain.parent not in known, f"there is no {domain.parent}")
        fail_if(contains(domain, domain, known), f"{domain.id} contains itself")
    return f"{sum(each.parent is not None for each in known.values())} of {len(known)} domains have a parent"


def nothing_overlaps(read: Readings) -> str:
    """No two domains of one boundary cover the same thing, unless one is the parent of the other."""
    known = {each.id: each for each in read.domains}
    for one, other in combinations(known.values(), 2):
        nested = contains(one, other, known) or contains(other, one, known)
        twice = one.boundary == other.boundary and not nested and overlap(one, other, known)
        fail_if(twice, f"{one.id} and {other.id} cover the same, and neither is the parent of the other")
    return f"{len(known)} domains"


def reads_are_quick(read: Readings) -> str:
    """A read returns within 2 s and raises nothing, at rest and under load."""
    for seen in (*read.at_rest.values(), *read.under_load.values()):
        fail_if(seen.lost, f"{seen.domain.id}: {seen.lost}")
        fail_if(not seen.reads, f"{seen.domain.id}: it gave no sample")
    return f"{min(each.reads for each in read.at_rest.values())} samples of each domain at rest"


def counters_rise(read: Readings) -> str:
    """A counter never falls, unless it wraps at the `wrap_joules` that its domain declares."""
    counters = [each for each in read.domains if each.quantity == "energy"]
    if not counters:
        raise NotChecked("it reads power and no counter")
    for domain in counters:
        for seen in (read.at_rest[domain.id], read.under_load[domain.id]):
            fell = [each for each in seen.reading.reasons if each in ("jumped back", "jumped ahead")]
            fail_if(fell, f"{domain.id}: the counter {' and '.join(fell)}")
    return ", ".join(_wraps(each) for each in counters)


def power_is_plausible(read: Readings) -> str:
    """The power is above zero and that of a machine, and that of a processor rises under load."""
    told = []
    for domain in read.domains:
        rest, load = read.at_rest[domain.id].watts, read.under_load[domain.id].watts
        if rest is None or load is None:
            continue
        message = f"{domain.id}: {rest:.1f} W at rest, {load:.1f} W under load"
        fail_if(not (0 < rest < MOST_WATTS and 0 < load < MOST_WATTS), f"{message}: that cannot be")
        computes = any(piece(each)[0] in (HOST_PROCESSOR, WHOLE) for each in domain.covers)
        fail_if(computes and read.rest_percent < BUSY_PERCENT and load < RISES * rest, f"{message}: it follows no load")
        told.append(message)
    if not told:
        raise NotChecked("no domain changed within 3 s")
    return "; ".join(told)


CHECKS: tuple[Check[Readings], ...] = (
    domains_are_quick,
    domains_are_repeatable,
    absent_sources_say_why,
    covers_are_known,
    parents_exist,
    nothing_overlaps,
    reads_are_quick,
    counters_rise,
    power_is_plausible,
)
"""Every check, in the order in which they are made."""


def _wraps(domain: Domain) -> str:
    return f"{domain.id} wraps at {domain.wrap_joules:.4g} J" if domain.wrap_joules else f"{domain.id} does not wrap"
