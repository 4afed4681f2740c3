"""The board as a reader sees and uses it, in a real browser: one browser for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mixmark.harness.contracts.figures import Estimate
from mixmark.submissions.board.site import build
from mixmark.submissions.entry import Entry
from tests.golden.sample import but
from tests.reporters.browser import CHROMIUM, Tab, tab
from tests.reporters.test_browser import fits_every_window
from tests.submissions.board.made import SITE, hostile
from tests.submissions.entries import made

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")]

SHOWN = "[...document.querySelectorAll('#ranked tbody tr:not([hidden])')]"
NAMES = f"{SHOWN}.map(row => row.querySelector('.s a').textContent)"
COUNT = "document.querySelector('#count').textContent"


def alike(number: int, grade: str = "official") -> Entry:
    """An entry on the one board that these tests look at."""
    entry = made(number)
    tx = entry.mixes_per_hour.estimate
    figures = {
        "mixes_per_hour": Estimate(tx, tx * 0.9, tx * 1.1),
        "mixes_per_kwh": Estimate(tx * 3, tx * 2.7, tx * 3.3),
        "watts": 333.0,
    }
    board = {"mix": "edge-1", "weight_class": 16, "division": "closed", "boundary": "node"}
    return but(entry, **board, **figures, grade=grade, ranked=grade != "indicative")


ENTRIES = [alike(number, "indicative" if number % 6 == 5 else "official") for number in range(150)]
WHY = {**ENTRIES[0].reasons, "verdict": ("other programs used 7 % of the machine",)}
FORMER = but(ENTRIES[0], replaced=True, verdict="disturbed", reasons=WHY, results=("a" * 64,))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("profile")) as opened:
        opened("Page.setBypassCSP", enabled=False)
        yield opened


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("board") / "site"
    build(SITE, [*ENTRIES, FORMER], out)
    return out


@pytest.fixture
def page(browser: Tab, site: Path) -> Tab:
    browser.look(1440, 900)
    browser.open(site / "index.html")
    assert browser.run("document.documentElement.dataset.ready") == "yes", "the script ran, with its policy in force"
    return browser


def test_everybody_can_read_the_board(page: Tab) -> None:
    fits_every_window(page, ".skip, thead")


@pytest.mark.parametrize(
    "name", ["reading.html", f"entries/{ENTRIES[0].path}/index.html", f"entries/{FORMER.permanent}/index.html"]
)
def test_everybody_can_read_the_other_pages(browser: Tab, site: Path, name: str) -> None:
    browser.open(site / name)
    fits_every_window(browser, ".skip, thead")
    browser.look(390, 844)
    wide = "[...document.querySelectorAll('main .wide')].filter(each => each.scrollWidth > each.clientWidth).length"
    assert browser.run(wide) == 0, "no table is cut on a telephone"


def typed(page: Tab, **fields: str) -> None:
    """Types into the fields of the filter, and waits until the table is written."""
    values = "".join(f"tools.elements.{name}.value = '{value}';" for name, value in fields.items())
    event = "tools.elements.q.dispatchEvent(new Event('input', {bubbles: true}));"
    page.run(
        f"var tools = document.querySelector('#tools'); {values} {event} new Promise(done => setTimeout(done, 50))"
    )


@pytest.mark.parametrize("width_px", [390, 770, 965, 1090, 1250, 1440])
def test_a_name_has_room_at_any_width(page: Tab, width_px: int) -> None:
    page.look(width_px, 900)
    narrowest = "Math.min(...[...document.querySelectorAll('.board tbody .s')].map(each => each.clientWidth))"
    assert page.run(narrowest) >= 150


def test_nothing_that_an_entry_says_is_executed(browser: Tab, tmp_path: Path) -> None:
    build(SITE, [hostile(number) for number in range(8)], tmp_path / "site")
    pages = [*(tmp_path / "site" / "boards").iterdir(), *(tmp_path / "site" / "entries").rglob("index.html")]
    assert len(pages) > 10
    browser.look(390, 844)
    for each in pages:
        browser.open(each)
        if each.parent.name == "boards":
            assert browser.run("document.documentElement.dataset.ready") == "yes", "the script could read its rows"
        assert browser.run("document.title") != "owned", each
        assert browser.run("document.querySelectorAll('script').length") <= 1
        assert browser.run("document.querySelectorAll('img, main script').length") == 0
        assert browser.run("document.scrollingElement.scrollWidth") <= 390, each


def test_a_reader_sorts_and_filters(page: Tab) -> None:
    best = page.run(NAMES)
    assert len(best) == 125
    page.run("document.querySelector('th.s button').click()")
    names = page.run(NAMES)
    assert names == sorted(names, key=str.lower) and names != best
    assert page.run("document.querySelector('[aria-sort]').className") == "s"
    for cell, falls in (("u2", True), ("w", False)):
        page.run(f"document.querySelector('thead .{cell} button').click()")
        cells = page.run(f"[...document.querySelectorAll('#ranked tbody .{cell}')].map(each => each.dataset.key)")
        values = [float(each) for each in cells]
        assert values == sorted(values, reverse=falls)
    page.run("document.querySelector('th.e button').click()")
    prices = page.run("[...document.querySelectorAll('#ranked tbody .e')].map(each => each.dataset.key)")
    assert prices == [*sorted(filter(None, prices)), *[""] * prices.count("")] and "" in prices
    page.run("document.querySelector('th.r button').click()")
    assert page.run(NAMES) == best
    typed(page, q="TOPAZ acme")
    found = page.run(NAMES)
    assert found and all("Acme Topaz" in name for name in found)
    assert f"{len(found)} of 125 systems" in page.run(COUNT)
    ranks = page.run(f"{SHOWN}.map(row => parseInt(row.cells[0].textContent))")
    assert ranks == sorted(ranks) and ranks[-1] > len(ranks), "a filter changes no rank"


def test_the_address_holds_the_filter_and_the_order(page: Tab, site: Path) -> None:
    every = page.run(NAMES)
    assert page.run("location.hash") == ""
    page.run("document.querySelector('#tools').elements.fresh.checked = true")
    typed(page, q="topaz")
    page.run("document.querySelector('th.d button').click()")
    address = page.run("location.hash")
    assert address == "#q=topaz&fresh=yes&sort=-10"
    found = page.run(NAMES)
    assert 0 < len(found) < 100

    page.open(site / "reading.html")
    page.open(site / "index.html", address)
    assert page.run(NAMES) == found
    assert page.run("document.querySelector('[aria-sort]').className") == "d"

    page.run(
        "new Promise(done => { addEventListener('hashchange', done, {once: true});"
        "location.hash = '#organisation=Nobody&sort=__proto__&price=cheap' })"
    )
    assert page.run(NAMES) == every, "nothing of it means anything"
    assert page.run("location.hash") == ""
