"""The board for programs and other pages: JSON, CSV, and a badge for each entry."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixmark.harness.contracts.text import escaped, plain
from mixmark.reporters import figures
from mixmark.submissions.board import rank, row
from mixmark.submissions.board.rank import Board, Key, Place
from mixmark.submissions.board.row import Standing, Website
from mixmark.submissions.entry import Entry

SCHEMA = 1
"""The version of the shape of leaderboard.json."""
FEED_ENTRIES = 50
LETTER_PX, PAD_PX = 6.6, 7
"""The width of a letter of a badge, at 11 px, and the space beside a text."""


def text(value: Any) -> Any:
    """A text without control characters and marks that turn the direction of text, and of limited length."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return plain(value, figures.LONGEST)


PAGES = Environment(
    loader=PackageLoader("mixmark.submissions.board", "pages"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=text,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters["name"] = figures.name


def as_json(site: Website, boards: Sequence[Board], entries: Sequence[Entry]) -> str:
    """Everything that the pages show, with all digits; the other formats are parts of it."""
    entered = {suite for entry in entries for suite in entry.suites}
    return _dumped(
        {
            "schema_version": SCHEMA,
            "title": site.title,
            "url": site.url,
            "as_of": site.today.isoformat(),
            "suites": {name: site.versions[name] for name in sorted(entered & site.versions.keys())},
            "boards": [_board(board) for board in boards],
            "contact": site.contact,
            "licence": site.licence,
            "entries": [_entry(entry, site, entries) for entry in entries if not entry.replaced],
            "replaced": [_entry(entry, site, entries) for entry in entries if entry.replaced],
        }
    )


def _dumped(value: Any) -> str:
    return escaped(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))) + "\n"


def _board(board: Board) -> dict[str, Any]:
    key = board.key
    return {
        "id": key.id,
        "title": key.title,
        "page": row.board_page(key),
        "metric": key.metric,
        "unit": row.UNITS[key.metric],
        "mix": key.mix,
        "boundary": key.boundary,
        "weight_class": key.weight_class,
        "division": key.division,
        "ranked": [{"entry": place.entry.path, "rank": place.rank, "tied": place.tied} for place in board.ranked],
        "not_ranked": [{"entry": place.entry.path, "why": row.why_unranked(place.entry)} for place in board.unranked],
    }


def _entry(entry: Entry, site: Website, entries: Sequence[Entry] = ()) -> dict[str, Any]:
    declared, worth = entry.declaration, row.price_per_mix(entry)
    return {
        "entry": entry.path,
        "page": row.page_of(entry),
        "permanent_page": row.permanent_page(entry),
        "organisation": declared.organisation,
        "system": declared.system,
        "availability": declared.availability,
        "devices": row.devices(entry),
        "kinds": row.kinds(entry),
        "processor": entry.machine.whole.cpu_model,
        "cores": entry.machine.whole.cpu_cores,
        "threads": entry.machine.whole.cpu_threads,
        "memory_bytes": entry.machine.whole.memory_bytes,
        "alone": {suite: {"units_per_s": solo.speed, "unit": solo.unit} for suite, solo in row.fastest(entry).items()},
        **entry.model_dump(mode="json", include=SCORED),
        "runs": len(entry.runs),
        "price": declared.price and declared.price.model_dump(mode="json"),
        "price_per_mix_per_hour": None if worth is None else float(worth),
        "provisioned_watts": declared.provisioned_watts,
        "measured": row.measured(entry),
        "stale": list(rank.stale(entry, site.today, site.versions)),
        "signed": entry.signed.state,
        "reproduced_by": [
            {**run.model_dump(mode="json"), "confirmed_by": other and other.path}
            for run, other in row.reproductions(entry, entries)
        ],
    }


SCORED = {
    *("mix", "tier", "division", "tuning", "grade", "ranked", "verdict", "weight_class", "boundary", "level"),
    *("mixes_per_hour", "mixes_per_kwh", "watts", "mixmark", "suites", "results", "started", "begun", "resumed"),
}
"""The facts of an entry that leaderboard.json holds as they are."""
COLUMNS = (
    *("board", "metric", "mix", "boundary", "weight_class", "division", "rank", "tied", "organisation", "system"),
    *("value", "low", "high", "unit", "mixes_per_hour", "mixes_per_kwh", "watts"),
    *("price", "currency", "price_per_mix_per_hour", "grade", "tuning"),
    *("availability", "runs", "measured", "mixmark", "suites", "stale", "devices", "hardware", "alone", "page"),
)


def as_csv(site: Website, boards: Sequence[Board]) -> str:
    """A row for each entry on each board, with all digits. The rank of an unranked entry is empty."""
    written = io.StringIO()
    sheet = csv.DictWriter(written, COLUMNS, extrasaction="ignore", lineterminator="\n")
    sheet.writeheader()
    for board in boards:
        for place in (*board.ranked, *board.unranked):
            cells = _cells(site, board.key, place)
            sheet.writerow({name: _cell(value) for name, value in cells.items()})
    return written.getvalue()


def _cells(site: Website, key: Key, place: Place) -> dict[str, object]:
    """The facts of an entry as leaderboard.json has them, with texts for what is no single value."""
    entry, price, figure = place.entry, place.entry.declaration.price, rank.figure_of(place.entry, key.metric)
    fastest = row.fastest(entry).items()
    return _entry(entry, site) | {
        **vars(key),
        "board": key.id,
        "rank": place.rank,
        "tied": None if place.rank is None else place.tied,
        "value": figure.estimate,
        "low": figure.low,
        "high": figure.high,
        "unit": row.UNITS[key.metric],
        "mixes_per_hour": entry.mixes_per_hour.estimate,
        "mixes_per_kwh": entry.mixes_per_kwh.estimate if entry.mixes_per_kwh else None,
        "price": price and price.amount,
        "currency": price and price.currency,
        "suites": ", ".join(f"{name} {version}" for name, version in entry.suites.items()),
        "stale": "; ".join(rank.stale(entry, site.today, site.versions)),
        "devices": " + ".join(row.devices(entry)),
        "hardware": row.hardware(entry),
        "alone": ", ".join(f"{suite} {solo.speed} {solo.unit}/s" for suite, solo in fastest),
        "page": site.url + row.page_of(entry),
    }


def _cell(value: object) -> str:
    written = "" if value is None else plain(str(value))
    # Spreadsheets run what starts with one of these; a number may have its sign.
    return f"'{written}" if isinstance(value, str) and written.startswith(("=", "+", "-", "@")) else written


def feed(site: Website, entries: Sequence[Entry]) -> str:
    """The newest entries as Atom (RFC 4287)."""
    newest = sorted(entries, key=rank.moment, reverse=True)[:FEED_ENTRIES]
    listed = [
        {
            "title": f"{entry.declaration.organisation} {entry.declaration.system}: {headline(entry)}",
            "address": site.url + row.permanent_page(entry),
            "updated": entry.ended_utc,
            "by": entry.declaration.organisation,
            "summary": f"{row.sentence(entry, site)} {entry.grade}, {entry.verdict}.",
        }
        for entry in newest
    ]
    updated = listed[0]["updated"] if listed else f"{site.today}T00:00:00+00:00"
    return PAGES.get_template("feed.jinja").render(site=site, listed=listed, updated=updated) + "\n"


def headline(entry: Entry) -> str:
    """The score as a badge shows it: 12.3 mix/kWh ± 1.5 %, edge-1, node."""
    if entry.mixes_per_kwh is None:
        return f"{row.whole(entry.mixes_per_hour, 'TX')}, {entry.mix}"
    return f"{row.whole(entry.mixes_per_kwh, 'MX')}, {entry.mix}, {entry.boundary}"


def citation(entry: Entry, site: Website) -> str:
    """An entry as a text quotes it: who, what, the score, its conditions, when, and where it can always be read."""
    declared = entry.declaration
    classes = [
        f"{entry.weight_class}-bit weights",
        entry.division,
        entry.grade,
        *["disturbed"] * (entry.verdict == "disturbed"),
    ]
    scored = ", ".join([headline(entry), *classes])
    where = f"{site.title}, Mixmark {entry.mixmark}, measured {row.measured(entry)}"
    where += f". {site.url}{row.permanent_page(entry)}"
    return plain(f"{declared.organisation}: {declared.system}. {scored}. {where}")


def badge(entry: Entry, standings: Sequence[Standing]) -> str:
    """An SVG in the shape that readmes are used to: the mix on the left, the score on the right."""
    first = standings[0]
    left = f"Mixmark {entry.mix}"
    right = f"{figures.number(entry.mixes_per_kwh or entry.mixes_per_hour)} {row.UNITS[first.key.metric]}"
    right += f" · {entry.grade if first.rank is None else f'rank {first.rank}'}"
    left_px, right_px = (round(len(words) * LETTER_PX + 2 * PAD_PX) for words in (left, right))
    title = f"{left}: {headline(entry)}, {first.words if first.rank else entry.grade}"
    shown = {"left": left, "right": right, "left_px": left_px, "right_px": right_px, "pad_px": PAD_PX, "title": title}
    return PAGES.get_template("badge.jinja").render(shown, ranked=first.rank is not None) + "\n"
