"""The folder of static pages. It is written beside its place and renamed, so that a reader never sees half of it."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.plan import mixes
from mixmark.reporters import document, figures, summary
from mixmark.reporters.charts import PixelAxis
from mixmark.reporters.document import Document
from mixmark.submissions.board import entry_page, formats, rank, row
from mixmark.submissions.board.formats import PAGES
from mixmark.submissions.board.rank import Board, Key, Metric, Place, figure_of
from mixmark.submissions.board.row import Website
from mixmark.submissions.entry import Entry

MOST_TICKS = 9  # of an axis
INDEX, DATA = row.PAGE, "leaderboard.json"

Reports = Callable[[Entry], Mapping[str, str]]
"""The report pages of an entry's results, by their file names."""


def build(site: Website, entries: Iterable[Entry], out: Path, reports: Reports = lambda entry: {}) -> tuple[Board, ...]:
    """Writes the site into the folder `out`, which may hold an older one, and returns its boards.

    Raises UsageError if `out` holds something else, or cannot be written.
    """
    entries = sorted(entries, key=lambda entry: entry.path)
    if out.exists() and not (out / DATA).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} holds something that is no leaderboard", "give an empty folder, or a new one")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            fresh = Path(scratch) / "site"
            boards = rank.boards(entries)
            for name, content in pages(site, boards, entries, reports):
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).write_text(content, encoding="utf-8", newline="\n")
            if out.exists():
                out.rename(Path(scratch) / "old")
            fresh.rename(out)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error}", "choose another folder with --out") from error
    return boards


def pages(
    site: Website, boards: Sequence[Board], entries: Sequence[Entry], reports: Reports = lambda entry: {}
) -> Iterator[tuple[str, str]]:
    """(name, content) of every file of the site."""
    folder = files("mixmark.submissions.board").joinpath("pages")
    blocks = files("mixmark.reporters").joinpath("blocks.css").read_text("utf-8")
    yield "style.css", blocks + folder.joinpath("style.css").read_text("utf-8")
    yield "board.js", folder.joinpath("board.js").read_text("utf-8")
    yield INDEX, _page(site, "board", INDEX, _board(site, boards, boards[0] if boards else None, ""))
    for board in boards:
        address = row.board_page(board.key)
        yield address, _page(site, "board", address, _board(site, boards, board, "../"))
    standings, of_system = row.standings(boards), defaultdict[str, list[Entry]](list)
    for entry in entries:
        of_system[entry.path].append(entry)
    for entry in entries:
        where, made = () if entry.replaced else standings[entry.path], reports(entry)
        reproduced = row.reproductions(entry, entries, site)
        page = entry_page.page(entry, site, where, list(made), of_system[entry.path], reproduced)
        shown = _entry(entry, page, site)
        addresses = [row.permanent_page(entry), *([] if entry.replaced else [row.page_of(entry)])]
        yield from ((address, _page(site, "entry", address, shown)) for address in addresses)
        yield from ((f"entries/{entry.permanent}/{name}", content) for name, content in made.items())
    about = "What a score, a board and a rank of Mixmark mean."
    reading = {"heading": "How to read this", "description": about, "published": list(_mixes(site))}
    yield "reading.html", _page(site, "reading", "reading.html", reading)
    if site.about:
        paragraphs = site.about.split("\n\n")
        told = {"heading": "About this board", "description": paragraphs[0], "paragraphs": paragraphs}
        yield "about.html", _page(site, "about", "about.html", told)
    if site.url:
        yield "feed.xml", formats.feed(site, entries)
    yield DATA, formats.as_json(site, boards, entries)


def _page(site: Website, template: str, address: str, shown: Mapping[str, Any]) -> str:
    """The page at an address below the root of the site."""
    common = {
        "site": site,
        "today": f"{site.today.day} {site.today:%B %Y}",
        "UNKNOWN": figures.UNKNOWN,
        "root": "../" * address.count("/"),
        "address": address,
        "script": False,
        "narrow": True,
    }
    return PAGES.get_template(f"{template}.jinja").render(common | dict(shown))


def _entry(entry: Entry, page: Document, site: Website) -> dict[str, Any]:
    return {
        "heading": f"{entry.declaration.organisation} {page.title}, {entry.mix}",
        "description": row.sentence(entry, site),
        "page": page,
        "body": document.body(page),
    }


def _mixes(site: Website) -> Iterator[tuple[str, str]]:
    for name, mix in mixes.frozen().items():
        if mix.tier != "smoke":
            yield name, summary.work(mix, site.unit_words)


def _board(site: Website, boards: Sequence[Board], board: Board | None, root: str) -> dict[str, Any]:
    if board is None:
        about = "How much AI work a whole machine does: no machine has been entered yet."
        return {"board": None, "heading": "A board without entries", "description": about}
    key = board.key
    metric: Metric = key.metric
    other: Metric = "TX" if metric == "MX" else "MX"
    mix = mixes.frozen().get(key.mix)
    axis = row.axis_of([figure_of(place.entry, metric) for place in board.ranked])
    suites, ticks = _suites(board), axis.ticks(MOST_TICKS - 1)
    lines = [
        _line(site, key, place, axis, suites) | {"at": at, "href": root + row.page_of(place.entry)}
        for at, place in enumerate((*board.ranked, *board.unranked))
    ]
    return {
        "board": board,
        "script": True,
        "narrow": False,
        "heading": key.title,
        "name": row.NAMES[metric],
        "description": _lead(board),
        "suites": suites,
        "priced": any(place.entry.declaration.price for place in board.ranked),
        "mix": summary.work(mix, site.unit_words) if mix else "",
        "boards": [(each.key.title, root + row.board_page(each.key), each is board) for each in boards],
        "unit": row.UNITS[metric],
        "other": row.UNITS[other],
        "axis": axis,
        "ticks": [(axis(value), label) for value, label in ticks[:: -(-len(ticks) // MOST_TICKS)]],
        "ranked": lines[: len(board.ranked)],
        "apart": lines[len(board.ranked) :],
    }


def _lead(board: Board) -> str:
    key = board.key
    ranked = f"{len(board.ranked):,}" if board.ranked else "none"
    counted = f"{ranked} ranked" + (f", {len(board.unranked):,} not ranked" if board.unranked else "")
    what = {
        "wall": "with a kilowatt-hour from the wall plug",
        "node": "with a kilowatt-hour of the node, behind its power supply",
        "devices": "with a kilowatt-hour of its devices",
        None: "in an hour",
    }[key.boundary]
    return f"How much AI work a whole machine does {what}: {counted}."


def _suites(board: Board) -> list[tuple[str, str]]:
    """(suite, unit) of each column with the rates of a suite alone, in the order of the mix."""
    places = (*board.ranked, *board.unranked)
    units = {suite: solo.names.short for place in places for suite, solo in row.fastest(place.entry).items()}
    mix = mixes.frozen().get(board.key.mix)
    order = [suite for suite in mix.units if suite in units] if mix else sorted(units)
    return [(suite, units[suite]) for suite in order[: row.SUITES]]


def _line(site: Website, key: Key, place: Place, axis: PixelAxis, suites: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The words of a row, the values by which its columns are sorted, and the positions of its interval on the axis of
    the board in percent."""
    entry, figure = place.entry, figure_of(place.entry, key.metric)
    other = entry.mixes_per_kwh if key.metric == "TX" else entry.mixes_per_hour
    solos = [row.fastest(entry).get(suite) for suite, _ in suites]
    price = entry.declaration.price
    ends = {"low": figure.ends[0], "mid": figure.estimate, "high": figure.ends[1]}
    return {
        "organisation": entry.declaration.organisation,
        "kinds": " ".join(row.kinds(entry)),
        "rank": place.label,
        "system": entry.declaration.system,
        "of": f"{entry.declaration.organisation} · {row.hardware(entry)}",
        "value": figures.number(figure),
        "half": figures.within(figure),
        "other": figures.number(other) if other else figures.UNKNOWN,
        "watts": row.watts(entry),
        "price": str(price or figures.UNKNOWN),
        "worth": row.worth(entry),
        "rates": [(row.rate(solo), solo.speed if solo else "") for solo in solos],
        "order": {
            "value": figure.estimate,
            "other": other.estimate if other else "",
            "watts": entry.watts or "",
            "price": f"{price.currency} {float(price.amount):018.2f}" if price else "",
        },
        "grade": entry.standing,
        "tuning": entry.tuning,
        "measured": row.measured(entry),
        "stale": "; ".join(rank.stale(entry, site.today, site.versions)),
        "why": row.why_unranked(entry) if place.rank is None else "",
        **{name: axis(min(max(axis.low, value), axis.high)) for name, value in ends.items()},
    }
