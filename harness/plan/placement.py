"""Plans the fraction of each device's time for each suite of a mix.

`plan.bound` states the linear program and its proof. A plan has more constraints: its routes must fit into memory, the
host threads of accelerators take time of CPU devices, and only one of several devices that share silicon is loaded and
used. These constraints need binary unknowns.

Mixes per joule are a ratio of two linear functions. A sequence of these programs maximises it (Dinkelbach). It ends at
the same optimum as the single program of Charnes & Cooper, also with integer unknowns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.numbers import gibibytes
from mixmark.harness.contracts.schema import Device, Placement, Rate
from mixmark.harness.plan.bound import (
    EXACT,
    NOTHING,
    Fractions,
    bound,
    check_suites,
    claims_of_silicon,
    each_once,
    fastest_routes,
    solver_units,
    trimmed,
)

Objective = Literal["throughput", "efficiency"]
Planner = Callable[[Mapping[str, float], Sequence[Rate]], Placement]
"""Makes a plan of a mix (units by suite) from rates: `place` with all other arguments bound."""
GAP = 5e-3  # the integer program's relative gap for stopping; the rates are less exact than this


@dataclass(frozen=True)
class Power:
    """The power inside the energy boundary, besides the watts of each rate."""

    idle_watts: Mapping[str, float]
    """The idle power of every device in the boundary, also of unused devices."""
    rest_watts: float = 0.0
    """The power of everything other than devices: memory, fans, the loss of the power supply."""


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
    """Returns the best plan. Its `rates` have one route for each pair of suite and device: the route that the best plan
    uses, or the fastest route if it uses none.

    rates: any number of routes for each pair; suites outside the mix and devices outside `devices` are ignored.
    pool_bytes: the free memory of each limited pool. All routes in use must fit into their pools, since each worker has
    a copy of the weights; a rate with unknown memory counts as 0 bytes.
    host_fraction: the fraction of every CPU device's time that the host threads of one accelerator of its host take, if
    the plan uses the accelerator. power: required for the objective efficiency. For throughput it adds the predicted
    watts of the plan, if all rates have watts.

    Raises UsageError if a suite runs on no device, or if the objective is efficiency and power is None. Raises
    MixmarkError if the mix does not fit into memory.
    """
    known = {device.id for device in devices}
    wanted = [rate for rate in rates if rate.suite in mix_units and rate.device in known]
    check_suites(mix_units, {rate.suite for rate in wanted})
    if objective == "efficiency":
        _check_power(wanted, devices, power)
    problem = _Problem(mix_units, wanted, devices, pool_bytes or {}, host_fraction)
    if objective == "throughput" and not problem.binds:
        chosen = fastest_routes(wanted)
        limit = bound(mix_units, chosen, devices)
        shares, mixes_per_s = limit.fractions, limit.mixes_per_s
    else:
        chosen, best = _chosen(problem, devices, power if objective == "efficiency" else None)
        shares, mixes_per_s = trimmed(mix_units, chosen, best)
        limit = bound(mix_units, chosen, devices)
    return Placement(
        objective=objective,
        rates=tuple(chosen),
        fractions=shares,
        mixes_per_s=mixes_per_s,
        bound_per_s=limit.mixes_per_s,
        bound_fractions=limit.fractions,
        suite_prices=dict(limit.suite_prices),
        device_prices=dict(limit.device_prices),
        watts=predicted_watts(shares, chosen, devices, power),
        pool_bytes=dict(pool_bytes or {}),
        host_fraction=host_fraction,
        idle_watts=dict(power.idle_watts) if power else {},
        rest_watts=power.rest_watts if power else None,
    )


def _chosen(problem: _Problem, devices: Sequence[Device], power: Power | None) -> tuple[list[Rate], list[float]]:
    """Returns one route for each pair, and its fraction of the device's time in the best plan."""
    best = _best(problem, power)
    chosen = _one_each(problem.rates, best)
    part_of = {id(rate): part for rate, part in zip(problem.rates, best, strict=True)}
    if math.fsum(part_of[id(rate)] for rate in chosen) < math.fsum(best):  # the plan used two routes for a pair
        again = _Problem(problem.mix_units, chosen, devices, problem.pool_bytes, problem.host_fraction)
        return chosen, _best(again, power)
    return chosen, [part_of[id(rate)] for rate in chosen]


def replanner(placement: Placement, devices: Sequence[Device]) -> Planner:
    """The planner that makes this plan again from observed rates. Memory is no constraint, since its suites are loaded.

    devices: the run's devices. A plan for some of its hosts knows the idle watts of their devices only."""
    power = Power(placement.idle_watts, placement.rest_watts) if placement.rest_watts is not None else None
    return partial(
        place,
        devices=[device for device in devices if power is None or device.id in power.idle_watts],
        objective=placement.objective,
        host_fraction=placement.host_fraction,
        power=power,
    )


def predicted_watts(
    shares: Fractions, rates: Sequence[Rate], devices: Sequence[Device], power: Power | None
) -> float | None:
    """Predicts the power inside the boundary while the plan runs. None if a part is unknown."""
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
    """Returns the idle power of all devices. Devices that are not in `devices` share no silicon."""
    shared = {device.id for device in devices} - {device.id for device in each_once(devices)}
    return math.fsum(watts for id, watts in power.idle_watts.items() if id not in shared)


def _check_power(rates: Sequence[Rate], devices: Sequence[Device], power: Power | None) -> None:
    known = power.idle_watts if power else {}
    blind = [device.id for device in devices if device.id not in known]
    blind += [f"{rate.suite} on {rate.device}" for rate in rates if rate.watts is None]
    if blind:
        raise UsageError(
            f"the power of {', '.join(dict.fromkeys(blind))} is not known",
            hint="--objective efficiency plans with watts: `mixmark meters` says what is missing",
        )


def _one_each(rates: Sequence[Rate], parts: Sequence[float]) -> list[Rate]:
    """Returns one route for each pair: the route that finishes the most units in the plan, or else the fastest."""
    best: dict[tuple[str, str], tuple[float, float, Rate]] = {}
    for rate, part in zip(rates, parts, strict=True):
        key, merit = (rate.suite, rate.device), (part * rate.units_per_s, rate.units_per_s, rate)
        if key not in best or merit[:2] > best[key][:2]:
            best[key] = merit
    return [rate for _, _, rate in best.values()]


def _cleared(value: float) -> float:
    return float(value) if value > NOTHING else 0.0


def _best(problem: _Problem, power: Power | None) -> list[float]:
    """Returns the fraction of time for each rate with the most mixes per second, or per joule if power is given.

    This is Dinkelbach's algorithm (Management Science 13, 1967): the ratio η = λ / watts of a plan is the price of a
    watt in the next plan, until η does not rise any more. It ends at the optimum, also for integer unknowns.
    """
    if power is None:
        return problem.solve([0.0] * len(problem.rates))
    base = power.rest_watts + _idle_watts(power, problem.devices)
    extra = [max(0.0, (rate.watts or 0) - power.idle_watts[rate.device]) for rate in problem.rates]
    best, efficiency = list[float](), 0.0
    while True:
        parts = problem.solve([efficiency * watts for watts in extra])
        _, mixes_per_s = trimmed(problem.mix_units, problem.rates, parts)
        reached = mixes_per_s / (base + math.fsum(part * watts for part, watts in zip(parts, extra, strict=True)))
        if reached <= efficiency * (1 + EXACT):
            return best if efficiency > reached else parts
        best, efficiency = parts, reached


def constraints(rows: Sequence[tuple[Mapping[int, float], float, float]], columns: int) -> Any:
    """The rows of a program, each its coefficients by column, its lowest and its highest value, as scipy takes them."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import coo_array

    entries = [(row, at, value) for row, (line, _, _) in enumerate(rows) for at, value in line.items()]
    row_of, column_of, values = zip(*entries, strict=True)
    matrix = coo_array((values, (row_of, column_of)), shape=(len(rows), columns)).tocsr()
    return LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows])


class _Problem:
    """The mixed-integer program over all routes. Its columns are the x of each rate and λ (scaled by `_units`), then
    the binary unknowns: whether a route is resident, whether an accelerator or a device that shares silicon is used,
    whether a host is free of the accelerators' threads.

    A binary unknown is relaxed until a solution violates its constraint; only one plan in ten needs binary unknowns.
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
        self.ell, self.unit = solver_units(mix_units, rates)
        self.pools = [known[rate.device].memory_pool for rate in rates]
        self.of: dict[str, list[int]] = defaultdict(list)
        for k, rate in enumerate(rates):
            self.of[rate.device].append(k)
        beside: dict[str, list[str]] = defaultdict(list)
        for id in (id for id in self.of if known[id].kind != "cpu"):
            beside[known[id].host].append(id)
        cpus = [id for id in self.of if known[id].kind == "cpu"] if host_fraction else []
        self.hosts = {id: beside[known[id].host] for id in cpus}
        """The accelerators of each CPU device's host. Their threads take some of the CPU device's time."""
        self.helped = dict.fromkeys(id for helped in self.hosts.values() for id in helped)
        self.claims = [claim for claim in claims_of_silicon(list(self.of), devices) if len(claim) > 1]
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

    @property
    def binds(self) -> bool:
        """Whether memory, host threads or shared silicon may keep the plan below the bound."""
        return bool(self.short or self.helped or self.claims)

    def _thread(self, id: str) -> float:
        """The fraction of a CPU device's time for the host threads of an accelerator; of all accelerators at most 1."""
        return min(self.host_fraction, 1 / max(1, len(self.hosts[id])))

    def _budgeted(self, *pools: str) -> list[int]:
        return [k for k, rate in enumerate(self.rates) if self.pools[k] in pools and rate.memory_bytes]

    def _rows(self) -> Iterator[tuple[dict[int, float], float, float]]:
        """Yields each constraint as its coefficients by column, its lowest and its highest value."""
        at = self.columns
        mix_rates = [
            rate.units_per_s / self.mix_units[rate.suite] * self.unit[rate.suite] / self.ell for rate in self.rates
        ]
        for suite in self.mix_units:
            done = {k: mix_rate for k, mix_rate in enumerate(mix_rates) if self.rates[k].suite == suite}
            yield done | {at["mixes", ""]: -1.0}, 0, math.inf
        for id, own in self.of.items():
            time = {k: self.unit[self.rates[k].suite] for k in own}
            if id in self.helped or id in self.exclusive:
                yield time | {at["used", id]: -1.0}, -math.inf, 0
            if id in self.helped:
                continue
            threads = {at["used", each]: self._thread(id) for each in self.hosts.get(id, ())}
            yield time | threads, -math.inf, 1
        for claim in self.claims:
            yield {at["used", id]: 1.0 for id in claim}, -math.inf, 1
        for pool in self.short:
            for k in self._budgeted(pool):
                most = min(
                    1 / self.unit[self.rates[k].suite], len(self.of) / mix_rates[k]
                )  # all time, or all of the work
                yield {k: 1.0, at["resident", k]: -most}, -math.inf, 0
            sizes = {at["resident", k]: (self.rates[k].memory_bytes or 0) for k in self._budgeted(pool)}
            yield {z: size / self.pool_bytes[pool] for z, size in sizes.items()}, -math.inf, 1

    def solve(self, watts_price: Sequence[float]) -> list[float]:
        """Returns the fraction of its device's time for each rate that maximises λ − Σ price · fraction. Raises
        MixmarkError if memory allows no plan."""
        from scipy.optimize import Bounds, milp

        limits = constraints([*self._rows()], len(self.columns))
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
        """Returns the binary unknowns to enforce, because the solution violates a constraint of memory, threads or
        silicon."""
        broken: set[tuple[str, object]] = set()
        for claim in self.claims:
            if sum(any(parts[k] for k in self.of[id]) for id in claim) > 1:
                broken |= {("used", id) for id in claim}
        for pool in self.short:
            if sum(self.rates[k].memory_bytes or 0 for k in self._budgeted(pool) if parts[k]) > self.pool_bytes[pool]:
                broken |= {("resident", k) for k in self._budgeted(pool)}
        for cpu, helped in self.hosts.items():
            time = sum(parts[k] for k in self.of[cpu])
            taken = self._thread(cpu) * sum(any(parts[k] for k in self.of[id]) for id in helped)
            if time + taken > 1 + EXACT:
                broken |= {("used", id) for id in helped}
        return broken

    def _explain(self) -> None:
        """Raises MixmarkError with the reason: a suite fits into no memory, devices exclude each other, or not all
        suites fit together."""
        room = ", ".join(f"{pool} {gibibytes(self.pool_bytes[pool])}" for pool in self.short)
        for suite in self.mix_units:
            sizes = {k: rate.memory_bytes or 0 for k, rate in enumerate(self.rates) if rate.suite == suite}
            if all(size > self.pool_bytes.get(self.pools[k], math.inf) for k, size in sizes.items()):
                least = gibibytes(min(sizes.values()))
                raise MixmarkError(f"{suite} needs {least}, and there is {room}", hint="try fewer bits a weight")
        if self.claims and not self.short:
            suites = {id: {self.rates[k].suite for k in self.of[id]} for id in self.exclusive}
            runs = "; ".join(f"{id} runs {', '.join(sorted(suites[id]))}" for id in self.exclusive)
            raise MixmarkError(
                f"no set of devices without shared silicon runs all suites of the mix: {runs}",
                hint="a mix uses a group or its members, but not both",
            )
        raise MixmarkError(
            f"not all of {', '.join(self.mix_units)} fit into memory at once: there is {room}",
            hint="try fewer bits a weight, or a smaller tier",
        )
