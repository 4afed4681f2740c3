"""Plans a mix over classes of hosts, so that the time of a plan does not grow with their number. Pure.

Hosts of a class have like devices, and each gets the same fractions of their time: the program has the devices of the
first one, with the sums of the rates and watts of all. If their rates are equal, the plan is as good as that over all
devices. Other hosts are joined only if there are many, and then lose at most what their rates differ by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from mixmark.harness.contracts.schema import Device, Placement, Rate
from mixmark.harness.plan.bound import OR, claim_name, each_once, fastest_routes, sharing
from mixmark.harness.plan.placement import Planner, Power, place

MOST_PAIRS = 8000  # of a suite and a device in a program, which is solved in about a second
LEAST_APART, MOST_APART = (
    0.01,
    10.0,
)  # by how much the rates of a class may differ; if that is not enough, by any factor

Class = list[list[Rate]]
"""The rates of each host of a class, in the same order of devices and suites."""


def by_classes(placement: Placement, devices: Sequence[Device]) -> Planner:
    """The planner that makes this plan again from observed rates. Memory is no constraint, since its suites are loaded.

    devices: of the run."""

    def plan(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        fastest = fastest_routes(rates)
        classes = _classes(fastest, devices)
        every = {like[0].device: [each.device for each in like] for like in _columns(classes)}
        found = place(
            mix_units,
            [_summed(like) for like in _columns(classes)],
            [device for device in devices if device.id in every],
            placement.objective,
            host_fraction=placement.host_fraction,
            power=_power(placement, every, devices),
        )

        def spread(fractions: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
            parts = ((suite, first, part) for suite, own in fractions.items() for first, part in own.items())
            shares: dict[str, dict[str, float]] = {suite: {} for suite in fractions}
            for suite, first, part in parts:
                shares[suite] |= dict.fromkeys(every[first], part)
            return shares

        prices = {
            claim_name(sorted(claim)): price / len(every[names.split(OR)[0]])
            for names, price in found.device_prices.items()
            for claim in zip(*(every[first] for first in names.split(OR)), strict=True)
        }
        changed = {"rates": tuple(fastest), "device_prices": prices, "fractions": spread(found.fractions)}
        return found.model_copy(update=changed | {"bound_fractions": spread(found.bound_fractions)})

    return plan


def _columns(classes: Sequence[Class]) -> Iterator[tuple[Rate, ...]]:
    """The rates of each device of a class's first host with the rates of the like devices of the others."""
    return chain.from_iterable(zip(*hosts, strict=True) for hosts in classes)


def _summed(rates: Sequence[Rate]) -> Rate:
    watts = [rate.watts for rate in rates if rate.watts is not None]
    sums = {"units_per_s": sum(rate.units_per_s for rate in rates)}
    return rates[0].model_copy(update={**sums, "watts": sum(watts) if len(watts) == len(rates) else None})


def _power(placement: Placement, every: Mapping[str, Sequence[str]], devices: Sequence[Device]) -> Power | None:
    """The idle power of each class of devices. The idle power of all other devices is among the rest."""
    idle = placement.idle_watts
    if placement.rest_watts is None or not all(id in idle for own in every.values() for id in own):
        return None
    planned = {id for own in every.values() for id in own}
    others = sum(idle[each.id] for each in each_once(devices) if each.id in idle and each.id not in planned)
    return Power({first: sum(idle[id] for id in own) for first, own in every.items()}, placement.rest_watts + others)


def _classes(rates: Sequence[Rate], devices: Sequence[Device]) -> list[Class]:
    """Joins hosts until the program is small enough: first those of equal rates, then those of more and more different
    ones."""
    known, shared = {device.id: device for device in devices}, sharing(devices)
    hosts: dict[str, list[Rate]] = defaultdict(list)
    for rate in rates:
        hosts[known[rate.device].host].append(rate)
    alike: dict[object, list[list[Rate]]] = defaultdict(list)
    for own in hosts.values():
        number = {id: at for at, id in enumerate(dict.fromkeys(rate.device for rate in own))}
        near = {id: tuple(sorted(number.get(other, -1) for other in shared.get(id, ()))) for id in number}
        alike[tuple((rate.suite, number[rate.device], known[rate.device].kind, near[rate.device]) for rate in own)] += [
            own
        ]
    apart = 0.0
    while True:
        classes = [each for same in alike.values() for each in _joined(same, apart)]
        if sum(len(each[0]) for each in classes) <= MOST_PAIRS or apart == np.inf:
            return classes
        apart = max(LEAST_APART, 1.5 * apart) if apart < MOST_APART else np.inf


def _joined(hosts: Sequence[list[Rate]], apart: float) -> list[Class]:
    """Joins each host with the first class whose first host has rates that differ by at most this fraction."""
    speeds = np.log([[rate.units_per_s for rate in own] for own in hosts])
    firsts, classes = [0], [[hosts[0]]]
    for at, own in enumerate(hosts[1:], 1):
        near = np.flatnonzero((np.abs(speeds[firsts] - speeds[at]) <= np.log1p(apart)).all(axis=1))
        if len(near):
            classes[near[0]].append(own)
        else:
            firsts.append(at)
            classes.append([own])
    return classes
