"""Estimates the offset and drift of another host's clock from round trips of messages, with a bound of the error.

A timestamp of one host is never subtracted from a timestamp of another. The other host's timestamps are first moved
onto this host's clock, by a straight line through the observed offsets; the line's bound says how far they may then be
wrong.

A message leaves here at `sent_ns`, arrives there at `theirs_ns` of the other clock, and its reply is back here at
`back_ns`. The other clock read `theirs_ns` at some moment between the two, so its offset lies within half of the round
trip around

    theirs_ns - (sent_ns + back_ns) / 2

however long each way took (D. Mills, Improved algorithms for synchronizing computer network clocks, IEEE/ACM
Transactions on Networking 3, 1995). A shorter round trip gives a better offset, so only the shortest one of each
stretch of time is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Clock

STRETCHES = 32  # parts of the observed time; the shortest round trip of each counts
FASTEST_DRIFT = 1e-3  # no working clock drifts faster: it stepped, or the delays of a short time look like a drift


@dataclass(frozen=True)
class RoundTrip:
    """A message to another host and its reply. sent_ns, back_ns: on this host's monotonic clock; theirs_ns: on the
    other host's."""

    sent_ns: int
    theirs_ns: int
    back_ns: int

    @property
    def at_ns(self) -> float:
        return (self.sent_ns + self.back_ns) / 2

    @property
    def half_ns(self) -> float:
        """How far the true offset may be from the observed one."""
        return (self.back_ns - self.sent_ns) / 2


def fit(trips: Sequence[RoundTrip]) -> Clock:
    """Fits a straight line through the best offset of each stretch of time, weighted by the inverse of its error.

    The bound is the largest distance between the line and any offset that these round trips allow, so both a clock that
    stepped and a connection with long delays make it large. Raises ValueError without a round trip, or if a reply was
    back before its message was sent.
    """
    if not trips:
        raise ValueError("no message went to the host and back, so its clock is not known")
    if any(trip.back_ns < trip.sent_ns for trip in trips):
        raise ValueError("a message was back before it was sent")
    first, last = min(trip.at_ns for trip in trips), max(trip.at_ns for trip in trips)
    stretch_ns = max((last - first) / STRETCHES, 1)
    best: dict[int, RoundTrip] = {}
    for trip in trips:
        stretch = min(int((trip.at_ns - first) / stretch_ns), STRETCHES - 1)
        if stretch not in best or trip.half_ns < best[stretch].half_ns:
            best[stretch] = trip
    kept = list(best.values())
    middle = round((first + last) / 2)
    base = kept[0].theirs_ns - round(kept[0].at_ns)
    times = np.array([trip.at_ns - middle for trip in kept])
    offsets = np.array([trip.theirs_ns - base - trip.at_ns for trip in kept])
    halves = np.array([trip.half_ns for trip in kept])
    slope, level = 0.0, float(offsets[np.argmin(halves)])
    if len(kept) > 1:
        slope, level = np.polyfit(times, offsets, 1, w=1 / np.maximum(halves, 1))
        if abs(slope) > FASTEST_DRIFT:
            slope = float(np.copysign(FASTEST_DRIFT, slope))
            level = float(np.average(offsets - slope * times, weights=1 / np.maximum(halves, 1)))
    distance = np.abs(offsets - (level + slope * times)) + halves
    return Clock(
        at_ns=middle,
        offset_ns=base + round(float(level)),
        drift=float(slope),
        bound_ns=int(np.ceil(distance.max())),
        pings=len(trips),
    )


def theirs_ns(clock: Clock, ours_ns: int) -> int:
    """Moves a timestamp of this host's clock onto the other host's, within the clock's bound."""
    return ours_ns + clock.offset_ns + round(clock.drift * (ours_ns - clock.at_ns))


def ours_ns(clock: Clock, theirs_ns: int) -> int:
    """Moves a timestamp of the other host's clock onto this host's, within the clock's bound."""
    since = theirs_ns - clock.offset_ns - clock.at_ns
    return clock.at_ns + since - round(since * (clock.drift / (1 + clock.drift)))
