"""Plans a machine: how many devices of each kind do a mix, at what price and power.

This extends `plan.bound` to whole numbers of devices. Let n[k] be the devices of kind k, y[w,k] their time for suite w,
in devices, r[w,k] the units per second of one device, and m[w] the units of w in one mix:

    Σ_k r[w,k] y[w,k] ≥ λ m[w] for each suite,   Σ_w y[w,k] ≤ n[k] for each kind,   n whole

An accelerator occupies a slot of a host, and its threads take time of the host's processors. The suites of a device
must fit into its memory: devices of a kind are divided among the largest sets of suites that fit. The solver's bound
proves each answer or limits how much better another answer could be.

Every answer is a prediction: a machine keeps only a part of its devices' solo rates, which `Retained` states.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mixmark.harness.capabilities.plan import machine
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import significant
from mixmark.harness.plan.bound import EXACT, NOTHING, check_suites
from mixmark.harness.plan.placement import constraints

MOST = 1000  # limit of the devices of a kind, if nothing else limits them
TIME_LIMIT_S = 10.0  # of one program; its answer then has a gap
SCALE = 1e3  # factor of the solver's objective, because its absolute tolerances are about 1e-6
FEWER = 1e-8  # penalty for each device, as a fraction of the objective, so that fewer devices win a tie
INFEASIBLE = 2  # the status of scipy's milp
WHOLE = ("count", "set")
"""The columns with whole numbers."""


@dataclass(frozen=True)
class Planner:
    """The kinds that may be used, and the mix."""

    kinds: Sequence[machine.Kind]
    mix_units: Mapping[str, float]
    retained: machine.Retained = field(default_factory=machine.Retained)
    energy: machine.Tariff | None = None

    def answer(self, question: machine.Question, limits: machine.Constraints) -> machine.Answer:
        """The best machine. Raises UsageError if a suite runs on no kind, or if no machine keeps the limits."""
        self.check_suites()
        program = self._program(limits)
        try:
            best, gap = program.best(question)
            if program.per_hour(best) <= 0:
                raise _Infeasible
        except _Infeasible:
            raise self._contradiction(limits) from None
        return self._answered(question, limits, program, best, gap)

    def answer_if_any(self, question: machine.Question, limits: machine.Constraints) -> machine.Answer | None:
        """The best machine. None if no machine keeps the limits."""
        try:
            return self.answer(question, limits)
        except MixmarkError:
            return None

    def _program(self, limits: machine.Constraints) -> _Program:
        """The low ends of the rates must meet a demand."""
        return _Program(self, limits, 0 if limits.mixes_per_hour is None else -1)

    def alone(self, question: machine.Question, limits: machine.Constraints) -> dict[str, machine.Answer]:
        """For each kind, the answer if its devices do all the work, in any hosts."""
        found: dict[str, machine.Answer] = {}
        for kind in self.kinds:
            kinds = [each if each is kind else replace(each, speeds=()) for each in self.kinds]
            kinds = [each for each in kinds if each is kind or (each.is_host and not kind.is_host)]
            if self.mix_units.keys() <= {speed.suite for speed in kind.speeds}:
                answer = replace(self, kinds=kinds).answer_if_any(question, limits)
                found |= {kind.name: answer} if answer else {}
        return found

    def check_suites(self) -> None:
        """Raises UsageError if a suite of the mix runs on no kind."""
        check_suites(self.mix_units, {speed.suite for kind in self.kinds for speed in kind.speeds})

    def _contradiction(self, limits: machine.Constraints) -> UsageError:
        """The error for limits that no machine keeps together. It names only limits that conflict."""
        for name, unlimited in vars(machine.Constraints()).items():
            without = replace(limits, **{name: unlimited})
            try:
                program = self._program(without)
                needed = program.per_hour(program.solve(program.goal("most"))[0]) > 0
            except _Infeasible:
                needed = False
            limits = limits if needed else without
        if limits == machine.Constraints():
            return UsageError("no machine of these devices runs the mix", "its suites do not fit into their memory")
        message = f"no machine keeps {limits}"
        if limits.mixes_per_hour and (most := self.answer_if_any("most", replace(limits, mixes_per_hour=None))):
            message += f": the largest does at least {significant(most.mixes_per_hour.ends[0])} mixes per hour"
        return UsageError(message, "relax one of these, or offer other devices")

    def _answered(
        self, question: machine.Question, limits: machine.Constraints, program: _Program, best: Any, gap: float | None
    ) -> machine.Answer:
        counts = {kind.name: n for kind in self.kinds if (n := round(best[program.at["count", kind.name]]))}
        own = [kind for kind in self.kinds if kind.name in counts]
        best, planned = program.trimmed(best, None if question == "most" else limits.mixes_per_hour)
        watts = float(program.power() @ best) if all(kind.has_watts for kind in own) else None
        energy_cost = None if watts is None or self.energy is None else watts * self.energy.per_watt
        full = machine.Constraints(watts=limits.watts, at_least=counts, at_most=counts)
        low, estimate, high = (self._at_full_load(own, full, level) for level in machine.LEVELS)
        bought = {kind.name: max(0, counts[kind.name] - kind.owned) for kind in own}
        priced = all(kind.price is not None or not bought[kind.name] for kind in own)
        return machine.Answer(
            question=question,
            counts=counts,
            time=program.time(best),
            mixes_per_hour=Estimate(estimate, low, high),
            planned_per_hour=planned,
            watts=watts,
            bought={name: count for name, count in bought.items() if count},
            price=math.fsum((kind.price or 0) * bought[kind.name] for kind in own) if priced else None,
            energy_cost=energy_cost,
            gap=gap,
        )

    def _at_full_load(self, kinds: Sequence[machine.Kind], limits: machine.Constraints, level: machine.Level) -> float:
        program = _Program(replace(self, kinds=kinds), limits, level)
        return program.per_hour(program.solve(program.goal("most"))[0])


class _Infeasible(Exception):
    """No machine keeps the limits."""


class _Program:
    """The mixed-integer program. Its columns: `count` of a kind, `bought` of an owned kind, `set` of devices with a set
    of suites, `time` of such devices for one of their speeds, `in` for the accelerators in a kind of host, and `mixes`,
    in units of `ell`."""

    def __init__(self, planner: Planner, limits: machine.Constraints, level: machine.Level = 0) -> None:
        self.kinds, self.mix_units, self.limits = planner.kinds, planner.mix_units, limits
        self.energy = planner.energy
        self.hosts = [kind for kind in self.kinds if kind.is_host]
        self.accelerators = [kind for kind in self.kinds if not kind.is_host]
        self.units_per_s = [
            [planner.retained.of(kind).units_per_s(each, level) for each in kind.speeds] for kind in self.kinds
        ]
        self.sets = [_sets(kind, self.mix_units) for kind in self.kinds]
        demand = limits.mixes_per_hour
        self.ell = demand / machine.HOUR_S if demand else self._fastest()
        self.columns = list(self._names())
        self.at = {name: column for column, name in enumerate(self.columns)}

    def _fastest(self) -> float:
        """The mixes per second of a device that is as fast as the fastest for every suite."""
        best = dict.fromkeys(self.mix_units, 0.0)
        for kind in self.kinds:
            for speed in kind.speeds:
                if speed.suite in best:
                    best[speed.suite] = max(best[speed.suite], speed.units_per_s.estimate / self.mix_units[speed.suite])
        return 1 / math.fsum(1 / rate for rate in best.values()) if all(best.values()) else 1.0

    def _names(self) -> Iterator[tuple[str, Any]]:
        yield from (("count", kind.name) for kind in self.kinds)
        yield from (("bought", kind.name) for kind in self.kinds if kind.owned and kind.price is not None)
        for k, pools in enumerate(self.sets):
            yield from (("set", (k, each)) for pool in pools.values() if len(pool) > 1 for each in pool)
            yield from (("time", (k, each, s)) for pool in pools.values() for each in pool for s in each)
        yield from (("in", (own.name, host.name)) for own in self.accelerators for host in self.hosts if host.slots)
        yield "mixes", ""

    @cached_property
    def _times(self) -> list[tuple[int, int, tuple[int, ...], int]]:
        """Column, kind, set and speed of each time."""
        return [(column, *name[1]) for column, name in enumerate(self.columns) if name[0] == "time"]

    def _rows(self) -> Iterator[tuple[dict[int, float], float, float]]:
        """Yields each constraint as its coefficients by column, its lowest and its highest value."""
        at = self.at
        done: dict[str, dict[int, float]] = {suite: {at["mixes", ""]: -1.0} for suite in self.mix_units}
        busy: dict[tuple[int, str, Any], dict[int, float]] = defaultdict(dict)
        for column, k, held, s in self._times:
            speed = self.kinds[k].speeds[s]
            rate = self.units_per_s[k][s] / self.mix_units[speed.suite] / self.ell
            done[speed.suite][column] = rate
            busy[k, speed.device, held][column] = 1.0
        yield from ((row, 0.0, math.inf) for row in done.values())
        for (k, _, held), row in busy.items():
            holders = at.get(("set", (k, held)), at["count", self.kinds[k].name])
            yield row | {holders: -1.0}, -math.inf, 0
        for k, pools in enumerate(self.sets):
            for pool in pools.values():
                if len(pool) > 1:
                    yield {at["set", (k, held)]: 1.0 for held in pool} | {at["count", self.kinds[k].name]: -1.0}, 0, 0
        yield from self._host_rows(busy)
        yield from self._limit_rows()

    def _host_rows(
        self, busy: Mapping[tuple[int, str, Any], Mapping[int, float]]
    ) -> Iterator[tuple[dict[int, float], float, float]]:
        at = self.at
        for own in self.accelerators:
            inside = {at["in", (own.name, host.name)]: 1.0 for host in self.hosts if host.slots}
            yield inside | {at["count", own.name]: -1.0}, 0, 0
        for k, host in enumerate(self.kinds):
            if not host.is_host:
                continue
            hosted = self.accelerators if host.slots else ()
            if hosted:
                slots = {at["in", (own.name, host.name)]: 1.0 for own in hosted}
                yield slots | {at["count", host.name]: -float(host.slots)}, -math.inf, 0
            # If a full host has too few threads, it computes nothing.
            threads = {at["in", (own.name, host.name)]: min(own.threads, 1 / host.slots) for own in hosted}
            for device in host.processors:
                time = {
                    column: 1.0 for (of, name, _), row in busy.items() if (of, name) == (k, device) for column in row
                }
                if time and (host.threads or any(threads.values())):
                    free = -max(0.0, 1 - host.threads)
                    if free:
                        time |= threads
                    yield time | {at["count", host.name]: free}, -math.inf, 0

    def _limit_rows(self) -> Iterator[tuple[dict[int, float], float, float]]:
        at, limits = self.at, self.limits
        for kind in self.kinds:
            if ("bought", kind.name) in at:
                yield {at["bought", kind.name]: 1.0, at["count", kind.name]: -1.0}, -float(kind.owned), math.inf
        if limits.mixes_per_hour is not None:
            yield {at["mixes", ""]: 1.0}, limits.mixes_per_hour / machine.HOUR_S / self.ell, math.inf
        for most, row in ((limits.budget, self.prices()), (limits.watts, self.power())):
            if most is not None:
                yield (
                    {column: row[column] / (most or 1) for column in np.flatnonzero(row).tolist()},
                    -math.inf,
                    float(most > 0),
                )
        if limits.hosts is not None:
            yield {at["count", host.name]: 1.0 for host in self.hosts}, -math.inf, limits.hosts
        for kind in self.kinds:
            least, most = limits.at_least.get(kind.name, 0), limits.at_most.get(kind.name, MOST)
            yield {at["count", kind.name]: 1.0}, float(least), math.inf
            yield {at["count", kind.name]: 1.0}, -math.inf, float(most)

    def prices(self) -> Any:
        """The price of one in each column."""
        columns = ((self.at.get(("bought", kind.name), self.at["count", kind.name]), kind) for kind in self.kinds)
        return self._dense({column: kind.price or 0.0 for column, kind in columns})

    def power(self) -> Any:
        """The watts of one in each column."""
        idle = {self.at["count", kind.name]: kind.idle_watts or 0.0 for kind in self.kinds}
        extra = {column: self.kinds[k].speeds[s].extra_watts or 0.0 for column, k, _, s in self._times}
        return self._dense(idle | extra)

    def _dense(self, row: Mapping[int, float]) -> Any:
        values = np.zeros(len(self.columns))
        for column, value in row.items():
            values[column] = value
        return values

    def goal(self, question: machine.Question) -> Any:
        """The objective, to be minimised."""
        if question == "most":
            return self._dense({self.at["mixes", ""]: -1.0})
        if question == "efficient":
            return self.power()
        return self.prices() + (self.power() * self.energy.per_watt if self.energy else 0.0)

    def solve(self, goal: Any, size: float | None = None) -> tuple[Any, float]:
        """Returns the values of all columns, and a lower bound of the goal. Raises _Infeasible.

        size: the approximate value of the goal. None for its value without whole numbers.
        """
        size = abs(float(goal @ self._milp(goal, whole=False).x)) if size is None else size
        scaled = goal * (SCALE / size) if size > 0 else goal
        found = self._milp(scaled + SCALE * FEWER * self._counts, whole=True)
        least = float(scaled @ found.x) if found.mip_dual_bound is None else float(found.mip_dual_bound)
        bound = least * size / SCALE if size > 0 else 0.0
        try:
            return self.settled(found.x, scaled), bound
        except _Infeasible:  # the numbers were integers only within the solver's tolerance
            return found.x, bound

    @cached_property
    def _counts(self) -> Any:
        return np.array([float(what == "count") for what, _ in self.columns])

    def settled(self, values: Any, goal: Any) -> Any:
        """The best solution with the same whole numbers."""
        fixed = {column: round(values[column]) for column, (what, _) in enumerate(self.columns) if what in WHOLE}
        return self._milp(goal, whole=False, fixed=fixed).x

    def _milp(self, goal: Any, whole: bool, fixed: Mapping[int, float] | None = None) -> Any:
        from scipy.optimize import Bounds, milp

        low, high = np.zeros(len(self.columns)), np.full(len(self.columns), np.inf)
        for column, value in (fixed or {}).items():
            low[column] = high[column] = value
        found = milp(
            goal,
            integrality=np.array([whole and what in WHOLE for what, _ in self.columns]),
            bounds=Bounds(low, high),
            constraints=self._constraints,
            options={"mip_rel_gap": 0.0, "time_limit": TIME_LIMIT_S},
        )
        if found.status == INFEASIBLE:
            raise _Infeasible
        if found.x is None:
            raise MixmarkError(f"the solver found no machine: {found.message}", "name fewer kinds or tighter limits")
        return found

    @cached_property
    def _constraints(self) -> Any:
        return constraints([*self._rows()], len(self.columns))

    def best(self, question: machine.Question) -> tuple[Any, float | None]:
        """Returns the values of all columns and the gap; None if nothing is proved. Raises _Infeasible."""
        if question == "efficient" and self.limits.mixes_per_hour is None:
            return self._most_per_joule()
        goal = self.goal(question)
        values, bound = self.solve(goal)
        reached = float(goal @ values)
        if question == "cheapest" and all(kind.has_watts for kind in self.kinds) and not self.energy:
            values = self.settled(values, self.power())
        return values, _gap(abs(reached - bound), abs(reached))

    def _most_per_joule(self) -> tuple[Any, float | None]:
        """Finds the most mixes per joule by Dinkelbach's algorithm, as in `plan.placement`. The last program bounds
        mixes − efficiency · watts of any machine, whose watts are at least the smallest idle power of a host."""
        mixes, watts = -self.goal("most"), self.power()
        least = min((host.idle_watts or 0.0 for host in self.hosts), default=0.0)
        best, _ = self.solve(-mixes)
        while (done := float(mixes @ best)) > 0:
            efficiency = done / max(float(watts @ best), sys.float_info.min)
            values, bound = self.solve(efficiency * watts - mixes, done)
            if float(mixes @ values) <= efficiency * (1 + EXACT) * float(watts @ values):
                return best, _gap(max(0.0, -bound), efficiency * least)
            best = values
        return best, None

    def per_hour(self, values: Any) -> float:
        return float(values[self.at["mixes", ""]]) * self.ell * machine.HOUR_S

    def trimmed(self, values: Any, demand: float | None) -> tuple[Any, float]:
        """The values without work beyond the demand or the slowest suite, and the mixes per hour."""
        done = dict.fromkeys(self.mix_units, 0.0)
        for column, k, _, s in self._times:
            speed = self.kinds[k].speeds[s]
            done[speed.suite] += values[column] * self.units_per_s[k][s] / self.mix_units[speed.suite]
        target = min(min(done.values()), math.inf if demand is None else demand / machine.HOUR_S)
        kept = values.copy()
        for column, k, _, s in self._times:
            suite = self.kinds[k].speeds[s].suite
            kept[column] *= target / done[suite] if done[suite] else 0.0
        return kept, float(target * machine.HOUR_S)

    def time(self, values: Any) -> dict[str, dict[str, float]]:
        """The time of each kind for each suite, in devices."""
        found: dict[str, dict[str, float]] = {suite: {} for suite in self.mix_units}
        for column, k, _, s in self._times:
            if values[column] > NOTHING:
                own, name = found[self.kinds[k].speeds[s].suite], self.kinds[k].name
                own[name] = own.get(name, 0.0) + float(values[column])
        return found


def _gap(apart: float, size: float) -> float | None:
    if apart <= EXACT * size or apart < sys.float_info.epsilon:
        return 0.0
    return apart / size if size > 0 else None


def _sets(kind: machine.Kind, mix_units: Mapping[str, float]) -> dict[str, list[tuple[int, ...]]]:
    """The largest sets of a kind's speeds that fit into each of its memories. Each suite of the mix is in a set, unless
    it does not fit alone."""
    pools: dict[str, list[int]] = defaultdict(list)
    for s, speed in enumerate(kind.speeds):
        if speed.suite in mix_units and speed.memory_bytes <= kind.pool_bytes.get(speed.pool, math.inf):
            pools[speed.pool].append(s)
    return {pool: _largest(own, kind, pool) for pool, own in pools.items()}


def _largest(own: Sequence[int], kind: machine.Kind, pool: str) -> list[tuple[int, ...]]:
    room = kind.pool_bytes.get(pool, math.inf)
    sizes = {s: kind.speeds[s].memory_bytes for s in own}
    found = [tuple(own)] if sum(sizes.values()) <= room else []
    for size in range(len(own) - 1, 0, -1) if not found else ():
        for held in itertools.combinations(own, size):
            inside = set(held)
            if sum(sizes[s] for s in held) <= room and not any(inside <= set(larger) for larger in found):
                found.append(held)
    return found
