"""Documents: blocks of text, tables and charts, and their layout for a terminal, in Markdown and as a page.

A report, a comparison, a plan and the page of an entry are functions from data to a `Document`; every text is made
there, once. The three renderers only lay it out, and all of them treat a text as text: no markup in it and no escape
sequence has an effect.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from mixmark.harness.contracts.numbers import UNKNOWN
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup
    from rich.console import Console, RenderableType
    from rich.text import Text

LONGEST = 2000  # letters of a text
LISTED = re.compile(r"^(\d*)([-+.)])(?=\s|$|-[\s-]*$)")  # at the begin of a line Markdown makes a list or a rule of it
OPTION = re.compile(r"(?<!\S)--[a-z]+(?:-[a-z]+)*(?: \d+)?")
WIDTH = 100  # columns of a file or a pipe
NARROWEST = 60  # a narrower terminal breaks the lines itself
PADDING = 2  # blank characters between two columns of a table
WIDEST_WORD, WIDEST_FIGURE = 24, 30  # letters of a cell that are kept together

Tone = Literal["good", "warn", "bad"]
TONES: dict[str, Tone] = {
    **dict.fromkeys(("solid", "faster"), "good"),
    **dict.fromkeys(("fair", "rough", "partial", "unfinished", "ambiguous", "warning", "stale"), "warn"),
    **dict.fromkeys(("pending", "not audited yet", "not reached"), "warn"),
    **dict.fromkeys(("disturbed", "invalid", "failed", "slower", "void", "broken"), "bad"),
}
"""The tones of verdicts and states. Every renderer colours a label or a cell that is one of these words."""
COLOURS: dict[Tone, str] = {"good": "green", "warn": "yellow", "bad": "red"}


class Link(str):
    """A text with a link, in a table, facts or bullets. A terminal shows the text alone; Markdown has only the links of
    tables to other pages."""

    href: str

    def __new__(cls, text: str, href: str) -> Link:
        link = super().__new__(cls, text)
        link.href = href
        return link


class Bar(str):
    """A bar of a picture in a table, drawn by letters; a page draws it by its parts of the scale."""

    ends: Sequence[float]
    """The ends of the margin, as fractions of the scale."""
    style: Literal["own", "measured", "bound"]

    def __new__(cls, ends: Sequence[float], style: Literal["own", "measured", "bound"]) -> Bar:
        whole = max(1, round(ends[1] * 12))
        sure = min(round(ends[0] * 12), whole - (ends[1] > ends[0]))  # a margin has a letter
        bar = super().__new__(cls, ("░" if style == "bound" else "█") * sure + "▒" * (whole - sure))
        bar.ends, bar.style = ends, style
        return bar


@dataclass(frozen=True)
class Heading:
    """Begins a section at level 2, or a part of one at level 3."""

    text: str
    id: str = ""
    """The target of links; a section with an id is in the page's list of sections."""
    level: int = 2
    aside: str = ""
    """Follows the text in smaller type."""


@dataclass(frozen=True)
class Paragraph:
    """Sentences, or a command as code. `word` is a verdict or a state that stands before them, in brackets after the
    `lead` if there is one."""

    text: str
    word: str = ""
    lead: str = ""
    style: Literal["", "strong", "sentence", "quiet", "code"] = ""


@dataclass(frozen=True)
class Bullets:
    """Lines of a list."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """(name, value) pairs. A page shows only the title of folded ones until the reader opens them."""

    rows: Sequence[tuple[str, str]]
    folded: str = ""


@dataclass(frozen=True)
class Notes:
    """Remarks as (label, subject, text). The label is a state or the name of a result; the subject may be empty."""

    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Table:
    """A table of texts. The lines of a cell are separated by newlines; the first is the main one."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    """The number of columns with text, on the left; the others are figures."""


@dataclass(frozen=True)
class Chart:
    """A drawing, which only a page has. `table` has its figures."""

    title: str
    drawn: Markup
    table: Table | None = None
    wide: bool = False
    """Whether the drawing needs the whole width and brings its own caption."""


def _begin(block: Paragraph) -> str:
    return f"{block.lead} ({block.word})" if block.lead else block.word


Block = Heading | Paragraph | Bullets | Facts | Notes | Table | Chart


@dataclass(frozen=True)
class Document:
    """A title and blocks."""

    title: str
    subtitle: str
    blocks: Sequence[Block]
    footer: str = ""


def shown(document: Document) -> list[Block]:
    """The blocks that have content."""
    return [block for block in document.blocks if _content(block)]


def _content(block: Block) -> object:
    match block:
        case Heading() | Paragraph():
            return block.text
        case Bullets():
            return block.lines
        case Facts() | Notes() | Table():
            return block.rows
        case Chart():
            return block.drawn
        case _:
            assert_never(block)


# Markdown


def markdown(document: Document) -> str:
    """The document for GitHub."""
    lines = [f"## {cell(document.title)}", "", *([cell(document.subtitle), ""] if document.subtitle else [])]
    for block in shown(document):
        if written := list(_markdown(block)):
            lines += [*written, ""]
    return "\n".join(lines[:-1]) + "\n"


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield f"{'#' * (block.level + 1)} {cell(_titled(block))}"
        case Paragraph(style="code"):
            yield f"    {plain(block.text, LONGEST)}"
        case Paragraph():
            text = f"**{cell(block.text)}**" if block.style == "strong" else cell(block.text)
            yield f"**{cell(_begin(block))}**: {text}" if block.word else text
        case Bullets():
            yield from (f"- {cell(line)}" for line in block.lines)
        case Facts():
            yield from (f"- {cell(name)}: {cell(value)}" for name, value in block.rows)
        case Notes():
            for label, about, text in block.rows:
                yield f"- {f'**{cell(label)}** ' if label else ''}{cell(f'{about}: {text}' if about else text)}"
        case Table():
            if block.title:
                yield from (f"{cell(block.title)}:", "")
            yield f"| {' | '.join(map(cell, block.header))} |"
            sides = ("---" if index < block.text_columns else "---:" for index in range(len(block.header)))
            yield f"|{'|'.join(sides)}|"
            for row in block.rows:
                yield f"| {' | '.join(map(_cell, row))} |"
        case Chart():
            return  # a page alone has drawings
        case _:
            assert_never(block)


def _cell(text: str) -> str:
    words = cell(", ".join(text.split("\n")))
    return f"[{words}]({text.href})" if isinstance(text, Link) and not text.href.startswith("#") else words


def cell(text: str) -> str:
    """The text with escapes, so that no part of it counts as a table's bar, as HTML or as markup."""
    text = plain(text, LONGEST)
    for mark in "\\|`*_[]#~":
        text = text.replace(mark, f"\\{mark}")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return LISTED.sub(r"\1\\\2", text)


def _titled(heading: Heading) -> str:
    return f"{heading.text}: {heading.aside}" if heading.aside else heading.text


# Terminal


def console(document: Document, widest: int = WIDTH) -> str:
    """The document as wide as the terminal, but at most `widest` columns. It has colours only on a terminal."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    out = Console(
        file=StringIO(),
        width=min(max(shutil.get_terminal_size().columns, NARROWEST), widest) if terminal else widest,
        color_system="auto",
        force_terminal=terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        titles = [text for text in (document.title, document.subtitle) if text]
        for text, style in zip(titles, ("bold", ""), strict=False):
            out.print(_text(text, style))
        before: Block | None = Bullets(()) if titles else None
        for block in shown(document):
            if isinstance(block, Chart):
                continue
            lines = isinstance(before, Paragraph) and isinstance(block, Paragraph | Bullets)
            if before and not lines and not isinstance(before, Heading):
                out.print()
            for part in _printed(out, block):
                out.print(part)
            before = block
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _printed(out: Console, block: Block) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.table import Table as Grid

    match block:
        case Heading():
            yield _text(_titled(block), style="bold")
        case Paragraph():
            style = f"bold {COLOURS[TONES[block.word]]}" if block.word in TONES else "bold"
            text = _text(block.text, style="bold" if block.style == "strong" else "")
            yield _text(_begin(block), style=style).append(": ").append_text(text) if block.word else text
        case Bullets():
            yield from (Padding(_text(line), (0, 0, 0, 2)) for line in block.lines)
        case Facts() | Notes():
            grid = Grid.grid(padding=(0, 2, 0, 0))
            grid.add_column(max_width=28, overflow="fold")
            grid.add_column(overflow="fold")
            for label, *rest in block.rows:
                grid.add_row(_toned(label), _text(": ".join(filter(None, rest))))
            yield grid
        case Table():
            if block.title:
                yield _text(block.title)
            yield from _tables(out, block)
        case Chart():
            return
        case _:
            assert_never(block)


def _tables(out: Console, source: Table) -> Iterator[RenderableType]:
    """A table without lines. A table that is too wide goes on in another one, which repeats the columns of text."""
    from rich.table import Table as Grid

    kept, full = zip(*(_widths(source, index) for index in range(len(source.header))), strict=True)
    names = list(range(min(source.text_columns, len(kept))))
    chunks = [list(names)]
    for index in range(len(names), len(kept)):
        if len(chunks[-1]) > len(names) and sum(kept[each] + PADDING for each in (*chunks[-1], index)) > out.width:
            chunks.append(list(names))
        chunks[-1].append(index)
    for chunk in chunks:
        grid = Grid(box=None, padding=(0, PADDING, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
        levels = ([max(kept[each], min(full[each], level)) for each in chunk] for level in range(out.width, 0, -1))
        fitting = (each for each in levels if sum(each) <= out.width - PADDING * (len(chunk) - 1))
        for column, width in zip(chunk, next(fitting, [None] * len(chunk)), strict=True):
            side: Literal["left", "right"] = "left" if column < source.text_columns else "right"
            grid.add_column(_text(source.header[column]), justify=side, overflow="fold", width=width)
        for row in source.rows:
            cells = [row[column] for column in chunk]
            if len(chunks) > 1 and all(text == UNKNOWN for text in cells[len(names) :]):
                continue
            if grid.row_count and any("\n" in text for text in cells):
                grid.add_row()
            grid.add_row(*map(_toned, cells), style="bold" * any(getattr(each, "style", "") == "own" for each in row))
        yield grid
        if chunk is not chunks[-1]:
            yield ""


def _widths(source: Table, column: int) -> tuple[int, int]:
    """The width that a column needs, the longest line of a figure or the longest word of a text, and the width that it
    fills."""
    texts = (source.header[column], *(row[column] for row in source.rows))
    full = max(len(line) for text in texts for line in text.split("\n"))
    if column < source.text_columns:
        return min(WIDEST_WORD, max((len(word) for text in texts for word in text.split()), default=0)), full
    return min(WIDEST_FIGURE, full), full


def _toned(text: str) -> Text:
    """The lines of a cell, in the colour of the state that its first line names."""
    from rich.text import Text

    lines = text.split("\n")
    tone = TONES.get(lines[0])
    return Text("\n".join(plain(line, LONGEST) for line in lines), style=COLOURS[tone] if tone else "")


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(plain(text, LONGEST), style=style)


# Page


def html(document: Document) -> str:
    """One HTML page without scripts or other files. It opens offline, prints, and has a dark mode."""
    return template("page.jinja").render(document=document, body=body(document))


def body(document: Document) -> Markup:
    """The blocks as HTML, for a page with a frame of its own. Such a page needs the style of blocks.css."""
    from markupsafe import Markup

    written = template("blocks.jinja").render(
        kind=lambda block: type(block).__name__,
        groups=groupby(shown(document), lambda block: isinstance(block, Chart) and not block.wide),
        sections=[block for block in document.blocks if isinstance(block, Heading) and block.level == 2 and block.id],
        tones=TONES,
    )
    return Markup(written)


@cache
def template(name: str, folder: Path = Path(__file__).parent) -> Template:
    """A template of a folder, which escapes and cleans all text. An unknown name in it is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = _whole
    return environment.get_template(name)


def _whole(text: str) -> Markup:
    """A text whose options, such as --wait-idle 60, are not broken over two lines at a hyphen."""
    from markupsafe import Markup, escape

    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', str(escape(plain(text, LONGEST)))))


def _clean(value: object) -> object:
    return value if hasattr(value, "__html__") or not isinstance(value, str) else plain(value, LONGEST)
