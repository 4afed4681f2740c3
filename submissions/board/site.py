"""The folder of static pages: written beside its place and then put there, so that a reader never sees half of it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import plain
from mixmark.harness.plan import mixes
from mixmark.reporters import figures, summary
from mixmark.reporters.charts import decades, steps
from mixmark.submissions.board import formats, rank, row
from mixmark.submissions.board.entry_page import facts
from mixmark.submissions.board.rank import Board, Key, Metric, Place
from mixmark.submissions.board.row import Axis, Site
from mixmark.submissions.entry import Entry, Estimate

STATIC_ROWS = 200
"""Rows of a board that its page holds for readers without JavaScript. The script shows all."""
INDEX = "leaderboard.json"

Reports = Callable[[Entry], Mapping[str, str]]
"""The report pages of an entry's results, by their file names."""


def text(value: Any) -> Any:
    """Free of control characters and of marks that turn the direction of text, and not without end."""
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


def build(site: Site, entries: Iterable[Entry], out: Path, reports: Reports = lambda entry: {}) -> tuple[Board, ...]:
    """Writes the site into the folder `out`, which may hold an older one, and returns its boards.

    Raises UsageError if `out` holds something else, or cannot be written.
    """
    entries = sorted(entries, key=lambda entry: entry.path)
    if out.exists() and not (out / INDEX).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} holds something that is no leaderboard", "give an empty folder, or a new one")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            fresh.chmod(0o755)
            boards = rank.boards(entries)
            for name, content in pages(site, boards, entries, reports):
                _write(fresh / name, content)
            if out.exists():
                shutil.rmtree(out)
            fresh.rename(out)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error}", "choose another folder with --out") from error
    return boards


def pages(
    site: Site, boards: Sequence[Board], entries: Sequence[Entry], reports: Reports = lambda entry: {}
) -> Iterator[tuple[str, str]]:
    """(name, content) of every file of the site."""
    for name in ("style.css", "board.js"):
        yield name, files("mixmark.submissions.board").joinpath("pages", name).read_text("utf-8")
    common = {"site": site, "today": figures_date(site), "UNKNOWN": figures.UNKNOWN}
    page = PAGES.get_template("board.jinja")
    yield "index.html", page.render(**common, **_board(site, boards, boards[0] if boards else None, ""))
    for board in boards:
        yield row.board_page(board.key), page.render(**common, **_board(site, boards, board, "../"))
    standings = row.standings(tuple(boards))
    page = PAGES.get_template("entry.jinja")
    for entry in entries:
        home = f"entries/{entry.path}"
        root = "../" * (home.count("/") + 1)
        where, made = standings[entry.path], reports(entry)
        yield f"{home}/{row.PAGE}", page.render(**common, root=root, **facts(entry, site, where, list(made)))
        for name, content in made.items():
            yield f"{home}/{name}", content
        yield f"{home}/badge.svg", formats.badge(entry, where)
    yield (
        "reading.html",
        PAGES.get_template("reading.jinja").render(
            **common, root="", heading="How to read this", script=False, narrow=True, published=list(_mixes(site))
        ),
    )
    yield "leaderboard.csv", formats.as_csv(site, boards)
    yield "leaderboard.md", formats.as_markdown(site, boards)
    yield "feed.xml", formats.as_feed(site, entries)
    yield INDEX, formats.as_json(site, boards, entries)


def figures_date(site: Site) -> str:
    return f"{site.today.day} {site.today:%B %Y}"


def _mixes(site: Site) -> Iterator[tuple[str, str]]:
    for name, mix in mixes.frozen().items():
        if mix.tier != "smoke":
            yield name, summary.work(mix, site.called)


def _board(site: Site, boards: Sequence[Board], board: Board | None, root: str) -> dict[str, Any]:
    if board is None:
        return {"board": None, "root": root, "heading": "A board without entries", "script": False, "narrow": True}
    key = board.key
    metric: Metric = key.metric
    other: Metric = "TX" if metric == "MX" else "MX"
    mix = mixes.frozen().get(key.mix)
    lines = [_line(site, key, each.entry, each, at) for at, each in enumerate(board.places)]
    lines += [_line(site, key, each, None, at) for at, each in enumerate(board.unranked, len(lines))]
    shown = [*(place.entry for place in board.places), *board.unranked]
    axis = row.axis([_estimate(place.entry, metric) for place in board.places])
    for line, entry in zip(lines, shown, strict=True):
        line |= _places(axis, _estimate(entry, metric)) | {"href": root + row.page_of(entry)}
    leader: Estimate | None = None
    for before, place, line in zip((None, *board.places), board.places, lines, strict=False):
        line["kind"] = "same" if before and before.rank == place.rank else "first"
        if line["kind"] == "first":
            leader = _estimate(place.entry, metric)
        if place.tied and leader is not None:
            ends = _places(axis, leader)
            line |= {"lead": ends["low"], "reach": round(ends["high"] - ends["low"], 2)}
    ranked, apart = lines[: len(board.places)], lines[len(board.places) :]
    return {
        "board": board,
        "root": root,
        "script": True,
        "narrow": False,
        "heading": key.title,
        "name": row.NAMES[metric],
        "lead": Markup(_lead(board)),
        "mix": summary.work(mix, site.called) if mix else "",
        "switches": list(_switches(boards, key, root)),
        "unit": row.UNITS[metric],
        "other": row.UNITS[other],
        "axis": axis,
        "ticks": [(axis(value), label) for value, label in _ticks(axis)],
        "lines": ranked[:STATIC_ROWS],
        "left": max(0, len(ranked) - STATIC_ROWS),
        "apart": apart[:STATIC_ROWS],
        "apart_left": max(0, len(apart) - STATIC_ROWS),
        "blank": dict.fromkeys(lines[0], "") | {"low": 0, "mid": 0, "high": 0, "lead": 0, "reach": 0},
        "data": _data(site, board, shown, lines, root),
    }


def _lead(board: Board) -> str:
    key = board.key
    ranked = f"{len(board.places):,}" if board.places else "none"
    counted = f"{ranked} ranked" + (f", {len(board.unranked):,} not ranked" if board.unranked else "")
    what = {
        "wall": "with a kilojoule at the wall plug",
        "node": "with a kilojoule of the node, behind its power supply",
        "devices": "with a kilojoule of its devices",
        None: "in a second",
    }[key.boundary]
    return f"How much AI work a whole machine does {what}: {counted}."


def _switches(boards: Sequence[Board], key: Key, root: str) -> Iterator[tuple[str, list[tuple[str, str, bool]]]]:
    """(label, options) of each thing in which boards differ; an option leads to the nearest board that there is."""

    def metric(each: Key) -> str:
        return f"MX {each.boundary}" if each.boundary else "TX"

    parts: tuple[tuple[str, Callable[[Key], str]], ...] = (
        ("Mix", lambda each: each.mix),
        ("Score", metric),
        ("Weights", lambda each: f"{each.weight_class} bit"),
        ("Division", lambda each: each.division),
    )
    keys = [board.key for board in boards]
    for label, part in parts:
        words = sorted({part(each) for each in keys}, key=lambda word: _place_of(label, word))
        options = []
        for word in words:
            like = [each for each in keys if part(each) == word]
            near = max(like, key=lambda each: sum(other(each) == other(key) for _, other in parts))
            options.append((word, root + row.board_page(near), word == part(key)))
        yield label, options


def _place_of(label: str, word: str) -> tuple[int, str]:
    orders = {
        "Mix": tuple(mixes.frozen()),
        "Score": ("MX wall", "MX node", "MX devices", "TX"),
        "Weights": ("16 bit", "8 bit", "4 bit"),
        "Division": ("closed", "open"),
    }
    order = orders[label]
    return (order.index(word) if word in order else len(order)), word


def _line(site: Site, key: Key, entry: Entry, place: Place | None, at: int) -> dict[str, Any]:
    """The words of a row."""
    claim, told = entry.claim, entry.declaration
    other = claim.mixes_per_kj if key.metric == "TX" else claim.mixes_per_s
    return {
        "at": at,
        "kind": "",
        "rank": f"{place.rank}{' =' if place.tied else ''}" if place else "",
        "system": told.system,
        "of": f"{told.organisation} · {row.few_devices(entry)}",
        "value": row.value(_estimate(entry, key.metric)),
        "half": row.half_width(_estimate(entry, key.metric)),
        "other": row.value(other) if other else figures.UNKNOWN,
        "watts": figures.prefixed(claim.watts, "W") if claim.watts else figures.UNKNOWN,
        "price": row.price(entry) or figures.UNKNOWN,
        "grade": claim.grade,
        "tuning": claim.tuning,
        "measured": row.measured(entry),
        "made": row.made_by(entry),
        "versions": row.versions(entry),
        "stale": "; ".join(rank.stale(entry, site.today, site.versions)),
        "why": "" if place else row.why_unranked(entry),
    }


def _places(axis: Axis, found: Estimate) -> dict[str, float]:
    """Where the interval and its middle lie on the axis of the board, in percent; `lead` and `reach` are where that of
    a leader begins and how wide it is, behind those who share a rank."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return {"low": axis(low), "mid": axis(found.value), "high": axis(high), "lead": 0.0, "reach": 0.0}


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    if axis.logarithmic:
        values = [value for value in decades(axis.low, axis.high) if axis.low <= value <= axis.high]
        return [(value, f"{value:,.12g}") for value in values[:: max(1, -(-len(values) // 5))]]
    return steps(axis.low, axis.high, 4)


WORDS = (
    *("href", "rank", "system", "of", "value", "half", "other", "watts", "price", "grade", "tuning", "measured"),
    *("made", "versions", "stale", "low", "mid", "high", "lead", "reach"),
)
"""The words of a row that the script needs to write it again."""


def _data(site: Site, board: Board, shown: Sequence[Entry], lines: Sequence[Mapping[str, Any]], root: str) -> Markup:
    """What the script works on, as JSON that cannot end its element."""
    names: dict[str, int] = {}
    suites: dict[str, int] = {}
    rows = []
    places = {place.entry.path: place for place in board.places}
    for entry, line in zip(shown, lines, strict=True):
        claim, told = entry.claim, entry.declaration
        best: dict[tuple[int, int], tuple[float, str]] = {}
        called = {device.id: row.device_name(entry, device.id) for device in entry.machine.devices}
        for cell in entry.solo_measurements:
            device = called.get(cell.device, cell.device)
            at = names.setdefault(device, len(names)), suites.setdefault(figures.name(cell.suite), len(suites))
            if at not in best or cell.units_per_s.value > best[at][0]:
                best[at] = cell.units_per_s.value, figures.rate(cell.units_per_s.value, cell.short_unit)
        place = places.get(entry.path)
        found = _estimate(entry, board.key.metric)
        tx, mx = claim.mixes_per_s, claim.mixes_per_kj
        rows.append(
            [
                [text(line[word]) for word in WORDS],
                [place.rank if place else None, found.value, found.low, found.high],
                [tx.value, mx.value if mx else None, claim.watts],
                [float(claim.price.amount) if claim.price else None, claim.price.currency if claim.price else ""],
                [text(told.organisation), row.kinds(entry), text(told.availability), claim.runs, claim.level],
                [f"{told.provisioned_watts} W" if told.provisioned_watts else "", text(" + ".join(row.devices(entry)))],
                [[*at, *each] for at, each in best.items()],
            ]
        )
    told_of = {
        "metric": board.key.metric,
        "unit": row.UNITS[board.key.metric],
        "names": [text(each) for each in names],
        "suites": list(suites),
        "rows": rows,
    }
    written = json.dumps(told_of, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _estimate(entry: Entry, metric: Metric) -> Estimate:
    found = rank.estimate(entry, metric)
    assert found is not None  # it is on a board of this figure
    return found


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
