"""A mixed phase in which a device is taken away for a while and given back. This module is pure, as `dispatch` is."""

from __future__ import annotations

from collections.abc import Mapping

from mixmark.harness.contracts.schema import Drill, Placement
from mixmark.harness.measure.dispatch import Dispatcher, Handed, Pair
from mixmark.harness.plan.placement import Planner


class DrillDispatcher(Dispatcher):
    """Dispatches by the plan, and takes a device away for the time of the drill. What the device holds then is lost:
    its worker finishes it, and it counts nothing."""

    def __init__(
        self,
        mix_units: Mapping[str, float],
        placement: Placement,
        quanta: Mapping[Pair, int],
        concurrency: Mapping[Pair, int],
        plan: Planner,
        drill: Drill,
    ) -> None:
        super().__init__(mix_units, placement, quanta, concurrency, plan)
        own = drill.device
        self._drill, self._gone, self._since_ns = drill, 0, 0
        self._own_quanta = {pair: units for pair, units in self._quanta.items() if pair[1] == own}
        self._own_solo = {pair: rate for pair, rate in self._solo.items() if pair[1] == own}
        self._own_concurrency = self._concurrency[own]
        self._state = "before"

    def begin(self, begin_ns: int) -> None:
        super().begin(begin_ns)
        self._since_ns = begin_ns

    def next(self, device: str, now_ns: int) -> Handed | None:
        elapsed_ns, own = now_ns - self._since_ns, self._drill.device
        if self._state == "before" and elapsed_ns >= self._drill.lost_ns and own in self._concurrency:
            self._gone, self._state = self._held[own], "lost"
            super().lost(own, now_ns)
        if self._state == "lost" and elapsed_ns >= self._drill.back_ns and not self._gone:
            self._state = "back"
            self._found(now_ns)
        return super().next(device, now_ns)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        if self._gone and device == self._drill.device:
            self._gone -= 1
        else:
            super().finished(device, handed, begin_ns, end_ns, units)

    def lost(self, device: str, now_ns: int) -> None:
        if device == self._drill.device:
            self._state = "back"  # it has failed in earnest, and does not come back
        if device in self._concurrency:
            super().lost(device, now_ns)

    def _found(self, now_ns: int) -> None:
        own = self._drill.device
        self._quanta |= self._own_quanta
        self._solo |= self._own_solo
        self._concurrency[own], self._held[own], self._busy_since_ns[own] = self._own_concurrency, 0, now_ns
        self._planned = {}  # so that a new plan is made
        self._rebalance(now_ns)
