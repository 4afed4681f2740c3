"""Boards, ranks with ties, and the age of entries. Pure functions of entries.

A board holds what may be compared: one figure of one mix, in one division, at one weight class and, for MX, with one
energy boundary. On a board the entries are ordered by their estimates, the highest first. The first one leads a group.
Each further entry belongs to the group as long as its 95 % interval overlaps with the leader's; the first entry whose
interval lies below it leads the next group. All of a group share one rank: 1 + the number of entries in better groups.

So no entry outranks one with a better estimate by a wider interval, and a row of entries that each overlap with the
next does not become one big tie. Chatbot Arena (arXiv 2403.04132) counts the entries whose whole interval lies above
instead, which gives a wide interval a better rank than a narrow one at the same estimate.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Boundary
from mixmark.harness.plan import mixes
from mixmark.submissions.entry import Division, Entry

STALE_YEARS = 1
"""Years after which an entry is marked stale."""

Metric = Literal["MX", "TX"]
BOUNDARIES: tuple[Boundary | None, ...] = ("wall", "node", "devices", None)


@dataclass(frozen=True)
class Key:
    """What the entries of a board have in common."""

    metric: Metric
    mix: str
    weight_class: int
    division: Division
    boundary: Boundary | None
    """None on a board of TX."""

    @property
    def id(self) -> str:
        """The name of the board's page: mx-edge-1-node-16-bit-closed."""
        parts = (self.metric.lower(), self.mix, self.boundary, f"{self.weight_class}-bit", self.division)
        return "-".join(part for part in parts if part)

    @property
    def title(self) -> str:
        """MX of edge-1, energy boundary node, 16-bit weights, closed."""
        boundary = f", energy boundary {self.boundary}" if self.boundary else ""
        return f"{self.metric} of {self.mix}{boundary}, {self.weight_class}-bit weights, {self.division}"


@dataclass(frozen=True)
class Place:
    """An entry on a board."""

    entry: Entry
    rank: int | None
    """None if the entry is not ranked."""
    tied: int = 0
    """The number of other entries that share the rank."""

    @property
    def label(self) -> str:
        """The rank as tables show it: 2 =. Empty if the entry is not ranked."""
        return "" if self.rank is None else f"{self.rank}{' =' if self.tied else ''}"


@dataclass(frozen=True)
class Board:
    """The entries that may be compared, the best first."""

    key: Key
    ranked: tuple[Place, ...]
    unranked: tuple[Place, ...]


def boards(entries: Iterable[Entry]) -> tuple[Board, ...]:
    """All boards that have an entry: those with most ranked entries first, and MX before TX. An entry that was replaced
    is on none."""
    on: dict[Key, list[Entry]] = defaultdict(list)
    for entry in (entry for entry in entries if not entry.replaced):
        shared = entry.mix, entry.weight_class, entry.division
        on[Key("TX", *shared, None)].append(entry)
        if entry.mixes_per_kwh is not None:
            on[Key("MX", *shared, entry.boundary)].append(entry)
    return tuple(sorted((_board(key, of_key) for key, of_key in on.items()), key=_order))


def figure_of(entry: Entry, metric: Metric) -> Estimate:
    """The figure that a board of this metric orders the entry by."""
    figure = entry.mixes_per_hour if metric == "TX" else entry.mixes_per_kwh
    assert figure is not None  # it is on a board of this metric
    return figure


def ranks(figures: Sequence[Estimate]) -> list[int]:
    """The rank of each figure among all of them. Each has an interval.

    Their order does not matter: of equal estimates the one with the higher lower end leads.
    """
    order = sorted(range(len(figures)), key=lambda index: _descending(figures[index]))
    found = [0] * len(figures)
    leader, rank = None, 0
    for before, index in enumerate(order):
        if leader is None or not overlap(leader, figures[index]):
            leader, rank = figures[index], before + 1
        found[index] = rank
    return found


def overlap(first: Estimate, second: Estimate) -> bool:
    """Whether two intervals have a value in common."""
    return first.ends[0] <= second.ends[1] and second.ends[0] <= first.ends[1]


def stale(entry: Entry, today: datetime.date, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Why an entry is out of date. Empty if it is not.

    versions: the current version of each installed suite. A suite that is not installed proves nothing.
    """
    why = []
    measured = moment(entry)
    if (today.year - STALE_YEARS, today.month, today.day) >= (measured.year, measured.month, measured.day):
        why.append("measured more than twelve months ago")
    for suite, version in entry.suites.items():
        now = versions.get(suite, version)
        if now != version:
            why.append(f"{suite} was version {version} and is now version {now}")
    return tuple(why)


def moment(entry: Entry) -> datetime.datetime:
    """When the last result began, in UTC: the rule `date` has checked the text."""
    return datetime.datetime.fromisoformat(entry.ended_utc)


def _board(key: Key, entries: Sequence[Entry]) -> Board:
    """The board, on which the leader of a group comes first. Entries that hold the same run come last, the older one
    first."""

    def order(entry: Entry) -> tuple[float, float, str]:
        return *_descending(figure_of(entry, key.metric)), entry.path

    ranked: list[Entry] = []
    unranked: list[Place] = []
    for entry in sorted(entries, key=order):
        figure = figure_of(entry, key.metric)
        if entry.ranked and figure.low is not None and figure.high is not None:
            ranked.append(entry)
        else:
            unranked.append(Place(entry, None))
    if not ranked:
        unranked.sort(key=lambda place: len(lacks(place.entry)))  # the nearest to a rank first
    unranked.sort(key=lambda place: place.entry.disputed * moment(place.entry).timestamp())
    found = ranks([figure_of(entry, key.metric) for entry in ranked])
    sizes = Counter(found)
    places = (Place(entry, rank, sizes[rank] - 1) for entry, rank in zip(ranked, found, strict=True))
    return Board(key, tuple(places), tuple(unranked))


def lacks(entry: Entry) -> tuple[str, ...]:
    """What an entry has instead of what a rank needs: 1 of 3 runs. Empty if nothing is known."""
    of_grade = entry.reasons.get("grade", ()) if entry.grade == "indicative" else ()
    return (*of_grade, *entry.reasons.get("ranked", ()))


def _descending(figure: Estimate) -> tuple[float, float]:
    return -figure.estimate, -figure.ends[0]


def _order(board: Board) -> tuple[object, ...]:
    key, published = board.key, list(mixes.frozen())
    known = published.index(key.mix) if key.mix in published else len(published)
    return (
        *(not board.ranked, key.metric == "TX", -len(board.ranked), known, key.mix),
        *(key.division, -key.weight_class, BOUNDARIES.index(key.boundary)),
    )
