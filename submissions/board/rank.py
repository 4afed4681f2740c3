"""Who stands where: boards, ranks with ties, and what is out of date. Pure functions of entries.

A board holds what may be compared: one figure of one mix, in one division, at one weight class and, for MX, with one
energy boundary. On a board the entries are ordered by their estimates, the highest first. The first one leads a group.
Each further entry belongs to the group as long as its 95 % interval overlaps with that of the leader; the first entry
whose interval lies below it leads the next group. All of a group share one rank: 1 + the number of entries in better
groups.

So nobody outranks an entry with a better estimate by being less sure, and a row of entries that each overlap with the
next does not become one big tie. Chatbot Arena (arXiv 2403.04132) counts the entries whose whole interval lies above
instead, which gives a wide interval a better rank than a narrow one at the same estimate.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mixmark.harness.contracts.schema import Boundary
from mixmark.harness.plan import mixes
from mixmark.submissions.entry import Division, Entry, Estimate

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
        return "-".join(each for each in parts if each)

    @property
    def title(self) -> str:
        """MX of edge-1, energy boundary node, 16-bit weights, closed."""
        boundary = f", energy boundary {self.boundary}" if self.boundary else ""
        return f"{self.metric} of {self.mix}{boundary}, {self.weight_class}-bit weights, {self.division}"


@dataclass(frozen=True)
class Place:
    """An entry on a board."""

    entry: Entry
    rank: int
    tied: int
    """The number of other entries that share the rank."""


@dataclass(frozen=True)
class Board:
    """The entries that may be compared, the best first."""

    key: Key
    places: tuple[Place, ...]
    unranked: tuple[Entry, ...]
    """What has no place among others, the highest estimate first."""


def boards(entries: Iterable[Entry]) -> tuple[Board, ...]:
    """All boards that have an entry: those with most ranked entries first, and MX before TX."""
    on: dict[Key, list[Entry]] = defaultdict(list)
    for entry in entries:
        claim = entry.claim
        shared = claim.mix, claim.weight_class, claim.division
        on[Key("TX", *shared, None)].append(entry)
        if claim.mixes_per_kj is not None:
            on[Key("MX", *shared, claim.boundary)].append(entry)
    found = [_board(key, each) for key, each in on.items()]
    return tuple(sorted(found, key=_order))


def estimate(entry: Entry, metric: Metric) -> Estimate | None:
    """The figure of an entry by which a board is ordered."""
    return entry.claim.mixes_per_s if metric == "TX" else entry.claim.mixes_per_kj


def ranks(estimates: Sequence[Estimate]) -> list[int]:
    """The rank of each estimate among all of them. Each has an interval.

    The order in which they come does not matter: of equal estimates the one with the higher lower end leads.
    """
    order = sorted(range(len(estimates)), key=lambda at: (-estimates[at].value, -_low(estimates[at])))
    found = [0] * len(estimates)
    leader, rank = None, 0
    for before, at in enumerate(order):
        if leader is None or not overlap(leader, estimates[at]):
            leader, rank = estimates[at], before + 1
        found[at] = rank
    return found


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have a value in common."""
    return _low(one) <= _high(other) and _low(other) <= _high(one)


def stale(entry: Entry, today: datetime.date, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Why an entry is out of date; empty where it is not.

    versions: the current version of each suite that is known here. A suite that is not known proves nothing.
    """
    why = []
    measured = date(entry)
    if measured is not None and today >= _anniversary(measured):
        why.append("measured more than twelve months ago")
    for suite, version in entry.suites.items():
        now = versions.get(suite, version)
        if now != version:
            why.append(f"{suite} was version {version} and is now version {now}")
    return tuple(why)


def date(entry: Entry) -> datetime.date | None:
    """The day on which the last run began, in UTC. None where the entry's text is no date."""
    try:
        moment = datetime.datetime.fromisoformat(entry.ended_utc)
    except ValueError:
        return None
    return (moment.astimezone(datetime.UTC) if moment.tzinfo else moment).date()


def _board(key: Key, entries: Iterable[Entry]) -> Board:
    ranked: list[Entry] = []
    unranked: list[Entry] = []
    for entry in entries:
        figure = _figure(entry, key.metric)
        known = figure.low is not None and figure.high is not None
        (ranked if entry.claim.ranked and known else unranked).append(entry)
    found = ranks([_figure(entry, key.metric) for entry in ranked])
    sizes = Counter(found)
    places = [Place(entry, rank, sizes[rank] - 1) for entry, rank in zip(ranked, found, strict=True)]
    return Board(
        key,
        tuple(sorted(places, key=lambda place: _listed(place.entry, key.metric))),
        tuple(sorted(unranked, key=lambda entry: _listed(entry, key.metric))),
    )


def _listed(entry: Entry, metric: Metric) -> tuple[float, float, str]:
    """The order of a board, in which the leader of a group comes first."""
    figure = _figure(entry, metric)
    return -figure.value, -_low(figure), entry.path


def _order(board: Board) -> tuple[object, ...]:
    key, published = board.key, list(mixes.frozen())
    known = published.index(key.mix) if key.mix in published else len(published)
    return (
        *(not board.places, key.metric == "TX", -len(board.places), known, key.mix),
        *(key.division, -key.weight_class, BOUNDARIES.index(key.boundary)),
    )


def _figure(entry: Entry, metric: Metric) -> Estimate:
    found = estimate(entry, metric)
    assert found is not None  # it is on a board of this figure
    return found


def _low(figure: Estimate) -> float:
    return figure.value if figure.low is None else figure.low


def _high(figure: Estimate) -> float:
    return figure.value if figure.high is None else figure.high


def _anniversary(day: datetime.date) -> datetime.date:
    try:
        return day.replace(year=day.year + STALE_YEARS)
    except ValueError:  # 29 February
        return datetime.date(day.year + STALE_YEARS, 3, 1)
