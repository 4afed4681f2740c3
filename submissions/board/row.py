"""The words and numbers of an entry's row, the same in every format of a board."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.text import Unknown
from mixmark.harness.judge.mixed_run import HOUR_NS
from mixmark.harness.judge.solo import Solo, best, by_suite
from mixmark.harness.plan import mixes
from mixmark.reporters import figures, summary
from mixmark.reporters.charts import PixelAxis
from mixmark.submissions.board import rank
from mixmark.submissions.board.rank import Board, Key, Metric
from mixmark.submissions.entry import Entry, Reproduction, slug
from mixmark.submissions.verdict import score

UNITS: Mapping[Metric, str] = {"MX": "mix/kWh", "TX": "mix/h"}
NAMES: Mapping[Metric, str] = {"MX": "Mixes per kWh", "TX": "Mixes per hour"}
LOGARITHMIC_FROM = 12  # the ratio of the best estimate of a board to the worst
SUITES = 4
"""The columns of a row for suites."""
PAGE = "index.html"
SCHEMES = ("https://", "http://")


@dataclass(frozen=True)
class Website:
    """What all pages of a board have in common."""

    title: str
    url: str
    """The address of the site, with a slash at its end. Empty if not known."""
    today: datetime.date
    """The day from which ages are counted."""
    versions: Mapping[str, str]
    """The current version of each suite that is installed."""
    unit_words: Mapping[str, str]
    """The words for the units of each suite."""
    contact: str = ""
    """Where readers and entrants write: an e-mail address, or the address of a page. Empty if not known."""
    about: str = ""
    """Who makes the board, and why: paragraphs, with an empty line between them. Empty: the site has no such page."""
    licence: str = ""
    """The licence of the data. Empty if not known."""

    @property
    def contact_link(self) -> str:
        """The address that a reader of `contact` follows."""
        return self.contact if self.contact.startswith(SCHEMES) else f"mailto:{self.contact}"


@dataclass(frozen=True)
class Standing:
    """The place of an entry on one of its boards."""

    key: Key
    words: str
    """rank 2 of 14, shared with 3 others; or that it has none."""


def axis_of(figures: Sequence[Estimate]) -> PixelAxis:
    """An axis in percent of bars from zero that holds all intervals; logarithmic, without zero, if estimates lie far
    apart."""
    intervals = [figure.ends for figure in figures]
    least = min((low for low, _ in intervals), default=0.0)
    most = max((high for _, high in intervals), default=1.0)
    if 0 < least * LOGARITHMIC_FROM < most:
        return PixelAxis(least / 1.15, most * 1.15, 0, 100, True)
    return PixelAxis(0.0, most * 1.02 or 1.0, 0, 100)


def page_of(entry: Entry) -> str:
    """The address below the root of the site of the page with the entry of this system that counts now."""
    return f"entries/{entry.path}/{PAGE}"


def permanent_page(entry: Entry) -> str:
    """The address below the root of the site that never shows other results. The page lies beside `page_of`."""
    return f"entries/{entry.permanent}/{PAGE}"


def beside(folder: str, name: str = PAGE) -> str:
    """The link from an entry's page to a file of another folder of the system."""
    return f"../{folder.rpartition('/')[2]}/{name}"


def board_page(key: Key) -> str:
    """The address of a board's page below the root of the site."""
    return f"boards/{key.id}.html"


def whole(figure: Estimate | None, metric: Metric) -> str:
    """12.3 mix/kWh ± 1.5 %."""
    return score(figure, UNITS[metric])


def watts(entry: Entry) -> str:
    """The mean power: 235 W."""
    return figures.prefixed(entry.watts, "W")


def price_per_mix(entry: Entry) -> Decimal | None:
    """The declared price for each mix per hour. None if no price is declared."""
    declared = entry.declaration.price
    return Decimal(declared.amount) / Decimal(entry.mixes_per_hour.estimate) if declared else None


def worth(entry: Entry) -> str:
    """The declared price for each mix per hour in words: 12.3 EUR. Empty if no price is declared."""
    declared, per_mix = entry.declaration.price, price_per_mix(entry)
    return "" if declared is None or per_mix is None else f"{figures.significant(float(per_mix))} {declared.currency}"


def hardware(entry: Entry) -> str:
    """What one buys: Acme Quartz, 16 cores, 32 threads, 64.0 GiB, 2 × Acme Topaz."""
    return figures.system(entry.machine.whole, [name for kind, name in _silicon(entry) if kind != "cpu"])


def fastest(entry: Entry) -> dict[str, Solo]:
    """The fastest solo measurement of each suite."""
    return best(entry.solos, by_suite)


def rate(solo: Solo | None) -> str:
    """The rate of a solo measurement, under a head with its unit."""
    return figures.UNKNOWN if solo is None else figures.significant(solo.speed)


def devices(entry: Entry) -> list[str]:
    """The names of the devices, each with its count: 8 × Acme Topaz."""
    return _times(Counter(name for _, name in _silicon(entry)))


def _silicon(entry: Entry) -> Iterator[tuple[str, str]]:
    """(kind, name) of each device. Slices of one device are one, and a group adds none to its parts."""
    known = {device.id: device for device in entry.machine.devices}
    seen = set()
    for device in entry.machine.devices:
        for part in (device.slice_of,) if device.slice_of else map(part_of, device.parts or (device.id,)):
            model = entry.machine.processor_of(part)
            name = model if device.slice_of else known.get(part, device).name
            if part not in seen:
                yield device.kind, figures.name(name or model or part)
            seen.add(part)


def _times(named: Counter[str]) -> list[str]:
    return [f"{count} × {name}" if count > 1 else name for name, count in named.items()]


def device_name(entry: Entry, id: str) -> str:
    """The name of a device on a board, beside devices of other machines."""
    name = next(
        (device.name or entry.machine.processor_of(id) for device in entry.machine.devices if device.id == id), ""
    )
    return figures.name(name or id)


def kinds(entry: Entry) -> list[str]:
    """The kinds of its devices: cpu, gpu."""
    return sorted({device.kind for device in entry.machine.devices})


def measured(entry: Entry) -> str:
    """The day of the last result: 2026-11-22."""
    return rank.moment(entry).date().isoformat()


def suite_versions(entry: Entry) -> str:
    """llm version 1, dlrm version 1, in the order of the mix."""
    names = sorted(entry.suites, key=partial(position, entry))
    return ", ".join(f"{figures.name(name)} version {figures.name(entry.suites[name])}" for name in names)


def position(entry: Entry, suite: str) -> int:
    """The position of a suite in the mix, so that every page has the same order; other suites are last."""
    mix = mixes.frozen().get(entry.mix)
    order = list(mix.units) if mix else []
    return order.index(suite) if suite in order else len(order)


def reproductions(entry: Entry, entries: Sequence[Entry], site: Website) -> Iterator[tuple[Reproduction, Entry | None]]:
    """Each run that an entry names as its reproduction, with the entry that confirms it. None if none of them does.

    An entry confirms it if another organisation entered it, measured the same work on the same hardware, has an
    interval that overlaps and is no wider, and names this organisation in turn. It must have a rank on the same board
    and be current. A run that two entries hold confirms nothing.
    """
    own = _reproducible(entry)
    for run in entry.declaration.reproduced_by:
        confirming = (
            other
            for other in entries
            if other.declaration.folders[0] == slug(run.by) != entry.declaration.folders[0]
            and entry.declaration.folders[0] in (slug(back.by) for back in other.declaration.reproduced_by)
            and _reproducible(other) == own
            and rank.overlap(entry.mixes_per_hour, other.mixes_per_hour)
            and (other.mixes_per_hour.half_width or math.inf)
            <= (entry.mixes_per_hour.half_width or math.inf)
            < math.inf
            and other.ranked
            and not (entry.disputed or other.replaced or rank.stale(other, site.today, site.versions))
        )
        yield run, next(confirming, None)


def _reproducible(entry: Entry) -> object:
    """What a run and its reproduction have in common."""
    board = entry.mix, entry.suites, entry.weight_class, entry.division, entry.boundary
    return *board, entry.machine.whole.cpu_model or Unknown(), devices(entry)


def why_unranked(entry: Entry) -> str:
    """What an entry has instead of what a rank needs."""
    return "; ".join(rank.lacks(entry)) or "its interval is not known"


def sentence(entry: Entry, site: Website) -> str:
    """The score in one sentence: This system does one edge mix (50 LLM tokens, …) in 19.1 s and takes 2.3 kJ for it."""
    mix = mixes.frozen().get(entry.mix)
    if mix is None:
        speed = figures.duration(HOUR_NS / entry.mixes_per_hour.estimate)
        return f"This system does one mix {figures.name(entry.mix)}, which is none of the published ones, in {speed}."
    does = summary.does(mix, site.unit_words, entry.mixes_per_hour, entry.mixes_per_kwh)
    reason = "" if entry.mixes_per_kwh else f" Its efficiency is not measured: {figures.name(entry.unmeasured, 200)}."
    return f"This system {does}.{reason}"


def standings(boards: Sequence[Board]) -> dict[str, list[Standing]]:
    """The standings of each entry by its path, MX first."""
    found: dict[str, list[Standing]] = {}
    for board in sorted(boards, key=lambda board: board.key.metric):
        for place in board.ranked:
            shared = f", shared with {place.tied} {'other' if place.tied == 1 else 'others'}" if place.tied else ""
            words = f"rank {place.rank} of {len(board.ranked)}{shared}"
            found.setdefault(place.entry.path, []).append(Standing(board.key, words))
        for place in board.unranked:
            found.setdefault(place.entry.path, []).append(Standing(board.key, "not ranked"))
    return found
