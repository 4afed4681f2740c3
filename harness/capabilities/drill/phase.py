"""The phase of a drill: its facts, the device that is lost, and who hands out the feeds meanwhile."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Literal

from pydantic import Field

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Fact, Placement
from mixmark.harness.measure.dispatch import Dispatcher, Handed, Loaded, Source
from mixmark.harness.measure.stages import RunState, Steps, absent
from mixmark.harness.plan.placement import Planner
from mixmark.harness.plugins.experiments import Attendant

ABSENT = "the drill"


class Asked(Fact):
    """What is done to a device."""

    drill: Literal["lose-device"] = "lose-device"


class Drill(Fact):
    """A device that gets no work for a part of a phase, as if it had failed."""

    device: str
    lost_ns: int = Field(gt=0)
    """When the device is taken away, from the begin of the phase. Its unfinished work is lost."""
    back_ns: int = Field(gt=0)
    """When the device is given back, from the begin of the phase."""


def planned(state: RunState) -> Steps:
    """The mix in three parts of equal length: whole, without a device, and whole again."""
    if state.is_absent(ABSENT, "experiment"):
        return ()
    limits = state.preset.mix
    part_ns = min(limits.min_ns, limits.max_ns // 3)
    try:
        lost = Drill(device=device_to_lose(state.plan), lost_ns=part_ns, back_ns=2 * part_ns)
    except UsageError as error:
        return (absent(ABSENT, error, "experiment"),)
    limits = limits.model_copy(update={"min_ns": 3 * part_ns, "max_ns": 3 * part_ns})
    return (state.experiment("drill", lost, state.phase("drill", limits=limits)),)


def device_to_lose(placement: Placement) -> str:
    """The device that does most of the mix, among devices that other devices can replace. Raises UsageError if there is
    none."""
    able: dict[str, set[str]] = defaultdict(set)
    worth: dict[str, float] = defaultdict(float)
    for rate in placement.rates:
        able[rate.suite].add(rate.device)
        part = placement.fractions.get(rate.suite, {}).get(rate.device, 0.0)
        worth[rate.device] += part * rate.units_per_s * placement.suite_prices.get(rate.suite, 0.0)
    spare = [device for device in worth if worth[device] and all(devices != {device} for devices in able.values())]
    if not spare:
        raise UsageError(
            "no device can be taken away: each is the only device for a suite", "--split-cpu 2 makes two devices"
        )
    return max(spare, key=worth.__getitem__)


class Losing(Attendant):
    """Hands out the feeds of a drill."""

    def __init__(self, drill: Drill) -> None:
        self.drill = drill

    def source(self, plan: Planner) -> Source:
        return partial(DrillDispatcher, plan=plan, drill=self.drill)


class DrillDispatcher(Dispatcher):
    """Takes a device away for the time of the drill. The feeds that it holds then are finished, and count nothing."""

    def __init__(self, loaded: Loaded, plan: Planner, drill: Drill) -> None:
        super().__init__(loaded, plan)
        self._drill, self._state, self._stale = drill, "before", 0

    def next(self, device: str, now_ns: int) -> Handed | None:
        elapsed_ns, own = now_ns - self._begin_ns, self._drill.device
        if self._state == "before" and elapsed_ns >= self._drill.lost_ns:
            self._state, self._stale = "away", super().lost(own, now_ns)
        if self._state == "away" and elapsed_ns >= self._drill.back_ns and not self._stale:
            self._state = "over"
            self.returned(own, now_ns)
        return super().next(device, now_ns)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        if self._stale and device == self._drill.device:
            self._stale -= 1
        else:
            super().finished(device, handed, begin_ns, end_ns, units)

    def lost(self, device: str, now_ns: int) -> int:
        if device == self._drill.device:
            away, self._state = self._state == "away", "over"  # a device that has failed does not come back
            if away:
                return self._stale
        return super().lost(device, now_ns)
