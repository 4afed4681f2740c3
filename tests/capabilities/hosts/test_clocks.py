"""Other hosts' clocks, found from messages with delays that nobody knows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.capabilities.hosts.clocks import RoundTrip, fit, ours_ns

MS = 1_000_000
SECOND = 1_000_000_000


def pings(
    offset_ns: float, drift: float, delays_ns: list[tuple[int, int]], every_ns: int = SECOND, begin_ns: int = 5 * SECOND
) -> list[RoundTrip]:
    """Messages to a host whose clock reads ours · (1 + drift) + offset_ns, with the delays of both ways."""
    found = []
    for at, (there, back) in enumerate(delays_ns):
        sent = begin_ns + at * every_ns
        found.append(RoundTrip(sent, round((sent + there) * (1 + drift) + offset_ns), sent + there + back))
    return found


@pytest.mark.parametrize("there_ms", [1, 3])
def test_equal_delays_give_the_offset_exactly_and_unequal_ones_are_within_the_bound(there_ms: int) -> None:
    """Nobody can know that the way there took longer."""
    clock = fit(pings(7 * SECOND, 0, [(there_ms * MS, MS)] * 5))
    off_ns = (there_ms - 1) * MS // 2
    assert (clock.offset_ns, clock.bound_ns, clock.pings) == (7 * SECOND + off_ns, MS + off_ns, 5)
    assert clock.drift == pytest.approx(0, abs=1e-12)
    assert ours_ns(clock, 27 * SECOND) == 20 * SECOND - off_ns


def test_a_clock_that_runs_faster_is_followed() -> None:
    clock = fit(pings(-3 * SECOND, 50e-6, [(MS, MS)] * 120))
    assert clock.drift == pytest.approx(50e-6, rel=1e-6)
    true_ns = 60 * SECOND
    assert ours_ns(clock, round(true_ns * (1 + 50e-6)) - 3 * SECOND) == pytest.approx(true_ns, abs=100)


def test_of_a_stretch_the_shortest_round_trip_counts() -> None:
    slow = [(200 * MS, MS)] * 9 + [(MS, MS)]
    clock = fit(pings(0, 0, slow * 32, every_ns=10 * MS))
    assert abs(clock.offset_ns) < MS and clock.bound_ns < 2 * MS
    assert fit(pings(0, 0, [(200 * MS, MS)] * 320, every_ns=10 * MS)).bound_ns > 100 * MS


@pytest.mark.parametrize("seconds", [1, 5, 60])
def test_a_step_between_all_messages_before_and_after_is_taken_for_no_drift(seconds: int) -> None:
    """As where a phase is so short that there is none between those before it and those after it."""
    before = pings(0, 0, [(MS, MS)] * 8, every_ns=MS)
    after = pings(SECOND, 0, [(MS, MS)] * 8, every_ns=MS, begin_ns=(5 + seconds) * SECOND)
    clock = fit([*before, *after])
    assert abs(clock.drift) <= 1e-3
    assert clock.bound_ns > SECOND // 4
    still = [RoundTrip(each.sent_ns, 7, each.back_ns) for each in before + after]
    assert fit(still).bound_ns > seconds * SECOND // 3, "a clock that stands still"


def test_without_messages_or_before_they_were_sent_there_is_no_clock() -> None:
    with pytest.raises(ValueError, match="no message"):
        fit([])
    with pytest.raises(ValueError, match="before it was sent"):
        fit([RoundTrip(10, 5, 9)])


@given(
    offset=st.integers(-(10**15), 10**15),
    ppm=st.floats(-100, 100),
    seed=st.integers(0, 10_000),
    count=st.integers(1, 32),  # so that each has a stretch of its own
)
def test_no_stamp_is_wrong_by_more_than_the_bound(offset: int, ppm: float, seed: int, count: int) -> None:
    """The messages that the line was made from are as near to it as its bound says, whatever each way took."""
    draw = random.Random(seed)
    delays = [(int(draw.expovariate(1 / MS)) + 1, int(draw.expovariate(1 / MS)) + 1) for _ in range(count)]
    sent = pings(offset, ppm * 1e-6, delays)
    clock = fit(sent)
    for ping, (there, _) in zip(sent, delays, strict=True):
        assert abs(ours_ns(clock, ping.theirs_ns) - (ping.sent_ns + there)) <= clock.bound_ns * 1.001 + 2
