"""A document of every block, as each of the three renderers lays it out, and with hostile text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markupsafe import Markup

from mixmark.reporters import document
from tests.golden.sample import FOLDER
from tests.reporters.hostile import LONG
from tests.reporters.parsed import Page

EVERY = document.Document(
    "Acme Quartz, 4 cores",
    "edge tier · finished",
    (
        document.Paragraph("2 of 3 suites", word="partial"),
        document.Paragraph("TX 12.3 mixes per hour ± 1.5 %", style="strong"),
        document.Bullets(("faster than Acme box", document.Link("its page", "https://example.org/"))),
        document.Paragraph("mixmark run", style="code"),
        document.Heading("Suites", "suites"),
        document.Table(
            "Best routes",
            ("suite", "route", "throughput"),
            (
                ("llm", "torch bf16\nsingle-stream", document.Link("7.00 tok/s\n± 2.0 %", "#a")),
                ("dlrm", "torch fp32", document.Link("failed", "b.html")),
            ),
            text_columns=2,
        ),
        document.Table("Without rows", ("suite",), ()),
        document.Heading("llm", "a", 3, "cpu:0"),
        document.Facts((("energy", "10 J"), ("report", document.Link("of result 1", "report-1.html")))),
        document.Notes((("warning", "llm", "it drifted"), ("A", "", "a copy"))),
        document.Chart("Power", Markup("<svg></svg>")),
        document.Facts((("seed", "7"),), folded="The run"),
    ),
    "the end",
)
FORMS: dict[str, Callable[[document.Document], str]] = {
    "document.txt": document.console,
    "document.md": document.markdown,
    "document.html": lambda made: re.sub(r"\n\s*", "\n", re.sub("(?s)<style>.*</style>", "", document.html(made))),
}
"""Golden files; of the page without its styles."""


@pytest.mark.parametrize("name", FORMS)
def test_each_renderer_lays_out_every_block(name: str) -> None:
    assert FORMS[name](EVERY) == (FOLDER / name).read_text("utf-8"), "python -m tests.golden rewrites"


def hostile(text: str) -> document.Document:
    """The document with that text in every place."""
    blocks = (
        document.Heading(text),
        document.Paragraph(text, word=text),
        document.Paragraph(text, style="quiet"),
        document.Bullets((text,)),
        document.Facts(((text, text),)),
        document.Notes(((text, text, text),)),
        document.Table(text, (text, text), ((text, document.Link(text, "#a")),)),
        document.Chart(text, Markup("<svg></svg>")),
    )
    return document.Document(text, text, blocks, text)


@pytest.mark.parametrize("width", [60, 100])
def test_hostile_text_has_no_effect_in_any_renderer(width: int) -> None:
    made = hostile(LONG)
    console = document.console(made, width)
    assert max(map(len, console.splitlines())) <= width
    page, markdown = document.html(made), document.markdown(made)
    for text in (console, page, markdown):
        assert all(letter.isprintable() for letter in text.replace("\n", "")), "nothing that a terminal would obey"
    assert {"script", "img", "iframe"}.isdisjoint(Page(page).tags)
    assert not [name for _, name, _ in Page(page).attributes if name.startswith("on")]
    bare = re.sub(r"\\.", "", markdown)
    assert "<" not in bare and "`" not in bare and "](" not in bare
    rows = [line for line in bare.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {3}, "no bar of a table is from a text"


@pytest.mark.parametrize(
    "text",
    [
        *("1. x", "2) x", "- y", "+ y", "* y", "-", "+", "1.", "12)", "--", "---", "- - -", "-- -"),
        *("# z", "#", "> q", "***", "___", "===", "```", "~~~", "[x]: y", "- [ ] x", "| - |", "a|b", r"a\|b", "|"),
        *("&lt;", "&amp;", "&#35;", "<b>", "<!-- x -->", "<https://example.org/>", "\\", "a\\", "a[", "]a"),
        *("`c`", "**b**", "_i_", "~~s~~", "[x](y)", "![x](y)", "1.2 x", "-1 x"),
    ],
)
def test_markdown_shows_a_text_as_it_is_wherever_it_stands(text: str) -> None:
    parser = MarkdownIt().enable(["table", "strikethrough"])

    def page(text: str) -> Page:
        linked = document.Table("", ("page",), ((document.Link(text, "b.html"),),))
        made = hostile(text)
        return Page(parser.render(document.markdown(replace(made, blocks=(*made.blocks, linked)))))

    usual, shown = page("usual"), page(text)
    assert shown.tags == usual.tags
    assert shown.words == [words.replace("usual", text) for words in usual.words]


def test_a_table_that_is_too_wide_goes_on_below_with_its_names() -> None:
    header = ("suite", *(f"machine {index}" for index in range(9)))
    wide = document.Document(
        "", "", (document.Table("", header, (("llm", *(f"{index}.00 tok/s" for index in range(9))),)),)
    )
    text = document.console(wide, 60)
    assert text.count("llm") == text.count("suite") > 1
    assert all(f"{index}.00 tok/s" in text for index in range(9))
    assert document.console(replace(wide, blocks=())) == "\n"


@pytest.mark.parametrize("width", range(66, 130, 3))
def test_no_cell_of_a_table_is_cut_at_any_width(width: int) -> None:
    """Text gives way to figures, also if its longest word may not."""
    header = ("path", "host memory", "time", "call alone")
    row = (
        "onnxruntime/from-gpu:0 (converts the layout), beside the mix",
        "pinned",
        "7.05 µs (7.04 µs to 7.06 µs)",
        "9 µs",
    )
    lines = document.console(document.Document("", "", [document.Table("", header, [row], 2)]), width).splitlines()
    assert max(map(len, lines)) <= width
    for cell in (*" ".join(header[:2]).split(), *header[2:], *row[0].split(), *row[1:]):
        assert any(cell in line for line in lines), cell
