"""The highest rate of a mix by the solo rates, with its proof.

Let r[w,d] be the units of suite w that device d finishes per second, m[w] the units of w in one mix, and x[w,d] the
fraction of d's time for w:

    max λ   such that   Σ_d r[w,d] x[w,d] ≥ λ m[w] for each suite,   Σ_w x[w,d] ≤ 1 for each device,   x ≥ 0
    dual    min Σ_d u[d]   such that   u[d] ≥ r[w,d] v[w],   Σ_w m[w] v[w] = 1,   u, v ≥ 0

Any feasible (u, v) proves that no division of time exceeds Σ u, so these dual values are stored as a certificate. At
the optimum, u[d] is the contribution of device d and v[w] the value of a unit of w. A device then runs only the suites
with the largest r[w,d] v[w], and at most |W| + |D| − 1 of the x are above 0. The optimum bounds a measurement if each
device runs one feed at a time and no faster than alone; a device that overlaps feeds may exceed it.

Devices may share silicon: a group of GPUs and its members, a processor and its slices. A set of devices that pairwise
share silicon is a claim, with one row of time, Σ x ≤ 1 over its devices, and one dual value. The dual value of a
device's time is the sum over its claims.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.device_ids import is_covered, piece
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Device, Placement, Rate

Rated = TypeVar("Rated")
Key = TypeVar("Key", bound=Hashable)
Fractions = dict[str, dict[str, float]]
"""x[suite][device]: the fraction of the device's time for the suite; fractions of 0 are left out."""
NOTHING = 1e-9  # a smaller fraction of a device's time is a rounding error of the solver
OR = " or "  # separates the names of devices that share silicon in the name of their dual value
EXACT = 1e-6  # the relative tolerance of a certificate's figures, which are stored as decimal text


@dataclass(frozen=True)
class Bound:
    """The optimum of the linear program with its proof: the fractions reach it, and the dual values exclude a higher
    rate."""

    mixes_per_s: float
    fractions: Fractions
    suite_prices: Mapping[str, float]
    device_prices: Mapping[str, float]


def bound(mix_units: Mapping[str, float], rates: Sequence[Rate], devices: Iterable[Device] = ()) -> Bound:
    """Returns the bound λ*. It assumes that every route is resident, no host threads are reserved, each pair of suite
    and device uses its fastest route, and devices that share silicon take turns. Raises UsageError if a suite runs on
    no device.

    devices: other devices of the rates share no silicon.
    """
    fastest = fastest_routes([rate for rate in rates if rate.suite in mix_units])
    check_suites(mix_units, {rate.suite for rate in fastest})
    suites, used = list(mix_units), list(dict.fromkeys(rate.device for rate in fastest))
    rows = {suite: row for row, suite in enumerate(suites)}
    columns = {device: column for column, device in enumerate(used)}
    claims = claims_of_silicon(used, devices)
    claims_of: list[list[int]] = [[] for _ in used]
    for row, claim in enumerate(claims):
        for device in claim:
            claims_of[columns[device]].append(row)
    suite_of = np.array([rows[rate.suite] for rate in fastest])
    device_of = np.array([columns[rate.device] for rate in fastest])
    mix_rate = np.array([rate.units_per_s / mix_units[rate.suite] for rate in fastest])  # mixes/s of a whole device
    ell, units = solver_units(mix_units, fastest)
    unit = np.array([units[suite] for suite in suites])[suite_of]
    parts, worth, prices = _relaxed(
        suite_of, [claims_of[device] for device in device_of], mix_rate, unit, ell, len(suites)
    )
    # The solver's dual values are made exact: each device has at least the value of its best use.
    most = np.zeros(len(used))
    np.maximum.at(most, device_of, mix_rate * worth[suite_of])
    price_of = [prices.get(row, 0.0) if len(claim) > 1 else 0.0 for row, claim in enumerate(claims)]
    for own, earned_most in zip(claims_of, most.tolist(), strict=True):
        price_of[own[0]] += max(0.0, earned_most - math.fsum(price_of[row] for row in own))
    fractions, _ = trimmed(mix_units, fastest, parts.tolist())
    return Bound(
        math.fsum(price_of),
        fractions,
        {suite: float(worth[row]) / mix_units[suite] for suite, row in rows.items()},
        {claim_name(claim): price for claim, price in zip(claims, price_of, strict=True)},
    )


def _relaxed(
    suite_of: npt.NDArray[np.int64],
    claims_of: Sequence[Sequence[int]],
    mix_rate: npt.NDArray[np.float64],
    unit: npt.NDArray[np.float64],
    ell: float,
    suites: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], dict[int, float]]:
    """Solves the linear program over pairs of a suite and a device, with one row of time for each claim. Returns the
    fraction of the device's time for each pair, the fraction of a mix's value for each suite, and the dual value of
    each claim."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    pairs = len(mix_rate)
    at = np.arange(pairs)
    holder = np.repeat(at, [len(own) for own in claims_of])
    held, claim_row = np.unique(np.concatenate([np.array(own) for own in claims_of]), return_inverse=True)
    values = np.concatenate((-mix_rate * unit / ell, unit[holder], np.ones(suites)))
    lines = np.concatenate((suite_of, suites + claim_row, np.arange(suites)))
    columns = np.concatenate((at, holder, np.full(suites, pairs)))
    upper = coo_array((values, (lines, columns)), shape=(suites + len(held), pairs + 1)).tocsr()
    ends = np.repeat((0.0, 1.0), (suites, len(held)))
    gain = np.zeros(pairs + 1)
    gain[-1] = -1
    found = linprog(gain, A_ub=upper, b_ub=ends, method="highs-ds")
    if found.status != 0:
        raise MixmarkError(f"the solver found no bound: {found.message}")
    worth = np.maximum(-found.ineqlin.marginals[:suites], 0)
    prices = np.maximum(-found.ineqlin.marginals[suites:], 0) * ell / worth.sum()
    parts = (
        np.where(found.x[:-1] > NOTHING, found.x[:-1], 0.0) * unit
    )  # cleared in units that make no suite's fraction small
    return parts, worth / worth.sum(), dict(zip(held.tolist(), prices.tolist(), strict=True))


def sharing(devices: Iterable[Device]) -> dict[str, set[str]]:
    """Returns the ids of the devices that each device shares silicon with, without devices that share none."""
    near: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        for part in {piece(name)[0] for name in device.whole.silicon}:
            near[part].append(device)
    found: dict[str, set[str]] = defaultdict(set)
    for together in near.values():
        for one, other in itertools.combinations(together, 2):
            if one.overlaps(other):
                found[one.id].add(other.id)
                found[other.id].add(one.id)
    return dict(found)


def claims_of_silicon(used: Sequence[str], devices: Iterable[Device]) -> list[tuple[str, ...]]:
    """Returns the largest sets of ids of devices that pairwise share silicon, so that only one device of a set can run
    at a time. A device that shares no silicon is a set by itself. Every pair that shares silicon is in a set."""
    ids = dict.fromkeys(used)
    known = {device.id: device for device in devices if device.id in ids}
    shared = sharing(known.values())
    names = {name for id in shared for name in known[id].silicon}
    sets = {frozenset(id for id in shared if is_covered(name, known[id].silicon)) for name in names}
    sets |= {frozenset((one, other)) for one, others in shared.items() for other in others}
    largest = [each for each in sets if not any(each < larger for larger in sets)]
    return [*((id,) for id in ids if id not in shared), *sorted(tuple(sorted(each)) for each in largest)]


def claim_name(claim: Sequence[str]) -> str:
    return OR.join(claim)


def device_costs(prices: Mapping[str, float]) -> dict[str, float]:
    """Returns the dual value of each device's time: the sum over its claims."""
    costs: dict[str, float] = defaultdict(float)
    for names, price in prices.items():
        for id in names.split(OR):
            costs[id] += price
    return dict(costs)


def each_once(devices: Iterable[Device]) -> list[Device]:
    """Returns devices that together contain all silicon exactly once: the largest of devices that share silicon."""
    listed = list(devices)
    shared = sharing(listed)
    kept: dict[str, Device] = {}
    for device in sorted(listed, key=lambda each: -sum(1 / piece(name)[2] for name in each.whole.silicon)):
        if shared.get(device.id, set()).isdisjoint(kept):
            kept[device.id] = device
    return list(kept.values())


def best_kind(mix_units: Mapping[str, float], rates: Sequence[Rate], devices: Sequence[Device]) -> tuple[str, float]:
    """Returns the kind of device with the highest λ* alone, and its λ*. Returns ("", 0.0) if no kind runs every suite.

    All devices of a kind count together, and slices of a device count like the device, so that splitting a machine
    gains nothing.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    for device in devices:
        kinds[device.kind].add(device.id)
    best = ("", 0.0)
    for kind, ids in kinds.items():
        own = [rate for rate in rates if rate.device in ids]
        if mix_units.keys() <= {rate.suite for rate in own}:
            best = max(best, (kind, bound(mix_units, own, devices).mixes_per_s), key=lambda each: each[1])
    return best


def verify(placement: Placement, mix_units: Mapping[str, float], devices: Sequence[Device] = ()) -> tuple[str, ...]:
    """Checks the plan and its bound by arithmetic. Returns the problems; none if both are proven.

    devices: the result's devices. Other devices share no silicon."""
    speed = {(rate.suite, rate.device): rate.units_per_s for rate in placement.rates}
    if len(speed) < len(placement.rates):
        return ("two routes for one suite on one device",)
    value = placement.suite_prices
    claims = claims_of_silicon([rate.device for rate in placement.rates], devices)
    prices = {claim: placement.device_prices.get(claim_name(claim), 0.0) for claim in claims}
    cost: dict[str, float] = defaultdict(float)
    for claim, price in prices.items():
        for device in claim:
            cost[device] += price
    problems = []
    if min((*value.values(), *prices.values()), default=0) < 0:
        problems.append("a dual value is below 0")
    a_mix = math.fsum(count * value.get(suite, 0) for suite, count in mix_units.items())
    if not math.isclose(a_mix, 1, rel_tol=EXACT):
        problems.append(f"the dual values of the units of a mix add up to {a_mix:g}, not 1")
    for (suite, device), rate in speed.items():
        if suite in mix_units and cost[device] * (1 + EXACT) < rate * value.get(suite, 0):
            problems.append(f"the dual value of {device} is below that of its {suite}")
    dual = math.fsum(prices.values())
    for name, shares, claimed in (
        ("the bound", placement.bound_fractions, placement.bound_per_s),
        ("the plan", placement.fractions, placement.mixes_per_s),
    ):
        try:
            reached = _reached(mix_units, shares, speed, claims)
        except ValueError as error:
            problems.append(f"{name} {error}")
            continue
        if not math.isclose(reached, claimed, rel_tol=EXACT):
            problems.append(f"{name} reaches {reached:g} mix/s, not {claimed:g}")
    if not math.isclose(dual, placement.bound_per_s, rel_tol=EXACT):
        problems.append(f"the devices' dual values make {dual:g} mix/s, not the bound of {placement.bound_per_s:g}")
    if placement.mixes_per_s > placement.bound_per_s * (1 + EXACT):
        problems.append("the plan is above its bound")
    planned = {device for parts in placement.fractions.values() for device, part in parts.items() if part}
    for claim in claims:
        if len(both := planned.intersection(claim)) > 1:
            problems.append(f"the plan runs {' and '.join(sorted(both))} at once, which share silicon")
    return tuple(problems)


def _reached(
    mix_units: Mapping[str, float],
    shares: Fractions,
    speed: Mapping[tuple[str, str], float],
    claims: Sequence[tuple[str, ...]],
) -> float:
    """Returns the mixes per second of these fractions. Raises ValueError for impossible fractions."""
    given: dict[str, float] = defaultdict(float)
    done: dict[str, float] = dict.fromkeys(mix_units, 0.0)
    for suite, devices in shares.items():
        for device, part in devices.items():
            if (suite, device) not in speed or suite not in mix_units:
                raise ValueError(f"uses {suite} on {device}, but has no rate for it")
            if part < 0:
                raise ValueError(f"gives {suite} on {device} a negative time")
            given[device] += part
            done[suite] += part * speed[suite, device]
    if over := [claim_name(each) for each in claims if math.fsum(given[device] for device in each) > 1 + EXACT]:
        raise ValueError(f"gives more than all of the time of {', '.join(over)}")
    return min(done[suite] / count for suite, count in mix_units.items())


def check_suites(mix_units: Mapping[str, float], able: Collection[str]) -> None:
    if missing := [suite for suite in mix_units if suite not in able]:
        raise UsageError(
            f"no device can run {', '.join(missing)}",
            hint="the mix needs every suite; the solo records say why each route failed",
        )


def fastest(of: Iterable[Rated], by: Callable[[Rated], Key], per_s: Callable[[Rated], float]) -> dict[Key, Rated]:
    """The fastest for each value of `by`, the first of equals. per_s: the rate of one of them."""
    best: dict[Key, Rated] = {}
    for each in of:
        if (key := by(each)) not in best or per_s(each) > per_s(best[key]):
            best[key] = each
    return best


def fastest_routes(rates: Sequence[Rate]) -> list[Rate]:
    """The fastest route of each suite on each device."""
    return list(fastest(rates, lambda rate: (rate.suite, rate.device), lambda rate: rate.units_per_s).values())


def solver_units(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> tuple[float, dict[str, float]]:
    """Returns the scales of λ and of each suite's x in the solver, so that all unknowns are about 1: the mixes per
    second of a device that is as fast as the fastest for every suite, and the fraction of this device's time for each
    suite."""
    mix_rates = dict.fromkeys(mix_units, 0.0)
    for rate in rates:
        mix_rates[rate.suite] = max(mix_rates[rate.suite], rate.units_per_s / mix_units[rate.suite])
    ell = 1 / math.fsum(1 / mix_rate for mix_rate in mix_rates.values())
    return ell, {suite: ell / mix_rate for suite, mix_rate in mix_rates.items()}


def trimmed(mix_units: Mapping[str, float], rates: Sequence[Rate], parts: Sequence[float]) -> tuple[Fractions, float]:
    """Returns the fractions without the solver's rounding errors and without a suite's surplus, and the mixes per
    second."""
    time: dict[str, float] = defaultdict(float)
    for rate, part in zip(rates, parts, strict=True):
        time[rate.device] += part
    kept = [part / max(1.0, time[rate.device]) for rate, part in zip(rates, parts, strict=True)]
    mix_rates = dict.fromkeys(mix_units, 0.0)
    for rate, part in zip(rates, kept, strict=True):
        mix_rates[rate.suite] += part * rate.units_per_s / mix_units[rate.suite]
    slowest = min(mix_rates.values())
    shares: Fractions = defaultdict(dict)
    for rate, part in zip(rates, kept, strict=True):
        if part:
            shares[rate.suite][rate.device] = part * slowest / mix_rates[rate.suite]
    return dict(shares), slowest
