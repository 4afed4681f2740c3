from __future__ import annotations

import datetime
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.contracts.figures import Estimate
from mixmark.submissions.board.rank import Key, boards, overlap, ranks, stale
from tests.submissions.entries import made


def about(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


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
def test_entries_that_overlap_with_the_leader_share_its_rank(estimates: list[Estimate], expected: list[int]) -> None:
    assert ranks(estimates) == expected


@given(ESTIMATES, st.randoms(use_true_random=False))
def test_the_order_of_the_entries_does_not_matter(estimates: list[Estimate], random: random.Random) -> None:
    shuffled = list(range(len(estimates)))
    random.shuffle(shuffled)
    found, again = ranks(estimates), ranks([estimates[at] for at in shuffled])
    assert again == [found[at] for at in shuffled]


@given(ESTIMATES)
def test_a_rank_counts_the_better_groups_and_its_group_overlaps_with_the_leader(estimates: list[Estimate]) -> None:
    found = ranks(estimates)
    for rank in set(found):
        assert rank == 1 + sum(better < rank for better in found)
        group = [figure for figure, its in zip(estimates, found, strict=True) if its == rank]
        leader = max(group, key=lead)
        assert all(overlap(leader, figure) and overlap(figure, leader) for figure in group)
        below = [figure for figure, its in zip(estimates, found, strict=True) if its > rank]
        assert not below or not overlap(leader, max(below, key=lead))


def lead(figure: Estimate) -> tuple[float, float]:
    return figure.estimate, figure.low or 0.0


def test_a_board_holds_what_may_be_compared_and_each_entry_is_on_every_board_of_its_own() -> None:
    entries = [made(number) for number in range(200)]
    found = boards(entries)
    assert len({board.key for board in found}) == len({board.key.id for board in found}) == len(found)
    on = Counter[str]()
    for board in found:
        key = board.key
        for entry in (place.entry for place in (*board.ranked, *board.unranked)):
            on[entry.path] += 1
            assert (entry.mix, entry.weight_class, entry.division) == (key.mix, key.weight_class, key.division)
            assert key.boundary == (entry.boundary if key.metric == "MX" else None)
        assert all(place.entry.ranked for place in board.ranked)
        for place in board.ranked:
            assert place.tied == sum(place.rank == other.rank for other in board.ranked) - 1
    assert on == {entry.path: 1 + (entry.mixes_per_kwh is not None) for entry in entries}


def test_entries_without_rank_or_interval_stand_apart() -> None:
    ranked = next(entry for entry in map(made, range(100)) if entry.ranked)
    for change in ({"ranked": False}, {"mixes_per_hour": Estimate(3.0)}):
        unranked = ranked.model_copy(update=change)
        (board,) = (board for board in boards([unranked]) if board.key.metric == "TX")
        assert not board.ranked and [place.entry for place in board.unranked] == [unranked]


def test_the_board_that_readers_want_first_comes_first() -> None:
    entries = [made(number) for number in range(200)]
    first, *rest = boards(entries)
    assert first.key.metric == "MX"
    assert len(first.ranked) == max(len(board.ranked) for board in rest if board.key.metric == "MX")
    assert boards([]) == ()
    unknown = entries[0].model_copy(update={"mix": "unknown-9"})
    assert boards([unknown])[-1].key == Key("TX", "unknown-9", unknown.weight_class, unknown.division, None)


OLD = ("measured more than twelve months ago",)


@pytest.mark.parametrize(
    ("ended", "suites", "today", "expected"),
    [
        ("2025-11-23", {"llm": "1"}, "2026-11-22", ()),
        ("2025-11-22", {"llm": "1"}, "2026-11-22", OLD),
        ("2024-02-29", {"llm": "1"}, "2025-02-28", ()),
        ("2024-02-29", {"llm": "1"}, "2025-03-01", OLD),
        ("2026-11-01", {"llm": "1", "toys": "7"}, "2026-11-22", ()),
        ("2026-11-01", {"llm": "0"}, "2026-11-22", ("llm was version 0 and is now version 1",)),
    ],
)
def test_an_entry_ages(ended: str, suites: dict[str, str], today: str, expected: tuple[str, ...]) -> None:
    entry = made(1).model_copy(update={"ended_utc": f"{ended}T23:59:00+00:00", "suites": suites})
    assert stale(entry, datetime.date.fromisoformat(today), {"llm": "1", "dlrm": "1"}) == expected
