"""The board for programs and for texts that quote it: JSON, a feed, and a citation of each entry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixmark.harness.contracts.text import plain
from mixmark.reporters import figures
from mixmark.submissions.board import rank, row
from mixmark.submissions.board.rank import Board
from mixmark.submissions.board.row import Website
from mixmark.submissions.entry import Entry

SCHEMA = 1
"""The version of the shape of leaderboard.json."""
FEED_ENTRIES = 50


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
    """Everything that the pages show, with all digits."""
    entered = {suite for entry in entries for suite in entry.suites}
    shown = {
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
    return json.dumps(shown, allow_nan=False, separators=(",", ":")) + "\n"


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


def _entry(entry: Entry, site: Website, entries: Sequence[Entry]) -> dict[str, Any]:
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
            for run, other in row.reproductions(entry, entries, site)
        ],
    }


SCORED = {
    *("mix", "tier", "division", "tuning", "grade", "ranked", "verdict", "weight_class", "boundary"),
    *("mixes_per_hour", "mixes_per_kwh", "watts", "mixmark", "suites", "results", "started", "begun", "resumed"),
}
"""The facts of an entry that leaderboard.json holds as they are."""


def feed(site: Website, entries: Sequence[Entry]) -> str:
    """The newest entries as Atom (RFC 4287)."""
    newest = sorted(entries, key=rank.moment, reverse=True)[:FEED_ENTRIES]
    updated = newest[0].ended_utc if newest else f"{site.today}T00:00:00+00:00"
    words = {"headline": headline, "sentence": row.sentence, "page_of": row.permanent_page}
    return PAGES.get_template("feed.jinja").render(words, site=site, entries=newest, updated=updated) + "\n"


def headline(entry: Entry) -> str:
    """The score with its mix and boundary: 12.3 mix/kWh ± 1.5 %, edge-1, node."""
    if entry.mixes_per_kwh is None:
        return f"{row.whole(entry.mixes_per_hour, 'TX')}, {entry.mix}"
    return f"{row.whole(entry.mixes_per_kwh, 'MX')}, {entry.mix}, {entry.boundary}"


def citation(entry: Entry, site: Website) -> str:
    """An entry as a text quotes it: who, what, the score, its conditions, when, and where it can always be read."""
    declared = entry.declaration
    classes = [
        f"{entry.weight_class}-bit weights",
        entry.division,
        entry.standing,
        *["disturbed"] * (entry.verdict == "disturbed"),
    ]
    scored = ", ".join([headline(entry), *classes])
    where = f"{site.title}, Mixmark {entry.mixmark}, measured {row.measured(entry)}"
    where += f". {site.url}{row.permanent_page(entry)}"
    return plain(f"{declared.organisation}: {declared.system}. {scored}. {where}")
