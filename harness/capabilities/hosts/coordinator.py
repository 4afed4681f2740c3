"""Divides one mix over many hosts: each host dispatches its own devices, and only sums cross the network. Pure.

The coordinator plans over the devices of all hosts, like hosts at once. It grants each host its part of a mix, as the
plan gives that part to the host's devices, and a credit: the units of each suite that the host may hand out to its
devices. The host's own dispatcher keeps the suites in the proportion of that part. Every few seconds each host reports
its finished units and the speed of its devices, and gets a new grant. A host without a new grant uses up its credit and
waits, so a lost connection costs the work of one host and never the balance of the mix.

Neither the traffic nor the coordinator's work grows with the number of feeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from mixmark.harness.capabilities.hosts.dispatcher import Grant, Tally
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Placement
from mixmark.harness.measure.dispatch import SAME, Pair, surplus
from mixmark.harness.plan.placement import Planner

EVERY_S = 2.0  # how often hosts report their progress
AHEAD_S = 6.0  # the work of a credit: a host that misses two grants does not wait
REPLAN_S = 5.0  # the least time between two plans


class Coordinator:
    """Keeps the progress of all hosts and makes their grants."""

    def __init__(
        self,
        mix_units: Mapping[str, float],
        placement: Placement,
        quanta: Mapping[Pair, int],
        concurrency: Mapping[str, int],
        host_of: Mapping[str, str],
        plan: Planner,
    ) -> None:
        """quanta: the units of a feed of each pair. concurrency: the feeds that each device runs at a time. host_of:
        the host of each device. plan: makes a new plan from observed rates."""
        self._mix_units, self._plan = dict(mix_units), plan
        self._quanta, self._concurrency, self._host_of = dict(quanta), dict(concurrency), dict(host_of)
        self._solo = {(rate.suite, rate.device): rate for rate in placement.rates}
        self._planned = dict.fromkeys(self._solo, 1.0)
        self._paces: dict[Pair, float] = {}
        self._tallies = {host: Tally({}, {}, {}, {}) for host in dict.fromkeys(self._host_of.values())}
        self._finished_by_lost = dict.fromkeys(mix_units, 0.0)
        self._planned_s = 0.0
        self._adopt(placement)

    @property
    def placement(self) -> Placement:
        """The current plan."""
        return self._placement

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts that are not lost."""
        return tuple(self._tallies)

    @property
    def units(self) -> Mapping[str, float]:
        """The finished units of each suite on all hosts, including the lost ones."""
        return {
            suite: units + sum(tally.finished.get(suite, 0) for tally in self._tallies.values())
            for suite, units in self._finished_by_lost.items()
        }

    @property
    def mixes(self) -> float:
        """The mixes that all suites with a device have finished."""
        done = self.units
        return min((done[suite] / count for suite, count in self._mix_units.items()), default=0.0)

    @property
    def surplus(self) -> float:
        """See `dispatch.surplus`."""
        unfinished_s = {id: seconds for tally in self._tallies.values() for id, seconds in tally.unfinished_s.items()}
        return surplus(self._placement, self._mix_units, self.units, unfinished_s)

    def update(self, host: str, tally: Tally) -> None:
        """Replaces the progress of a host. Raises KeyError for a host that is lost."""
        if host not in self._tallies:
            raise KeyError(host)
        self._tallies[host] = tally
        self._paces |= {pair: pace for pair, pace in tally.paces.items() if pair in self._solo}

    def remove(self, host: str) -> None:
        """The next grants are planned without this lost host, one plan for all that were lost since the last ones. Its
        finished units still count."""
        tally = self._tallies.pop(host)
        for suite, units in tally.finished.items():
            self._finished_by_lost[suite] += units
        for pair in [pair for pair in self._solo if self._host_of[pair[1]] == host]:
            del self._solo[pair]
            self._paces.pop(pair, None)
        able = {suite for suite, _ in self._solo}
        self._mix_units = {suite: units for suite, units in self._mix_units.items() if suite in able}
        self._planned_s = -REPLAN_S

    def grants(self, now_s: float) -> Mapping[str, Grant]:
        """The next grant of each host. now_s: seconds since the phase began."""
        if now_s - self._planned_s >= REPLAN_S and self._has_changed():
            self._replan(now_s)
        ahead = AHEAD_S * self._placement.mixes_per_s
        progress = {
            suite: (
                self._finished_by_lost[suite] + sum(tally.handed_out.get(suite, 0) for tally in self._tallies.values())
            )
            / units
            for suite, units in self._mix_units.items()
        }
        least = min(progress.values(), default=0.0)
        lead = {suite: max(0.0, mixes - least - self._allowed) for suite, mixes in progress.items()}
        return {host: self._grant(host, lead, ahead) for host in self._tallies}

    def _grant(self, host: str, lead: Mapping[str, float], ahead: float) -> Grant:
        """lead: by how many mixes a suite leads the least advanced one, beyond the feeds that devices may hold."""
        units, credit = {}, {}
        for suite, part in self._parts.get(host, {}).items():
            own = units[suite] = part * self._mix_units[suite]
            credit[suite] = self._tallies[host].handed_out.get(suite, 0.0) + own * max(0.0, ahead - lead[suite])
        return Grant(units, credit)

    def _has_changed(self) -> bool:
        same = self._planned.keys() == self._solo.keys()
        return not same or any(
            abs(pace - self._planned[pair]) > SAME * self._planned[pair] for pair, pace in self._paces.items()
        )

    def _replan(self, now_s: float) -> None:
        """Plans anew from the observed rates. The old plan stays if no other is possible."""
        self._planned_s = now_s
        if not self._mix_units:  # no host is left
            return
        self._planned = {pair: self._paces.get(pair, 1.0) for pair in self._solo}
        rates = [
            rate.model_copy(update={"units_per_s": rate.units_per_s * self._planned[pair]})
            for pair, rate in self._solo.items()
        ]
        placement = self._placement
        with suppress(MixmarkError):
            placement = self._plan(self._mix_units, rates)
        self._adopt(placement)

    def _adopt(self, placement: Placement) -> None:
        """Sums up the plan by hosts: the part of each suite's units that a host does."""
        self._placement = placement
        speed = {(rate.suite, rate.device): rate.units_per_s for rate in placement.rates}
        self._parts: dict[str, dict[str, float]] = {}
        for suite in self._mix_units:
            speeds = {
                device: part * speed[suite, device]
                for device, part in placement.fractions.get(suite, {}).items()
                if part and (suite, device) in self._solo
            }
            total = sum(speeds.values())
            for device, units_per_s in speeds.items():
                host = self._host_of[device]
                parts = self._parts.setdefault(host, {})
                parts[suite] = parts.get(suite, 0.0) + units_per_s / total
        most: dict[str, float] = {}
        for pair in ((suite, device) for suite, own in placement.fractions.items() for device in own):
            if pair in self._solo:
                most[pair[1]] = max(most.get(pair[1], 0.0), self._quanta[pair] / self._mix_units[pair[0]])
        self._allowed = sum((self._concurrency[device] + 1) * mixes for device, mixes in most.items())
