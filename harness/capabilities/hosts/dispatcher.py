"""Dispatches the devices of one host, in a mix that several hosts run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

from mixmark.harness.measure.dispatch import SAME, Dispatcher, Loaded, Pair
from mixmark.harness.plan.placement import Planner


@dataclass(frozen=True)
class Tally:
    """The sums that the dispatcher of a host reports to the coordinator of several."""

    finished: Mapping[str, float]
    """The units of each suite that were finished since the phase began."""
    handed_out: Mapping[str, float]
    """The same, with the feeds that the host's devices hold."""
    paces: Mapping[Pair, float]
    """The observed rate of each pair over its solo rate; the device's pace if the pair was not observed."""
    unfinished_s: Mapping[str, float]
    """The work of each device on feeds that are not finished."""


@dataclass(frozen=True)
class Grant:
    """The part of a mix that the coordinator of several hosts gives to the dispatcher of one."""

    units: Mapping[str, float]
    """The host's units of a mix, of the suites that it has a part in."""
    credit: Mapping[str, float]
    """The units of each suite that may be handed out since the phase began."""


class HostDispatcher(Dispatcher):
    """A dispatcher that hands out no more than the credit of its grant, once it has one."""

    def __init__(self, loaded: Loaded, plan: Planner) -> None:
        self._credit: Mapping[str, float] | None = None
        super().__init__(loaded, plan)

    def tally(self, now_ns: int) -> Tally:
        return Tally(
            finished=dict(self._finished),
            handed_out={suite: self._handed_out(suite) for suite in self._finished},
            paces={pair: self._pace(pair) for pair in self._solo},
            unfinished_s=self._unfinished_s(now_ns),
        )

    def granted(self, grant: Grant, now_ns: int) -> None:
        """Takes over this host's part of a mix, and hands out no more than its credit. A suite that is new to the host
        begins where its least advanced one is."""
        self._credit = grant.credit
        able = {suite for suite, _ in self._solo}
        units = {suite: count for suite, count in grant.units.items() if suite in able}
        same = units.keys() == self._mix_units.keys() and all(
            isclose(units[suite], self._mix_units[suite], rel_tol=SAME) for suite in units
        )
        if same:
            return
        behind = min(self._progress.values(), default=0.0)
        self._progress = {suite: self._progress.get(suite, behind) for suite in units}
        self._finished = {**dict.fromkeys(units, 0.0), **self._finished}
        self._mix_units = units
        self._planned = {}  # so that a new plan is made
        self._rebalance(now_ns)

    def _handed_out(self, suite: str) -> float:
        """Returns the units of a suite that were finished or are in flight."""
        held = sum(count * self._quanta[pair] for pair, count in self._in_flight.items() if pair[0] == suite)
        return self._finished.get(suite, 0.0) + held

    def _may_hand_out(self, suite: str) -> bool:
        return self._credit is None or self._handed_out(suite) < self._credit.get(suite, 0.0)
