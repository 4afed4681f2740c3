"""The board for programs and other pages: JSON, CSV, Markdown, an Atom feed, and a badge for each entry."""

from __future__ import annotations

import csv
import datetime
import io
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from mixmark.harness.contracts.text import escaped, plain
from mixmark.reporters import figures
from mixmark.submissions.board import rank, row
from mixmark.submissions.board.rank import Board, Metric, Place
from mixmark.submissions.board.row import Site, Standing
from mixmark.submissions.entry import Entry
from mixmark.submissions.page import text

SCHEMA = 1
"""The version of the shape of leaderboard.json."""
FEED_LENGTH = 50
"""Entries in the feed, the newest first."""
LETTER_PX, PAD_PX, BADGE_PX = (
    6.6,
    7,
    20,
)  # of a badge: the width of a letter at 11 px, the space beside text, its height
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def as_json(site: Site, boards: Sequence[Board], entries: Sequence[Entry]) -> str:
    """Everything that the pages show, with all digits; the other formats are parts of it."""
    return _dumped(
        {
            "schema_version": SCHEMA,
            "title": site.title,
            "url": site.url,
            "as_of": site.today.isoformat(),
            "suites": dict(site.versions),
            "boards": [_board(each) for each in boards],
            "entries": [_entry(each, site) for each in entries],
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
        "ranked": [{"entry": each.entry.path, "rank": each.rank, "tied": each.tied} for each in board.places],
        "not_ranked": [{"entry": each.path, "why": row.why_unranked(each)} for each in board.unranked],
    }


def _entry(entry: Entry, site: Site) -> dict[str, Any]:
    told, claim = entry.declaration, entry.claim
    return {
        "entry": entry.path,
        "page": row.page_of(entry),
        "organisation": told.organisation,
        "system": told.system,
        "availability": told.availability,
        "devices": row.devices(entry),
        "kinds": row.kinds(entry),
        "claim": claim.model_dump(mode="json"),
        "provisioned_watts": told.provisioned_watts,
        "measured": row.measured(entry),
        "suites": entry.suites,
        "stale": list(rank.stale(entry, site.today, site.versions)),
        "signed": entry.signed.state,
        "reproduced_by": [each.model_dump(mode="json") for each in told.reproduced_by],
    }


HEAD = (
    *("board", "metric", "mix", "boundary", "weight_class", "division", "rank", "tied", "organisation", "system"),
    *("value", "low", "high", "unit", "mixes_per_s", "mixes_per_kj", "watts", "price", "currency", "grade", "tuning"),
    *("availability", "runs", "measured", "mixmark", "suites", "stale", "devices", "page"),
)


def as_csv(site: Site, boards: Sequence[Board]) -> str:
    """A row for each entry on each board, with all digits. What is not ranked has no rank."""
    written = io.StringIO()
    sheet = csv.writer(written, lineterminator="\n")
    sheet.writerow(HEAD)
    for board in boards:
        for place in board.places:
            sheet.writerow(_cells(site, board, place.entry, place))
        for entry in board.unranked:
            sheet.writerow(_cells(site, board, entry, None))
    return written.getvalue()


def _cells(site: Site, board: Board, entry: Entry, place: Place | None) -> Iterator[str]:
    key, claim, told = board.key, entry.claim, entry.declaration
    found = rank.estimate(entry, key.metric)
    values = (
        *(key.id, key.metric, key.mix, key.boundary, key.weight_class, key.division),
        *((place.rank, place.tied) if place else (None, None)),
        *(told.organisation, told.system),
        *((found.value, found.low, found.high) if found else (None, None, None)),
        row.UNITS[key.metric],
        claim.mixes_per_s.value,
        claim.mixes_per_kj.value if claim.mixes_per_kj else None,
        claim.watts,
        *((claim.price.amount, claim.price.currency) if claim.price else (None, None)),
        *(claim.grade, claim.tuning, told.availability, claim.runs, row.measured(entry), claim.mixmark),
        ", ".join(f"{name} {version}" for name, version in entry.suites.items()),
        "; ".join(rank.stale(entry, site.today, site.versions)),
        " + ".join(row.devices(entry)),
        site.url + row.page_of(entry),
    )
    for value in values:
        cell = "" if value is None else plain(str(value))
        # Spreadsheets run what starts with one of these; a number may have its sign.
        yield f"'{cell}" if isinstance(value, str) and cell.startswith(("=", "+", "-", "@")) else cell


def as_markdown(site: Site, boards: Sequence[Board]) -> str:
    """A table for each board."""
    return "\n".join(_markdown(site, boards)) + "\n"


def _markdown(site: Site, boards: Sequence[Board]) -> Iterator[str]:
    yield f"# {text(site.title)}"
    yield ""
    yield f"As of {site.today}. Entries whose 95 % intervals overlap with that of the best of a group share its rank."
    if not boards:
        yield ""
        yield "There is no entry yet."
    for board in boards:
        key = board.key
        yield ""
        yield f"## {text(key.title)}"
        if board.places:
            yield ""
            yield f"| rank | system | {row.UNITS[key.metric]} | power | price | grade | measured | |"
            yield "|---:|---|---:|---:|---:|---|---|---|"
            for place in board.places:
                yield _line(site, key.metric, place.entry, f"{place.rank}{' =' if place.tied else ''}")
        if board.unranked:
            yield ""
            yield "Not ranked:"
            yield ""
            yield f"| | system | {row.UNITS[key.metric]} | power | price | why | measured | |"
            yield "|---|---|---:|---:|---:|---|---|---|"
            for entry in board.unranked:
                yield _line(site, key.metric, entry, "", row.why_unranked(entry))


def _line(site: Site, metric: Metric, entry: Entry, place: str, why: str = "") -> str:
    claim, told = entry.claim, entry.declaration
    found = rank.estimate(entry, metric)
    assert found is not None  # it is on a board of this figure
    cells = (
        place,
        f"[{text(f'{told.organisation} {told.system}')}]({site.url}{row.page_of(entry)})",
        f"{row.value(found)} {row.half_width(found)}".strip(),
        figures.prefixed(claim.watts, "W") if claim.watts else figures.UNKNOWN,
        row.price(entry) or figures.UNKNOWN,
        text(why or f"{claim.grade}, {claim.tuning}"),
        text(row.measured(entry)),
        f"stale: {text('; '.join(stale))}" if (stale := rank.stale(entry, site.today, site.versions)) else "",
    )
    return f"| {' | '.join(cells)} |"


def as_feed(site: Site, entries: Sequence[Entry]) -> str:
    """An Atom feed (RFC 4287) of the newest entries. Where the site has no URL, links are relative to it."""
    newest = sorted(entries, key=lambda each: (_moment(each), each.path), reverse=True)[:FEED_LENGTH]
    links = [f'<link rel="alternate" type="text/html" href={quoteattr(site.url + "index.html")}/>']
    if site.url:
        links.append(f'<link rel="self" type="application/atom+xml" href={quoteattr(site.url + "feed.xml")}/>')
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<title>{_xml(site.title)}</title>",
        f"<id>{_id(site.url or site.title)}</id>",
        f"<updated>{_stamp(max(map(_moment, newest), default=EPOCH))}</updated>",
        f"<generator>{_xml('Mixmark')}</generator>",
        *links,
    ]
    for entry in newest:
        told, claim = entry.declaration, entry.claim
        lines += [
            "<entry>",
            f"<title>{_xml(f'{told.organisation} {told.system}: {headline(entry)}')}</title>",
            f"<id>{_id(entry.path + ''.join(claim.results))}</id>",
            f"<updated>{_stamp(_moment(entry))}</updated>",
            f"<author><name>{_xml(told.organisation)}</name></author>",
            f'<link rel="alternate" type="text/html" href={quoteattr(site.url + row.page_of(entry))}/>',
            f"<summary>{_xml(row.sentence(entry, site))}</summary>",
            "</entry>",
        ]
    return "\n".join([*lines, "</feed>"]) + "\n"


def headline(entry: Entry) -> str:
    """The score as a badge and a feed have it: 12.3 mix/kJ ± 1.5 %, edge-1, node."""
    claim = entry.claim
    if claim.mixes_per_kj is None:
        return f"{row.whole(claim.mixes_per_s, 'TX')}, {claim.mix}"
    return f"{row.whole(claim.mixes_per_kj, 'MX')}, {claim.mix}, {claim.boundary}"


def badge(entry: Entry, standings: Sequence[Standing]) -> str:
    """An SVG in the shape that readmes are used to: what it is on the left, the score on the right."""
    claim = entry.claim
    first = standings[0]
    metric = first.key.metric
    left = f"Mixmark {claim.mix}"
    right = f"{row.value(claim.mixes_per_kj or claim.mixes_per_s)} {row.UNITS[metric]}"
    right += f" · {claim.grade if first.rank is None else f'rank {first.rank}'}"
    a_px, b_px = (round(len(each) * LETTER_PX + 2 * PAD_PX) for each in (left, right))
    label = _xml(f"{left}: {headline(entry)}, {first.words if first.rank else claim.grade}")
    colour = "#5c6167" if first.rank is None else "#1b55b8"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{a_px + b_px}" height="{BADGE_PX}" role="img" '
        f"aria-label={quoteattr(plain(f'{left}: {right}'))}><title>{label}</title>"
        f'<clipPath id="r"><rect width="{a_px + b_px}" height="{BADGE_PX}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{a_px}" height="{BADGE_PX}" fill="#1c1f23"/>'
        f'<rect x="{a_px}" width="{b_px}" height="{BADGE_PX}" fill="{colour}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{a_px / 2}" y="14" textLength="{a_px - 2 * PAD_PX}">{_xml(left)}</text>'
        f'<text x="{a_px + b_px / 2}" y="14" textLength="{b_px - 2 * PAD_PX}">{_xml(right)}</text></g></svg>\n'
    )


def _xml(words: str) -> str:
    return escape(plain(words))


def _id(words: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"mixmark:{words}").urn


def _moment(entry: Entry) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(entry.ended_utc)
    except ValueError:
        return EPOCH
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _stamp(moment: datetime.datetime) -> str:
    return f"{moment.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
