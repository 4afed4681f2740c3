"""Where the clock of another host stands against this one's, found from messages that went there and back.

A stamp of one host is never subtracted from a stamp of another. The other host's stamps are first moved onto this
host's clock, by a straight line through the offsets that were seen; how far they may then be wrong is the line's bound.

A message leaves here at `sent_ns`, is stamped there at `theirs_ns`, and its reply is back here at `back_ns`. The
other clock read `theirs_ns` at some moment between the two, so its offset lies within half of the round trip around

    theirs_ns - (sent_ns + back_ns) / 2

whatever part of the round trip each way took (D. Mills, Improved algorithms for synchronizing computer network clocks,
IEEE/ACM Transactions on Networking 3, 1995). The shorter the round trip, the better the offset is known, so of each
stretch of time only the message with the shortest one is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Clock

STRETCHES = 32  # parts of the observed time, of each of which the message with the shortest round trip counts
FASTEST_DRIFT = 1e-3  # no clock that works runs away faster: it steps, or the delays of a short time look like a drift


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
        """How far the offset may be from the one that was seen."""
        return (self.back_ns - self.sent_ns) / 2


def fit(pings: Sequence[RoundTrip]) -> Clock:
    """The straight line through the best offsets of each stretch of time, each weighted by how well it is known.

    Its bound is the largest distance between the line and any offset that one of these messages allows, so a clock that
    stepped or a link whose delays are large both make it large. Raises ValueError where there is no message, or where
    one was back before it was sent.
    """
    if not pings:
        raise ValueError("no message went to the host and back, so its clock is not known")
    if any(each.back_ns < each.sent_ns for each in pings):
        raise ValueError("a message was back before it was sent")
    first, last = min(each.at_ns for each in pings), max(each.at_ns for each in pings)
    stretch = max((last - first) / STRETCHES, 1)
    best: dict[int, RoundTrip] = {}
    for each in pings:
        at = min(int((each.at_ns - first) / stretch), STRETCHES - 1)
        if at not in best or each.half_ns < best[at].half_ns:
            best[at] = each
    kept = list(best.values())
    middle = round((first + last) / 2)
    base = kept[0].theirs_ns - round(kept[0].at_ns)
    times = np.array([each.at_ns - middle for each in kept])
    offsets = np.array([each.theirs_ns - base - each.at_ns for each in kept])
    halves = np.array([each.half_ns for each in kept])
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
        pings=len(pings),
    )


def ours_ns(clock: Clock, theirs_ns: int) -> int:
    """A stamp of the other host's clock as one of this host's, within the clock's bound."""
    since = theirs_ns - clock.offset_ns - clock.at_ns
    return clock.at_ns + since - round(since * (clock.drift / (1 + clock.drift)))
