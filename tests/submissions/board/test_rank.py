from __future__ import annotations

import datetime
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.submissions.board.rank import Key, boards, overlap, ranks, stale
from mixmark.submissions.entry import Entry, Estimate
from tests.fakes.entries import made

TODAY = datetime.date(2026, 11, 22)


def about(value: float, half: float) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


# Few values, so that equal estimates and intervals that touch come up.
ESTIMATES = st.lists(st.builds(about, st.integers(1, 30).map(float), st.integers(0, 6).map(float)), max_size=25)


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ([], []),
        ([about(5, 1)], [1]),
        ([about(100, 1), about(90, 1)], [1, 2]),
        ([about(90, 1), about(100, 1)], [2, 1]),
        ([about(100, 5), about(96, 1), about(80, 1)], [1, 1, 3]),
        ([about(100, 3), about(95, 3), about(90, 3)], [1, 1, 3]),  # no chain: the third overlaps only with the second
        ([about(100, 1), about(98, 0.5), about(97, 3)], [1, 2, 2]),  # to be unsure is no advantage
        ([about(100, 1), about(100, 5), about(96, 1)], [1, 1, 3]),  # of equals the surer one leads
        ([about(10, 1), about(8, 1)], [1, 1]),  # intervals that touch overlap
    ],
)
def test_who_overlaps_with_the_leader_shares_its_rank(estimates: list[Estimate], expected: list[int]) -> None:
    assert ranks(estimates) == expected


@given(ESTIMATES, st.randoms(use_true_random=False))
def test_the_order_of_the_entries_does_not_matter(estimates: list[Estimate], random: random.Random) -> None:
    shuffled = list(range(len(estimates)))
    random.shuffle(shuffled)
    found, again = ranks(estimates), ranks([estimates[at] for at in shuffled])
    assert again == [found[at] for at in shuffled]


@given(ESTIMATES)
def test_a_better_estimate_never_has_a_worse_rank(estimates: list[Estimate]) -> None:
    told = list(zip(estimates, ranks(estimates), strict=True))
    for one, its_rank in told:
        for other, other_rank in told:
            if one.value > other.value:
                assert its_rank <= other_rank


@given(ESTIMATES)
def test_a_rank_counts_the_better_groups_and_its_group_overlaps_with_the_leader(estimates: list[Estimate]) -> None:
    found = ranks(estimates)
    for rank in set(found):
        assert rank == 1 + sum(each < rank for each in found)
        group = [each for each, its in zip(estimates, found, strict=True) if its == rank]
        leader = max(group, key=lead)
        assert all(overlap(leader, each) and overlap(each, leader) for each in group)
        below = [each for each, its in zip(estimates, found, strict=True) if its > rank]
        assert not below or not overlap(leader, max(below, key=lead))


def lead(each: Estimate) -> tuple[float, float]:
    return each.value, each.low or 0.0


def of(entry: Entry, **changes: object) -> Entry:
    return entry.model_copy(update={"claim": entry.claim.model_copy(update=changes)})


def test_a_board_holds_what_may_be_compared_and_each_entry_is_on_every_board_of_its_own() -> None:
    entries = [made(number) for number in range(200)]
    found = boards(entries)
    assert len({board.key for board in found}) == len({board.key.id for board in found}) == len(found)
    on = {entry.path: 0 for entry in entries}
    for board in found:
        for entry in (*(place.entry for place in board.places), *board.unranked):
            on[entry.path] += 1
            claim = entry.claim
            assert (claim.mix, claim.weight_class, claim.division) == (
                *(board.key.mix, board.key.weight_class),
                board.key.division,
            )
            assert board.key.boundary == (claim.boundary if board.key.metric == "MX" else None)
        assert all(place.entry.claim.ranked for place in board.places)
        for place in board.places:
            assert place.tied == sum(place.rank == each.rank for each in board.places) - 1
    assert on == {entry.path: 1 + (entry.claim.mixes_per_kj is not None) for entry in entries}


def test_what_is_not_ranked_or_has_no_interval_stands_apart() -> None:
    ranked = next(each for each in map(made, range(100)) if each.claim.ranked)
    for unranked in (of(ranked, ranked=False), of(ranked, mixes_per_s=Estimate(value=3.0))):
        (board,) = (each for each in boards([unranked]) if each.key.metric == "TX")
        assert not board.places and board.unranked == (unranked,)


def test_the_board_that_readers_want_first_comes_first() -> None:
    entries = [made(number) for number in range(200)]
    first, *rest = boards(entries)
    assert first.key.metric == "MX"
    assert len(first.places) == max(len(each.places) for each in rest if each.key.metric == "MX")
    assert boards([]) == ()
    strange = of(entries[0].model_copy(update={"mix": "nobody-9"}), mix="nobody-9")
    assert boards([strange])[-1].key == Key("TX", "nobody-9", strange.claim.weight_class, strange.claim.division, None)


@pytest.mark.parametrize(
    ("ended_utc", "suites", "expected"),
    [
        ("2025-11-23T10:00:00+00:00", {"llm": "1"}, ()),
        ("2025-11-22T23:59:00+00:00", {"llm": "1"}, ("measured more than twelve months ago",)),
        ("2024-02-29T10:00:00+00:00", {"llm": "1"}, ("measured more than twelve months ago",)),
        ("2026-11-01T10:00:00", {"llm": "1", "toys": "7"}, ()),
        ("2026-11-01T10:00:00", {"llm": "0"}, ("llm was version 0 and is now version 1",)),
        ("yesterday", {"llm": "1"}, ()),
    ],
)
def test_an_entry_ages(ended_utc: str, suites: dict[str, str], expected: tuple[str, ...]) -> None:
    entry = made(1).model_copy(update={"ended_utc": ended_utc, "suites": suites})
    assert stale(entry, TODAY, {"llm": "1", "dlrm": "1"}) == expected


def test_a_leap_day_has_its_anniversary_in_march() -> None:
    entry = made(1).model_copy(update={"ended_utc": "2024-02-29T10:00:00+00:00"})
    assert not stale(entry, datetime.date(2025, 2, 28), {})
    assert stale(entry, datetime.date(2025, 3, 1), {})
