"""Which suite a device runs next in the mixed phase. Pure: the parent tells the time and what happened.

while the phase lasts: for each device that holds fewer feeds than it may: suite = dispatcher.next(device, now)
where it is None, ask again after the next `finished` of any device
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.schema import Placement, Rate

REBALANCE_NS = 5_000_000_000
LEAD = 0.02  # of the mixes that every stream has done
BETTER = 1.01  # another set of routes must promise so much more: else it is noise, and the plan would flap

Pair = tuple[str, str]
"""Suite, device."""
Planner = Callable[[Mapping[str, float], Sequence[Rate]], Placement]
"""A plan for a mix (units by suite) over these rates; `place.place` with the rest bound."""


class Dispatcher:
    """Keeps the streams of all suites in the proportion of the mix, each device to the suites that its plan gives it.

    A stream's progress is in mixes, units over m_w; a quantum (a feed) counts from when it is handed out. A device gets
    the planned suite that is least advanced, so wrong rates right themselves; every few seconds the plan is made again
    from the observed rates. No quantum is handed out by which its stream would lead the least advanced one by more than
    2 % or one quantum for each feed that its devices may hold. A device to which the plan leaves idle time gets
    one only for a stream that no other is behind. So while nothing is in flight, some device has work: the one that is
    planned for the least advanced stream.
    """

    def __init__(
        self,
        mix_units: Mapping[str, float],
        placement: Placement,
        quanta: Mapping[Pair, int],
        holds: Mapping[str, int],
        plan: Planner,
        begin_ns: int,
    ) -> None:
        """quanta: units of a feed, of every (suite, device) that is loaded, planned or not.
        holds: feeds that each device may have at once: those that it runs (slots) and those that wait behind them.
        Raises ValueError where the placement uses what is not loaded."""
        raise NotImplementedError

    @property
    def placement(self) -> Placement:
        """The plan as it is now."""
        raise NotImplementedError

    @property
    def units(self) -> Mapping[str, float]:
        """Finished, of each suite."""
        raise NotImplementedError

    @property
    def mixes(self) -> float:
        """Finished by all streams that still have a device."""
        raise NotImplementedError

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Suites that no device is left for; the others go on in proportion."""
        raise NotImplementedError

    def next(self, device: str, now_ns: int) -> str | None:
        """The suite whose next feed the device shall get, which counts as handed out; None: wait."""
        raise NotImplementedError

    def finished(self, device: str, suite: str, units: int, begin_ns: int, end_ns: int) -> None:
        """A feed that was handed out is done, or failed. units: that count, 0 where it failed or broke its limit.
        begin_ns, end_ns: when the device worked on it, not when it was queued."""
        raise NotImplementedError

    def lost(self, device: str, now_ns: int) -> None:
        """The device is gone and what it had in flight with it."""
        raise NotImplementedError
