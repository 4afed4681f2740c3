"""Plans how much of its time each device gives to each suite, and proves that no plan finishes more mixes.

Let r[w,d] be the units of suite w that device d finishes per second, m[w] the units of w in one mix, and x[w,d] the
share of its time that d gives to w:

    max λ   such that   Σ_d r[w,d] x[w,d] ≥ λ m[w] for each suite,   Σ_w x[w,d] ≤ 1 for each device,   x ≥ 0
    dual    min Σ_d u[d]   such that   u[d] ≥ r[w,d] v[w],   Σ_w m[w] v[w] = 1,   u, v ≥ 0

Any feasible (u, v) proves that no division of time exceeds Σ u, so these dual prices are stored as a certificate. At
the optimum, u[d] is the contribution of device d and v[w] the value of a unit of w. A device then runs only suites for
which r[w,d] v[w] is largest, and at most |W| + |D| − 1 of the x are above 0. The optimum bounds a measurement if each
device runs one feed at a time and no faster than alone; a device that overlaps feeds may exceed it.

Devices may share silicon: a group of GPUs and each of them, a processor and a slice of it. Each set of devices of which
any two share some has one row of time, Σ x ≤ 1 over all of them, and one price; a device's time costs what its rows
cost together. A plan is stricter: it uses one device of such a set and none of the others, which are not even loaded.

Mixes per joule are a ratio of two such sums. A sequence of these programs maximises it (Dinkelbach). It ends at the
same optimum as the single program of Charnes & Cooper, and it also does so if some of the unknowns are integers.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.device_ids import is_covered, piece
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Device, Placement, Rate

Objective = Literal["throughput", "efficiency"]
Shares = dict[str, dict[str, float]]
"""The share of its time that a device gives to a suite, as x[suite][device]; shares of 0 are left out."""
Planner = Callable[[Mapping[str, float], Sequence[Rate]], Placement]
"""A plan for a mix (units by suite) over these rates; `place` with the rest bound."""
NOTHING = 1e-9  # a smaller share of a device's time is a rounding error of the solver
GAP = 5e-3  # relative gap at which the integer program stops: the rates are known less exactly
FEW = 500  # devices that the bound is first looked for on, of a machine that has more
NEAR = 0.2  # how much less than a device's best suite another may be worth, to be looked at with it
OR = " or "  # between the names of devices that share silicon, in the name of their price
EXACT = 1e-6  # relative tolerance of the figures of a certificate, which was stored as decimal text


@dataclass(frozen=True)
class Power:
    """The power inside the energy boundary, in addition to the watts of each rate."""

    idle_watts: Mapping[str, float]
    """The idle power of every device in the boundary, whether the plan may use the device or not."""
    rest_watts: float = 0.0
    """The power of everything that is not a device: memory, fans, the loss of the power supply."""


@dataclass(frozen=True)
class Bound:
    """The optimum of the linear program with its proof: the shares reach it, and the dual prices exclude more."""

    mixes_per_s: float
    shares: Shares
    suite_prices: Mapping[str, float]
    device_prices: Mapping[str, float]


def place(
    mix_units: Mapping[str, float],
    rates: Sequence[Rate],
    devices: Sequence[Device],
    objective: Objective = "throughput",
    *,
    pool_bytes: Mapping[str, int] | None = None,
    host_fraction: float = 0.0,
    power: Power | None = None,
) -> Placement:
    """Returns the best plan. Its `rates` hold one route for each pair of suite and device: the route that the best plan
    uses, or the fastest route if it uses none.

    rates: any number of routes for each pair; suites outside the mix and devices outside `devices` are ignored.
    pool_bytes: the free memory of each pool that is limited. All routes in use must fit into their pools, since each
    worker holds its own weights; a rate of unknown memory counts as 0 bytes.
    host_fraction: the share of every CPU device's time that the host threads of one accelerator of its host take, if
    the plan uses the accelerator. power: required for the objective efficiency. For throughput it adds the predicted
    watts of the plan, if all rates have watts.

    Raises UsageError if no device runs a suite, or if efficiency is asked for without power. Raises MixmarkError if the
    mix does not fit into memory.
    """
    known = {device.id for device in devices}
    wanted = [rate for rate in rates if rate.suite in mix_units and rate.device in known]
    _check(mix_units, wanted)
    if objective == "efficiency":
        _check_power(wanted, devices, power)
    problem = _Problem(mix_units, wanted, devices, pool_bytes or {}, host_fraction)
    if objective == "throughput" and not problem.binds:
        chosen = _fastest(wanted)
        limit = bound(mix_units, chosen, devices)
        shares, mixes_per_s = limit.shares, limit.mixes_per_s
    else:
        chosen, best = _chosen(problem, devices, power if objective == "efficiency" else None)
        shares, mixes_per_s = _trimmed(mix_units, chosen, best)
        limit = bound(mix_units, chosen, devices)
    return Placement(
        objective=objective,
        rates=tuple(chosen),
        fractions=shares,
        mixes_per_s=mixes_per_s,
        bound_per_s=limit.mixes_per_s,
        bound_fractions=limit.shares,
        suite_prices=dict(limit.suite_prices),
        device_prices=dict(limit.device_prices),
        watts=predicted_watts(shares, chosen, devices, power),
        pool_bytes=dict(pool_bytes or {}),
        host_fraction=host_fraction,
        idle_watts=dict(power.idle_watts) if power else {},
        rest_watts=power.rest_watts if power else None,
    )


def _chosen(problem: _Problem, devices: Sequence[Device], power: Power | None) -> tuple[list[Rate], list[float]]:
    """Returns one route for each pair, and the best plan's share of its device's time for each."""
    best = _best(problem, power)
    chosen = _one_each(problem.rates, best)
    part_of = {id(rate): part for rate, part in zip(problem.rates, best, strict=True)}
    if math.fsum(part_of[id(rate)] for rate in chosen) < math.fsum(best):  # the plan had a pair on two routes
        again = _Problem(problem.mix_units, chosen, devices, problem.pool_bytes, problem.host_fraction)
        return chosen, _best(again, power)
    return chosen, [part_of[id(rate)] for rate in chosen]


def replan(
    placement: Placement, mix_units: Mapping[str, float], devices: Sequence[Device], objective: Objective
) -> Placement:
    """Makes a plan for another objective from the inputs of this plan."""
    power = None if placement.rest_watts is None else Power(placement.idle_watts, placement.rest_watts)
    return place(
        mix_units,
        placement.rates,
        devices,
        objective,
        pool_bytes=placement.pool_bytes,
        host_fraction=placement.host_fraction,
        power=power,
    )


def bound(mix_units: Mapping[str, float], rates: Sequence[Rate], devices: Iterable[Device] = ()) -> Bound:
    """Returns the bound λ*, for which every route is resident, no host threads are reserved, each pair uses its
    fastest route, and devices that share silicon take turns. Raises UsageError if no device runs a suite.

    devices: a device of the rates that is not among them shares its silicon with none.

    With thousands of devices, nearly every device has one suite that is worth most, and the program over these pairs
    alone is small. So it is solved over the pairs that look best by the prices so far, until its own prices exclude all
    others (column generation; P. Gilmore and R. Gomory, Operations Research 9, 1961). Where devices share silicon,
    it is solved over all pairs.
    """
    fastest = _fastest([rate for rate in rates if rate.suite in mix_units])
    _check(mix_units, fastest)
    suites, used = list(mix_units), list(dict.fromkeys(rate.device for rate in fastest))
    rows = {suite: row for row, suite in enumerate(suites)}
    columns = {device: column for column, device in enumerate(used)}
    claims = _claims(used, devices)
    claims_of: list[list[int]] = [[] for _ in used]
    for row, claim in enumerate(claims):
        for device in claim:
            claims_of[columns[device]].append(row)
    suite_of = np.array([rows[rate.suite] for rate in fastest])
    device_of = np.array([columns[rate.device] for rate in fastest])
    pace = np.array([rate.units_per_s / mix_units[rate.suite] for rate in fastest])  # mixes/s of a whole device
    ell, units = _units(mix_units, fastest)
    unit = np.array([units[suite] for suite in suites])[suite_of]
    every = 1 if any(len(claim) > 1 for claim in claims) else max(1, len(used) // FEW)
    kept = device_of % every == 0
    if set(suite_of[kept]) != set(suite_of):  # some suite runs on none of the devices to begin with
        kept[:] = True
    while True:
        parts, worth, prices = _relaxed(
            suite_of[kept], [claims_of[device] for device in device_of[kept]], pace[kept], unit[kept], ell, len(suites)
        )
        earned = pace * worth[suite_of]
        most = np.zeros(len(used))
        np.maximum.at(most, device_of, earned)
        reached = float(np.bincount(suite_of[kept], parts * pace[kept], len(suites)).min())
        if most.sum() <= reached * (1 + EXACT / 10) or kept.all():
            break
        near = 1 - NEAR if every > 1 else 1.0
        every = 1
        kept |= earned >= most[device_of] * near
    # Made exact: each device costs at least what its best use is worth.
    price_of = [prices.get(row, 0.0) if len(claim) > 1 else 0.0 for row, claim in enumerate(claims)]
    for own, earned_most in zip(claims_of, most.tolist(), strict=True):
        price_of[own[0]] += max(0.0, earned_most - math.fsum(price_of[row] for row in own))
    part_of = np.zeros(len(fastest))
    part_of[kept] = parts
    shares, _ = _trimmed(mix_units, fastest, part_of.tolist())
    return Bound(
        math.fsum(price_of),
        shares,
        {suite: float(worth[row]) / mix_units[suite] for suite, row in rows.items()},
        {_name(claim): price for claim, price in zip(claims, price_of, strict=True)},
    )


def _relaxed(
    suite_of: npt.NDArray[np.int64],
    claims_of: Sequence[Sequence[int]],
    pace: npt.NDArray[np.float64],
    unit: npt.NDArray[np.float64],
    ell: float,
    suites: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], dict[int, float]]:
    """Solves the linear program over pairs of a suite and a device, which has one row of time for each claim on its
    silicon. Returns the share of its device's time for each pair, how much of a mix's worth each suite is, in all 1,
    and the price of each claim."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    pairs = len(pace)
    at = np.arange(pairs)
    holder = np.repeat(at, [len(own) for own in claims_of])
    held, claim_row = np.unique(np.concatenate([np.array(own) for own in claims_of]), return_inverse=True)
    values = np.concatenate((-pace * unit / ell, unit[holder], np.ones(suites)))
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
    parts = np.where(found.x[:-1] > NOTHING, found.x[:-1], 0.0) * unit  # cleared in units in which no suite's is small
    return parts, worth / worth.sum(), dict(zip(held.tolist(), prices.tolist(), strict=True))


def sharing(devices: Iterable[Device]) -> dict[str, set[str]]:
    """Returns the ids of the devices that each device shares silicon with, for those that share some."""
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


def _claims(used: Sequence[str], devices: Iterable[Device]) -> list[tuple[str, ...]]:
    """Returns the largest sets of devices, by their ids, of which at most one can run at a time, because they share
    silicon; a device that shares none is a set by itself. Every pair that shares some is in one of the sets."""
    ids = dict.fromkeys(used)
    known = {device.id: device for device in devices if device.id in ids}
    shared = sharing(known.values())
    names = {name for id in shared for name in known[id].silicon}
    sets = {frozenset(id for id in shared if is_covered(name, known[id].silicon)) for name in names}
    sets |= {frozenset((one, other)) for one, others in shared.items() for other in others}
    largest = [each for each in sets if not any(each < larger for larger in sets)]
    return [*((id,) for id in ids if id not in shared), *sorted(tuple(sorted(each)) for each in largest)]


def _name(claim: Sequence[str]) -> str:
    return OR.join(claim)


def device_costs(prices: Mapping[str, float]) -> dict[str, float]:
    """Returns what the time of each device costs: the prices of all sets that it is in, together."""
    costs: dict[str, float] = defaultdict(float)
    for names, price in prices.items():
        for id in names.split(OR):
            costs[id] += price
    return dict(costs)


def each_once(devices: Iterable[Device]) -> list[Device]:
    """Returns devices that hold all of the silicon between them, and none of it twice: of those that share some the
    largest."""
    listed = list(devices)
    shared = sharing(listed)
    kept: dict[str, Device] = {}
    for device in sorted(listed, key=lambda each: -sum(1 / piece(name)[2] for name in each.whole.silicon)):
        if shared.get(device.id, set()).isdisjoint(kept):
            kept[device.id] = device
    return list(kept.values())


def best_kind(mix_units: Mapping[str, float], rates: Sequence[Rate], devices: Sequence[Device]) -> tuple[str, float]:
    """Returns the kind of device whose devices alone finish the most mixes per second, and their λ*.

    All devices of a kind count together, and slices of a device count like the device, so that splitting a machine
    gains nothing. Returns ("", 0.0) if no kind runs every suite.
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
    """Checks the plan and its bound by arithmetic and returns what is wrong; the result is empty if both are proven.

    devices: those of the result. A device that is not among them shares its silicon with none."""
    speed = {(rate.suite, rate.device): rate.units_per_s for rate in placement.rates}
    if len(speed) < len(placement.rates):
        return ("two routes for one suite on one device",)
    value = placement.suite_prices
    claims = _claims([rate.device for rate in placement.rates], devices)
    prices = {claim: placement.device_prices.get(_name(claim), 0.0) for claim in claims}
    cost: dict[str, float] = defaultdict(float)
    for claim, price in prices.items():
        for device in claim:
            cost[device] += price
    problems = []
    if min((*value.values(), *prices.values()), default=0) < 0:
        problems.append("a price is below 0")
    a_mix = math.fsum(count * value.get(suite, 0) for suite, count in mix_units.items())
    if not math.isclose(a_mix, 1, rel_tol=EXACT):
        problems.append(f"the prices of the units of a mix add up to {a_mix:g}, not 1")
    for (suite, device), rate in speed.items():
        if suite in mix_units and cost[device] * (1 + EXACT) < rate * value.get(suite, 0):
            problems.append(f"{device} is priced below what it earns with {suite}")
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
        problems.append(f"the devices are worth {dual:g} mix/s, which is not the bound of {placement.bound_per_s:g}")
    if placement.mixes_per_s > placement.bound_per_s * (1 + EXACT):
        problems.append("the plan is above its bound")
    planned = {device for parts in placement.fractions.values() for device, part in parts.items() if part}
    for claim in claims:
        if len(both := planned.intersection(claim)) > 1:
            problems.append(f"the plan runs {' and '.join(sorted(both))} at once, which share silicon")
    return tuple(problems)


def predicted_watts(
    shares: Shares, rates: Sequence[Rate], devices: Sequence[Device], power: Power | None
) -> float | None:
    """Predicts the power inside the boundary while the plan runs; None if a part of it is unknown."""
    if power is None or any(device.id not in power.idle_watts for device in devices):
        return None
    watts = power.rest_watts + _idle_watts(power, devices)
    for rate in rates:
        if part := shares.get(rate.suite, {}).get(rate.device):
            if rate.watts is None:
                return None
            watts += part * max(0.0, rate.watts - power.idle_watts[rate.device])
    return watts


def _idle_watts(power: Power, devices: Sequence[Device]) -> float:
    """Returns the idle power of all devices. A device that is not among `devices` shares its silicon with none."""
    shared = {device.id for device in devices} - {device.id for device in each_once(devices)}
    return math.fsum(watts for id, watts in power.idle_watts.items() if id not in shared)


def _reached(
    mix_units: Mapping[str, float],
    shares: Shares,
    speed: Mapping[tuple[str, str], float],
    claims: Sequence[tuple[str, ...]],
) -> float:
    """Returns the mixes per second of these shares. Raises ValueError for impossible shares."""
    given: dict[str, float] = defaultdict(float)
    done: dict[str, float] = dict.fromkeys(mix_units, 0.0)
    for suite, devices in shares.items():
        for device, part in devices.items():
            if (suite, device) not in speed or suite not in mix_units:
                raise ValueError(f"uses {suite} on {device}, for which it has no rate")
            if part < 0:
                raise ValueError(f"gives {suite} on {device} less than no time")
            given[device] += part
            done[suite] += part * speed[suite, device]
    if over := [_name(each) for each in claims if math.fsum(given[device] for device in each) > 1 + EXACT]:
        raise ValueError(f"gives more than all of the time of {', '.join(over)}")
    return min(done[suite] / count for suite, count in mix_units.items())


def _check(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> None:
    able = {rate.suite for rate in rates}
    if missing := [suite for suite in mix_units if suite not in able]:
        raise UsageError(
            f"no device can run {', '.join(missing)}",
            hint="the mix needs every suite; the solo records say why each route failed",
        )


def _check_power(rates: Sequence[Rate], devices: Sequence[Device], power: Power | None) -> None:
    known = power.idle_watts if power else {}
    blind = [device.id for device in devices if device.id not in known]
    blind += [f"{rate.suite} on {rate.device}" for rate in rates if rate.watts is None]
    if blind:
        raise UsageError(
            f"the power of {', '.join(dict.fromkeys(blind))} is not known",
            hint="--objective efficiency plans with watts: `mixmark meters` says what is missing",
        )


def _fastest(rates: Sequence[Rate]) -> list[Rate]:
    best: dict[tuple[str, str], Rate] = {}
    for rate in rates:
        key = (rate.suite, rate.device)
        if key not in best or rate.units_per_s > best[key].units_per_s:
            best[key] = rate
    return list(best.values())


def _one_each(rates: Sequence[Rate], parts: Sequence[float]) -> list[Rate]:
    """Returns one route for each pair: the one that finishes the most units in the plan, or else the fastest."""
    best: dict[tuple[str, str], tuple[float, float, Rate]] = {}
    for rate, part in zip(rates, parts, strict=True):
        key, merit = (rate.suite, rate.device), (part * rate.units_per_s, rate.units_per_s, rate)
        if key not in best or merit[:2] > best[key][:2]:
            best[key] = merit
    return [rate for _, _, rate in best.values()]


def _units(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> tuple[float, dict[str, float]]:
    """Returns the scales of λ and of the x of each suite in the solver, chosen so that all unknowns are about 1: the
    mixes per second of a device that is as fast as the fastest for every suite, and the share of its time for each
    suite."""
    paces = dict.fromkeys(mix_units, 0.0)
    for rate in rates:
        paces[rate.suite] = max(paces[rate.suite], rate.units_per_s / mix_units[rate.suite])
    ell = 1 / math.fsum(1 / pace for pace in paces.values())
    return ell, {suite: ell / pace for suite, pace in paces.items()}


def _cleared(value: float) -> float:
    return float(value) if value > NOTHING else 0.0


def _trimmed(mix_units: Mapping[str, float], rates: Sequence[Rate], parts: Sequence[float]) -> tuple[Shares, float]:
    """Returns the shares without the solver's rounding errors and without surplus of a suite, and the mixes per
    second."""
    time: dict[str, float] = defaultdict(float)
    for rate, part in zip(rates, parts, strict=True):
        time[rate.device] += part
    kept = [part / max(1.0, time[rate.device]) for rate, part in zip(rates, parts, strict=True)]
    paces = dict.fromkeys(mix_units, 0.0)
    for rate, part in zip(rates, kept, strict=True):
        paces[rate.suite] += part * rate.units_per_s / mix_units[rate.suite]
    slowest = min(paces.values())
    shares: Shares = defaultdict(dict)
    for rate, part in zip(rates, kept, strict=True):
        if part:
            shares[rate.suite][rate.device] = part * slowest / paces[rate.suite]
    return dict(shares), slowest


def _best(problem: _Problem, power: Power | None) -> list[float]:
    """Returns the share of time for each rate with the most mixes per second, or per joule if power is given.

    This is Dinkelbach's algorithm (Management Science 13, 1967): the ratio η = λ / watts of one plan is the price of a
    watt in the next plan, until η rises no more. It ends at the optimum, also for integer unknowns.
    """
    if power is None:
        return problem.solve([0.0] * len(problem.rates))
    base = power.rest_watts + _idle_watts(power, problem.devices)
    extra = [max(0.0, (rate.watts or 0) - power.idle_watts[rate.device]) for rate in problem.rates]
    best, efficiency = list[float](), 0.0
    while True:
        parts = problem.solve([efficiency * watts for watts in extra])
        _, mixes_per_s = _trimmed(problem.mix_units, problem.rates, parts)
        reached = mixes_per_s / (base + math.fsum(part * watts for part, watts in zip(parts, extra, strict=True)))
        if reached <= efficiency * (1 + EXACT):
            return best if efficiency > reached else parts
        best, efficiency = parts, reached


class _Problem:
    """The mixed-integer program over all routes. Its columns are the x of each rate and λ (scaled by `_units`), then
    the binary unknowns: whether a route is resident, whether an accelerator or a device that shares silicon is used,
    whether a host is free of the accelerators' threads.

    A binary unknown is relaxed until a solution violates its constraint; only one plan in ten needs any of them.
    """

    def __init__(
        self,
        mix_units: Mapping[str, float],
        rates: Sequence[Rate],
        devices: Sequence[Device],
        pool_bytes: Mapping[str, int],
        host_fraction: float,
    ) -> None:
        known = {device.id: device for device in devices}
        self.devices = devices
        self.rates, self.mix_units, self.pool_bytes, self.host_fraction = rates, mix_units, pool_bytes, host_fraction
        self.ell, self.unit = _units(mix_units, rates)
        self.pools = [known[rate.device].memory_pool for rate in rates]
        self.of: dict[str, list[int]] = defaultdict(list)
        for k, rate in enumerate(rates):
            self.of[rate.device].append(k)
        beside: dict[str, list[str]] = defaultdict(list)
        for id in (id for id in self.of if known[id].kind != "cpu"):
            beside[known[id].host].append(id)
        cpus = [id for id in self.of if known[id].kind == "cpu"] if host_fraction else []
        self.hosts = {id: beside[known[id].host] for id in cpus}
        """The accelerators of its host for each CPU device, whose threads take some of its time."""
        self.helped = dict.fromkeys(id for helped in self.hosts.values() for id in helped)
        self.claims = [claim for claim in _claims(list(self.of), devices) if len(claim) > 1]
        self.exclusive = sorted({id for claim in self.claims for id in claim})
        needed: dict[str, int] = defaultdict(int)
        for rate, pool in zip(rates, self.pools, strict=True):
            needed[pool] += rate.memory_bytes or 0
        self.short = [pool for pool, size in pool_bytes.items() if needed[pool] > size]
        self.columns = {name: at for at, name in enumerate(self._names())}
        self.whole: set[tuple[str, object]] = set()

    def _names(self) -> Iterator[tuple[str, object]]:
        yield from (("part", k) for k in range(len(self.rates)))
        yield "mixes", ""
        yield from (("resident", k) for k in self._budgeted(*self.short))
        yield from (("used", id) for id in dict.fromkeys((*self.helped, *self.exclusive)))
        yield from (("free", id) for id in self.hosts if self._crowd(id) > 1)

    @property
    def binds(self) -> bool:
        """Whether memory, host threads or shared silicon may keep the plan from the bound."""
        return bool(self.short or self.helped or self.claims)

    def _crowd(self, id: str) -> float:
        """The share of a CPU device's time that the host threads of all accelerators of its host together would
        take."""
        return self.host_fraction * len(self.hosts[id])

    def _budgeted(self, *pools: str) -> list[int]:
        return [k for k, rate in enumerate(self.rates) if self.pools[k] in pools and rate.memory_bytes]

    def _rows(self) -> Iterator[tuple[dict[int, float], float, float]]:
        """Yields each constraint as its coefficients by column, its lowest and its highest value."""
        at = self.columns
        paces = [
            rate.units_per_s / self.mix_units[rate.suite] * self.unit[rate.suite] / self.ell for rate in self.rates
        ]
        for suite in self.mix_units:
            done = {k: pace for k, pace in enumerate(paces) if self.rates[k].suite == suite}
            yield done | {at["mixes", ""]: -1.0}, 0, math.inf
        for id, own in self.of.items():
            time = {k: self.unit[self.rates[k].suite] for k in own}
            if id in self.helped or id in self.exclusive:
                yield time | {at["used", id]: -1.0}, -math.inf, 0
            if id in self.helped:
                continue
            if id not in self.hosts:
                yield time, -math.inf, 1
            elif self._crowd(id) <= 1:
                yield time | {at["used", each]: self.host_fraction for each in self.hosts[id]}, -math.inf, 1
            else:  # where more threads are needed than there are, the host computes nothing
                yield time | {at["free", id]: -1.0}, -math.inf, 0
                taken = {at["used", each]: self.host_fraction for each in self.hosts[id]}
                yield time | taken | {at["free", id]: self._crowd(id) - 1}, -math.inf, self._crowd(id)
        for claim in self.claims:
            yield {at["used", id]: 1.0 for id in claim}, -math.inf, 1
        for pool in self.short:
            for k in self._budgeted(pool):
                most = min(1 / self.unit[self.rates[k].suite], len(self.of) / paces[k])  # all time, or all of the work
                yield {k: 1.0, at["resident", k]: -most}, -math.inf, 0
            sizes = {at["resident", k]: (self.rates[k].memory_bytes or 0) for k in self._budgeted(pool)}
            yield {z: size / self.pool_bytes[pool] for z, size in sizes.items()}, -math.inf, 1

    def solve(self, watts_price: Sequence[float]) -> list[float]:
        """Returns the share of its device's time for each rate that maximises λ − Σ price · share. Raises MixmarkError
        if memory allows no plan."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        rows = list(self._rows())
        entries = [(row, at, value) for row, (line, _, _) in enumerate(rows) for at, value in line.items()]
        row_of, column_of, values = zip(*entries, strict=True)
        matrix = coo_array((values, (row_of, column_of)), shape=(len(rows), len(self.columns))).tocsr()
        limits = LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows])
        gain = np.zeros(len(self.columns))
        unit = [self.unit[rate.suite] for rate in self.rates]
        gain[: len(self.rates)] = np.array(watts_price) * unit / self.ell
        gain[self.columns["mixes", ""]] = -1
        ceiling = np.ones(len(self.columns))
        ceiling[: self.columns["mixes", ""] + 1] = np.inf
        while True:
            found = milp(
                gain,
                integrality=np.array([name in self.whole for name in self.columns]),
                bounds=Bounds(0, ceiling),
                constraints=limits,
                options={"mip_rel_gap": GAP},
            )
            if found.x is None:
                raise MixmarkError(f"the solver found no plan: {found.message}")
            parts = [_cleared(part) * each for part, each in zip(found.x[: len(unit)], unit, strict=True)]
            broken = self._broken(parts) - self.whole
            if not broken:
                break
            self.whole |= broken
        if not any(parts):
            self._explain()
        return parts

    def _broken(self, parts: Sequence[float]) -> set[tuple[str, object]]:
        """Returns the binary unknowns to enforce, because the solution uses more memory, threads or silicon
        than it pays for."""
        broken: set[tuple[str, object]] = set()
        for claim in self.claims:
            if sum(any(parts[k] for k in self.of[id]) for id in claim) > 1:
                broken |= {("used", id) for id in claim}
        for pool in self.short:
            if sum(self.rates[k].memory_bytes or 0 for k in self._budgeted(pool) if parts[k]) > self.pool_bytes[pool]:
                broken |= {("resident", k) for k in self._budgeted(pool)}
        for cpu, helped in self.hosts.items():
            time = sum(parts[k] for k in self.of[cpu])
            taken = self.host_fraction * sum(any(parts[k] for k in self.of[id]) for id in helped)
            if time and time + taken > 1 + EXACT:
                broken |= {name for name in self.columns if name[0] in ("used", "free")}
        return broken

    def _explain(self) -> None:
        """Raises MixmarkError that names the suite that fits into no memory, or the devices that exclude each other,
        or says that not all suites fit together."""
        room = ", ".join(f"{pool} {_gib(self.pool_bytes[pool])}" for pool in self.short)
        for suite in self.mix_units:
            sizes = {k: rate.memory_bytes or 0 for k, rate in enumerate(self.rates) if rate.suite == suite}
            if all(size > self.pool_bytes.get(self.pools[k], math.inf) for k, size in sizes.items()):
                least = _gib(min(sizes.values()))
                raise MixmarkError(f"{suite} needs {least}, and there is {room}", hint="try fewer bits a weight")
        if self.claims and not self.short:
            suites = {id: {self.rates[k].suite for k in self.of[id]} for id in self.exclusive}
            runs = "; ".join(f"{id} runs {', '.join(sorted(suites[id]))}" for id in self.exclusive)
            raise MixmarkError(
                f"no devices that share no silicon run all suites of the mix together: {runs}",
                hint="a mix uses a group or its members and not both, so one of them must run what the other cannot",
            )
        raise MixmarkError(
            f"not all of {', '.join(self.mix_units)} fit into memory at once: there is {room}",
            hint="try fewer bits a weight, or a smaller tier",
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
