"""The board for programs and other pages: JSON, CSV, Markdown, and a badge and a preview picture for each entry."""

from __future__ import annotations

import csv
import io
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixmark.harness.contracts.text import escaped, plain
from mixmark.reporters import document, figures
from mixmark.reporters.document import Block, Document, Heading, Link, Paragraph, Table
from mixmark.submissions.board import rank, row
from mixmark.submissions.board.rank import Board, Key, Metric, Place
from mixmark.submissions.board.row import Standing, Website
from mixmark.submissions.entry import Entry

SCHEMA = 1
"""The version of the shape of leaderboard.json."""
RANKS = "Entries whose 95 % intervals overlap with the interval of the best of a group share its rank."
LETTER_PX, PAD_PX = 6.6, 7
"""The width of a letter of a badge, at 11 px, and the space beside a text."""
WIDTH_PX, HEIGHT_PX, MARGIN_PX = 600, 315, 24
"""The preview picture."""
MOST_BARS = 9
COLOURS = bytes.fromhex("fdfdfb b9c9e4 1b55b8")
"""Its paper, the bars of others and the bar of the entry, as on the pages in daylight."""


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
    return _dumped(
        {
            "schema_version": SCHEMA,
            "title": site.title,
            "url": site.url,
            "as_of": site.today.isoformat(),
            "suites": dict(site.versions),
            "boards": [_board(board) for board in boards],
            "entries": [_entry(entry, site) for entry in entries if not entry.replaced],
            "replaced": [_entry(entry, site) for entry in entries if entry.replaced],
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


def _entry(entry: Entry, site: Website) -> dict[str, Any]:
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
        "reproduced_by": [run.model_dump(mode="json") for run in declared.reproduced_by],
    }


SCORED = {
    *("mix", "tier", "division", "tuning", "grade", "ranked", "disturbed", "weight_class", "boundary", "level"),
    *("mixes_per_hour", "mixes_per_kwh", "watts", "mixmark", "suites", "results"),
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


def as_markdown(site: Website, boards: Sequence[Board]) -> str:
    """A table for each board."""
    return document.markdown(Document(site.title, f"As of {site.today}. {RANKS}", [*_boards(site, boards)]))


def _boards(site: Website, boards: Sequence[Board]) -> Iterator[Block]:
    if not boards:
        yield Paragraph("There is no entry yet.")
    for board in boards:
        metric = board.key.metric
        header = ("system", "measured", "", row.UNITS[metric], "power", "price")
        yield Heading(board.key.title)
        ranked = [(place.label, *_line(site, metric, place, place.entry.grade)) for place in board.ranked]
        yield Table("", ("rank", *header[:2], "grade", *header[2:]), ranked, text_columns=5)
        unranked = [_line(site, metric, place, row.why_unranked(place.entry)) for place in board.unranked]
        yield Table("Not ranked", (*header[:2], "why", *header[2:]), unranked, text_columns=4)


def _line(site: Website, metric: Metric, place: Place, remark: str) -> tuple[str, ...]:
    entry, declared = place.entry, place.entry.declaration
    stale = "; ".join(rank.stale(entry, site.today, site.versions))
    return (
        Link(f"{declared.organisation} {declared.system}\n{row.hardware(entry)}", site.url + row.page_of(entry)),
        row.measured(entry),
        f"{remark}, {entry.tuning}" if place.rank is not None else remark,
        stale and f"stale: {stale}",
        row.whole(rank.figure_of(entry, metric), metric),
        row.watts(entry),
        f"{row.price(entry)}, {row.worth(entry)} per mix/h" if row.price(entry) else figures.UNKNOWN,
    )


def headline(entry: Entry) -> str:
    """The score as a badge shows it: 12.3 mix/kWh ± 1.5 %, edge-1, node."""
    if entry.mixes_per_kwh is None:
        return f"{row.whole(entry.mixes_per_hour, 'TX')}, {entry.mix}"
    return f"{row.whole(entry.mixes_per_kwh, 'MX')}, {entry.mix}, {entry.boundary}"


def citation(entry: Entry, site: Website) -> str:
    """An entry as a text quotes it: who, what, the score, its conditions, when, and where it can always be read."""
    declared = entry.declaration
    classes = [f"{entry.weight_class}-bit weights", entry.division, entry.grade, *["disturbed"] * entry.disturbed]
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


def picture(values: Sequence[float], own: int | None) -> bytes:
    """The PNG that other sites show beside a link to a page: bars from zero, the largest first.

    Such a site shows the title and the description beside the picture, and takes no SVG.

    values: descending; only MOST_BARS of them are drawn. own: the index of the bar in colour; None means the first.
    """
    own = own or 0
    first = max(0, min(own - MOST_BARS // 2, len(values) - MOST_BARS))
    shown = values[first : first + MOST_BARS]
    pixels = np.zeros((HEIGHT_PX, WIDTH_PX), np.uint8)
    step = (HEIGHT_PX - 2 * MARGIN_PX) // MOST_BARS
    for index, value in enumerate(shown):
        top = MARGIN_PX + index * step
        length = max(2, round(value / values[0] * (WIDTH_PX - 2 * MARGIN_PX))) if values[0] else 2
        pixels[top : top + step * 2 // 3, MARGIN_PX : MARGIN_PX + length] = 2 if first + index == own else 1
    return _png(pixels)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Pixels of a palette as a file (ISO/IEC 15948)."""
    height, width = pixels.shape
    lines = np.hstack((np.zeros((height, 1), np.uint8), pixels))  # each begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", COLOURS), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
