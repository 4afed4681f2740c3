"""A document of every block, as each of the three renderers lays it out, and with hostile text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markupsafe import Markup

from mixmark.reporters import document
from mixmark.reporters.document import (
    Bullets,
    Chart,
    Document,
    Facts,
    Heading,
    Link,
    Notes,
    Paragraph,
    Table,
)  # fmt: skip
from tests.reporters.hostile import LONG
from tests.reporters.parsed import Page

EVERY = Document(
    "Acme Quartz, 4 cores",
    "edge tier · finished",
    (
        Paragraph("2 of 3 suites", word="partial"),
        Paragraph("TX 12.3 mixes per hour ± 1.5 %", style="strong"),
        Bullets(("faster than Acme box", Link("its page", "https://example.org/"))),
        Paragraph("mixmark run", style="code"),
        Heading("Suites", "suites"),
        Table(
            "Best routes",
            ("suite", "route", "throughput"),
            (
                ("llm", "torch bf16\nsingle-stream", Link("7.00 tok/s\n± 2.0 %", "#a")),
                ("dlrm", "torch fp32", Link("failed", "b.html")),
            ),
            text_columns=2,
            tints=((0, 0, 0.5), (0, 0, -1)),
        ),
        Table("Without rows", ("suite",), ()),
        Heading("llm", "a", 3, "cpu:0"),
        Facts((("energy", "10 J"), ("report", Link("of result 1", "report-1.html")))),
        Notes((("warning", "llm", "it drifted"), ("A", "", "a copy"))),
        Chart("Power", Markup("<svg></svg>"), "steady"),
        Facts((("seed", "7"),), folded="The run"),
    ),
    "the end",
)
CONSOLE = """\
Acme Quartz, 4 cores
edge tier · finished

partial: 2 of 3 suites
TX 12.3 mixes per hour ± 1.5 %
  faster than Acme box
  its page

mixmark run

Suites
Best routes
suite  route          throughput
llm    torch bf16     7.00 tok/s
       single-stream     ± 2.0 %
dlrm   torch fp32         failed

llm: cpu:0
energy  10 J
report  of result 1

warning  llm: it drifted
A        a copy

seed  7
"""
MARKDOWN = """\
## Acme Quartz, 4 cores

edge tier · finished

**partial**: 2 of 3 suites

**TX 12.3 mixes per hour ± 1.5 %**

- faster than Acme box
- its page

    mixmark run

### Suites

Best routes:

| suite | route | throughput |
|---|---|---:|
| llm | torch bf16, single-stream | 7.00 tok/s, ± 2.0 % |
| dlrm | torch fp32 | [failed](b.html) |

#### llm: cpu:0

- energy: 10 J
- report: of result 1

- **warning** llm: it drifted
- **A** a copy

- seed: 7
"""
HTML = """\
<body>
<header>
<h1><span class="brand">Mixmark</span> Acme Quartz, 4 cores</h1>
<p class="quiet small">edge tier · finished</p>
</header>
<main>
<p class="verdict warn"><strong>partial</strong><span>: 2 of 3 suites</span></p>
<p class="strong">TX 12.3 mixes per hour ± 1.5 %</p>
<ul class="bullets" role="list"><li>faster than Acme box</li><li><a rel="nofollow noopener noreferrer external" \
href="https://example.org/">its page</a></li></ul>
<pre>mixmark run</pre>
<h2 id="suites">Suites</h2>
<h3>Best routes</h3>
<div class="wide" role="group" aria-label="Best routes" tabindex="0">
<table>
<thead><tr><th scope="col">suite</th><th scope="col">route</th><th scope="col" \
class="number">throughput</th></tr></thead>
<tbody>
<tr><th scope="row">llm</th><td class="">torch bf16<small>single-stream</small></td>\
<td class="number" style="--tint: 50%"><a href="#a">7.00 tok/s</a><small>± 2.0 %</small></td></tr>
<tr><th scope="row">dlrm</th><td class="">torch fp32</td>\
<td class="number behind" style="--tint: 100%"><a href="b.html"><span class="state bad">failed</span></a></td></tr>
</tbody>
</table>
</div>
<h3 id="a">llm<small>cpu:0</small></h3>
<dl class="facts">
<dt>energy</dt><dd>10 J</dd>
<dt>report</dt><dd><a href="report-1.html">of result 1</a></dd>
</dl>
<ul class="list" role="list">
<li><span class="state warn">warning</span><span>llm</span><span>it drifted</span></li>
<li><span class="state quiet">A</span><span></span><span>a copy</span></li>
</ul>
<div class="charts"><figure><figcaption>Power: <small>steady</small></figcaption><svg></svg></figure></div>\
<details><summary>The run</summary>
<dl class="facts">
<dt>seed</dt><dd>7</dd>
</dl>
</details>
</main>
<footer>the end</footer>
</body>
</html>
"""


def body(page: str) -> str:
    return page[page.index("<body>") :]


def lines(page: str) -> str:
    """The page without the line breaks of the template."""
    return re.sub(r"\s*\n\s*", "", page)


def test_each_renderer_lays_out_every_block() -> None:
    assert document.console(EVERY) == CONSOLE
    assert document.markdown(EVERY) == MARKDOWN
    assert lines(body(document.html(EVERY))) == lines(HTML)


def hostile(text: str) -> Document:
    """The document with that text in every place."""
    blocks = (
        Heading(text),
        Paragraph(text, word=text),
        Paragraph(text, style="quiet"),
        Bullets((text,)),
        Facts(((text, text),)),
        Notes(((text, text, text),)),
        Table(text, (text, text), ((text, Link(text, "#a")),)),
        Chart(text, Markup("<svg></svg>"), text),
    )
    return Document(text, text, blocks, text)


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
        linked = Table("", ("page",), ((Link(text, "b.html"),),))
        made = hostile(text)
        return Page(parser.render(document.markdown(replace(made, blocks=(*made.blocks, linked)))))

    usual, shown = page("usual"), page(text)
    assert shown.tags == usual.tags
    assert shown.words == [words.replace("usual", text) for words in usual.words]


def test_a_table_that_is_too_wide_goes_on_below_with_its_names() -> None:
    header = ("suite", *(f"machine {index}" for index in range(9)))
    wide = Document("", "", (Table("", header, (("llm", *(f"{index}.00 tok/s" for index in range(9))),)),))
    text = document.console(wide, 60)
    assert text.count("llm") == text.count("suite") > 1
    assert all(f"{index}.00 tok/s" in text for index in range(9))
    assert document.console(replace(wide, blocks=())) == "\n"
