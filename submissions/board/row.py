"""What of an entry stands in a row of a board: its figures in words and as numbers, the same in every format."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.schema import Mix
from mixmark.harness.judge.mixed_run import Figure
from mixmark.harness.plan import mixes
from mixmark.reporters import figures, summary
from mixmark.submissions.board import rank
from mixmark.submissions.board.rank import Board, Key, Metric
from mixmark.submissions.entry import Entry, Estimate

UNITS: Mapping[Metric, str] = {"MX": "mix/kJ", "TX": "mix/s"}
NAMES: Mapping[Metric, str] = {"MX": "Mixes per kilojoule", "TX": "Mixes per second"}
LOGARITHMIC_FROM = 12  # times that the best estimate of a board exceeds the worst
DEVICES = 3  # named in a row; the page of an entry has all
PAGE = "index.html"


@dataclass(frozen=True)
class Site:
    """What all pages of a board have in common."""

    title: str
    url: str
    """Where the site will stand, with a slash at its end; empty where that is not known."""
    today: datetime.date
    """The day of which the marks of age are."""
    versions: Mapping[str, str]
    """The current version of each suite that is installed."""
    called: Mapping[str, str]
    """What the units of each suite are called in a sentence."""


@dataclass(frozen=True)
class Axis:
    """Where a value lies between two ends: at 0 to 100 %."""

    low: float
    high: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return round(min(100.0, max(0.0, (value - low) / (high - low) * 100)), 2)


def axis(estimates: Sequence[Estimate]) -> Axis:
    """An axis that holds all intervals: from a little below the least to a little above the greatest, so that a reader
    sees which intervals overlap; logarithmic where estimates lie far apart."""
    lows = [each.value if each.low is None else each.low for each in estimates]
    highs = [each.value if each.high is None else each.high for each in estimates]
    least, most = min(lows, default=0.0), max(highs, default=1.0)
    if 0 < least * LOGARITHMIC_FROM < most:
        return Axis(least / 1.15, most * 1.15, True)
    margin = max((most - least) * 0.06, abs(most) * 0.004, 1e-12)
    return Axis(least - margin, most + margin, False)


def page_of(entry: Entry) -> str:
    """The address of an entry's page below the root of the site. It never changes."""
    return f"entries/{entry.path}/{PAGE}"


def board_page(key: Key) -> str:
    return f"boards/{key.id}.html"


def value(estimate: Estimate) -> str:
    """12.3 of 12.3 mix/kJ."""
    return figures.significant(estimate.value)


def half_width(estimate: Estimate) -> str:
    """± 1.5 %; empty where there is no interval."""
    if estimate.low is None or estimate.high is None or not estimate.value:
        return ""
    return f"± {figures.percent((estimate.high - estimate.low) / 2 / estimate.value)}"


def whole(estimate: Estimate | None, metric: Metric) -> str:
    """12.3 mix/kJ ± 1.5 %."""
    if estimate is None:
        return "not measured"
    return f"{value(estimate)} {UNITS[metric]} {half_width(estimate)}".strip()


def price(entry: Entry) -> str:
    """12,300 EUR; empty where no price is declared."""
    total = entry.claim.price
    if total is None:
        return ""
    amount = Decimal(total.amount)
    return f"{amount:,.0f} {total.currency}" if amount >= 100 else f"{amount:,.2f} {total.currency}"


def devices(entry: Entry) -> list[str]:
    """The names of what computes, each with how often it is there: 8 × Acme Topaz. Slices of one device are one, and a
    group adds none to its parts."""
    known = {device.id: device for device in entry.machine.devices}
    named: dict[str, str] = {}
    for device in entry.machine.devices:
        for part in (device.slice_of,) if device.slice_of else map(part_of, device.parts or (device.id,)):
            model = entry.machine.processor_of(part)
            name = model if device.slice_of else known.get(part, device).name
            named.setdefault(part, figures.name(name or model or part))
    return [f"{count} × {name}" if count > 1 else name for name, count in Counter(named.values()).items()]


def device_name(entry: Entry, id: str) -> str:
    """What a device is called on the board, where those of other machines stand beside it."""
    found = next((each for each in entry.machine.devices if each.id == id), None)
    if found is None:
        return figures.name(id)
    return figures.name(found.name or entry.machine.processor_of(id) or id)


def few_devices(entry: Entry) -> str:
    named = devices(entry)
    rest = f" + {len(named) - DEVICES} more" if len(named) > DEVICES else ""
    return " + ".join(named[:DEVICES]) + rest


def kinds(entry: Entry) -> list[str]:
    """The kinds of its devices: cpu, gpu."""
    return sorted({device.kind for device in entry.machine.devices})


def measured(entry: Entry) -> str:
    """2026-11-22; the entry's own text where that is no date."""
    day = rank.date(entry)
    return figures.name(entry.ended_utc, 20) if day is None else day.isoformat()


def made_by(entry: Entry) -> str:
    """The versions as a row shows them: 0.1.0, suites 1; with every suite where their versions differ."""
    told = set(entry.suites.values())
    named = [figures.name(each, 12) for each in told] if len(told) == 1 else []
    suites = named or [f"{figures.name(name, 12)} {figures.name(each, 12)}" for name, each in entry.suites.items()]
    return f"{figures.name(entry.claim.mixmark, 16)}, {'suites ' if named else ''}{', '.join(suites)}"


def versions(entry: Entry) -> str:
    """Mixmark 0.1.0; llm 1, dlrm 1."""
    suites = ", ".join(f"{figures.name(name)} {figures.name(each)}" for name, each in entry.suites.items())
    return f"Mixmark {figures.name(entry.claim.mixmark)}; {suites}"


def why_unranked(entry: Entry) -> str:
    """Why an entry has no place among others."""
    told = entry.reasons.get("ranked", ())
    if told:
        return "; ".join(told)
    if not entry.claim.ranked:
        return f"{entry.claim.grade}: never ranked"
    return "its interval is not known"


def mix_of(entry: Entry) -> Mix | None:
    """The published mix of an entry. None where nobody here knows it."""
    return mixes.frozen().get(entry.claim.mix)


def sentence(entry: Entry, site: Site) -> str:
    """The score in one sentence: This system does one edge mix (50 LLM tokens, …) in 19.1 s and takes 2.3 kJ for it."""
    mix, claim = mix_of(entry), entry.claim
    if mix is None:
        speed = figures.duration(1e9 / claim.mixes_per_s.value)
        return f"This system does one mix {figures.name(claim.mix)}, which is none of the published ones, in {speed}."
    told = summary.does(
        mix, site.called, _figure(claim.mixes_per_s), _figure(claim.mixes_per_kj) if claim.mixes_per_kj else None
    )
    unmeasured = (
        "" if claim.mixes_per_kj else f" Its efficiency is not measured: {figures.name(entry.unmeasured, 200)}."
    )
    return f"This system {told}.{unmeasured}"


@dataclass(frozen=True)
class Standing:
    """Where an entry stands on one of its boards."""

    key: Key
    words: str
    """rank 2 of 14, shared with 3 others; why it has none."""
    rank: int | None


def standings(boards: tuple[Board, ...]) -> dict[str, list[Standing]]:
    """The standings of each entry by its path, MX first."""
    found: dict[str, list[Standing]] = {}
    for board in sorted(boards, key=lambda each: each.key.metric):
        for place in board.places:
            words = rank_in_words(place.rank, place.tied, len(board.places))
            found.setdefault(place.entry.path, []).append(Standing(board.key, words, place.rank))
        for entry in board.unranked:
            words = f"not ranked: {why_unranked(entry)}"
            found.setdefault(entry.path, []).append(Standing(board.key, words, None))
    return found


def rank_in_words(rank: int, tied: int, of: int) -> str:
    shared = f", shared with {tied} {'other' if tied == 1 else 'others'}" if tied else ""
    return f"rank {rank} of {of}{shared}"


def _figure(estimate: Estimate) -> Figure:
    return Figure(estimate.value, estimate.low, estimate.high)
