"""The page as a reader sees it, in a real browser: one browser, and every sort of result in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import judge
from mixmark.reporters import report
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.figures import rooms
from tests.golden.sample import closed_loop, record, result, sample
from tests.reporters.browser import CHROMIUM, Tab, tab
from tests.reporters.hostile import hostile
from tests.reporters.test_console import OTHER

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")]

AXE = Path(__file__).parent / "axe" / "axe.min.js"
"""axe-core 4.14.1, the rules of accessibility of Deque Systems (MPL-2.0), as npm has it."""
WINDOWS = ((390, 844), (768, 1024), (1440, 900))
SCHEMES = ("light", "dark")
TOO_WIDE = """
[...document.querySelectorAll('body *')]
  .filter(each => !each.closest('.wide, details, svg') && each.getBoundingClientRect().right > innerWidth + 0.5)
  .map(each => each.outerHTML.slice(0, 120))
"""
FAULTS = """
axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']}).then(found => found.violations.map(
  each => each.id + ': ' + each.nodes.map(node => node.html.slice(0, 200)).join(' ')))
"""


def unscored() -> Result:
    whole = one_run(WATTS_AT_THE_WALL)
    return whole.model_copy(update={"records": tuple(each for each in whole.records if each.route.suite != "resnet50")})


def interrupted() -> Result:
    whole = one_run(WATTS_AT_THE_WALL)
    solo = tuple(each for each in whole.records if each.scenario != "mixed")
    return whole.model_copy(update={"records": solo, "phases": (), "meterings": (), "finished": False})


RESULTS: dict[str, Callable[[], Result | str]] = {
    "metered": lambda: one_run(WATTS_AT_THE_WALL),
    "several runs": lambda: one_run(None, runs=2),
    "failures": sample,
    "one suite": lambda: result(record("a", "llm", "token", closed_loop([[1000]] * 8))),
    "no score": unscored,
    "interrupted": interrupted,
    "hostile": hostile,
}
for module in rooms():
    RESULTS |= getattr(module, "PAGES", {})
"""A result whose page is looked at, or a page."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(params=RESULTS)
def page(request: pytest.FixtureRequest, browser: Tab, tmp_path: Path, published: None) -> Iterator[Tab]:
    written = tmp_path / "report.html"
    made = RESULTS[request.param]()
    written.write_text(made if isinstance(made, str) else report.html(judge(made)), encoding="utf-8")
    browser.look(*WINDOWS[0])
    browser.open(written)
    yield browser


def test_it_fits_every_window_and_everybody_can_read_it(page: Tab) -> None:
    assert page.run("document.title").startswith("Mixmark: "), "no script of a hostile result changed it"
    fits_every_window(page)


def fits_every_window(page: Tab, hidden: str = "details") -> None:
    """hidden: selects the elements that may be wider than the window."""
    page.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    page("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))  # also where the page allows no script
    for width_px, height_px in WINDOWS:
        for scheme in SCHEMES:
            page.look(width_px, height_px, scheme)
            assert page.run("innerWidth") == width_px
            assert page.run("document.scrollingElement.scrollWidth") <= width_px
            assert page.run(TOO_WIDE.replace("details", hidden)) == []
            assert page.run(FAULTS) == [], f"{width_px} px, {scheme}"


def test_the_first_tables_are_not_cut_and_no_option_is_broken(browser: Tab, tmp_path: Path) -> None:
    """The best routes, where it stands, and an option in a sentence, in the windows of a telephone and of a laptop."""
    metered = judge(one_run(WATTS_AT_THE_WALL), (OTHER,))
    (tmp_path / "report.html").write_text(report.html(metered), encoding="utf-8")
    browser.open(tmp_path / "report.html")
    tables = "[...document.querySelectorAll('main > .wide:not(nav ~ *)')]"
    options = "[...document.querySelectorAll('.verdict .option')]"
    for width_px in (390, 1280, *range(300, 400, 10)):
        browser.look(width_px, 900)
        if width_px in (390, 1280):
            assert browser.run(f"{tables}.map(each => each.scrollWidth - each.clientWidth)") == [0, 0]
        assert browser.run(f"{options}.map(each => each.getClientRects().length)") == [1]


def test_paper_is_wide_enough_for_every_column(page: Tab) -> None:
    page("Emulation.setEmulatedMedia", media="print")
    page("Emulation.setDeviceMetricsOverride", width=688, height=1000, deviceScaleFactor=1, mobile=False)  # A4, 14 mm
    assert page.run("document.scrollingElement.scrollWidth") <= 688
    paper = page.paper()
    sheets = 4 if "side by side" in page.run("document.title") else 2  # summary and details
    assert paper.startswith(b"%PDF") and len(re.findall(rb"/Type /Page\b", paper)) <= sheets


@pytest.mark.parametrize("window", [(390, 844), (1280, 800)], ids=["telephone", "laptop"])
def test_the_first_screen_answers_the_four_questions(window: tuple[int, int], browser: Tab, tmp_path: Path) -> None:
    """May I rely on it, what did it get, is that good, what next."""
    scored = judge(one_run(WATTS_AT_THE_WALL))
    judged = replace(scored, hardware_limit_per_hour=Estimate(1000.0), next="mixmark run --wait-idle 60")
    (tmp_path / "report.html").write_text(report.html(judged), encoding="utf-8")
    browser.look(*window)
    browser.open(tmp_path / "report.html")
    for asked in (".verdict", ".strong", ".sentence", ".facts"):
        assert browser.run(f"document.querySelector('{asked}').getBoundingClientRect().bottom") <= window[1], asked
    good_and_next = browser.run("document.querySelector('.facts').innerText").split("\n")[1::2]
    assert good_and_next == ["85 % of what this hardware allows", "mixmark run --wait-idle 60"]


def test_the_checks_find_faults(browser: Tab, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.html"
    faulty.write_text("<!doctype html><title>x</title><img src='data:,'><p style='color: #ccc; width: 2000px'>pale</p>")
    browser.open(faulty)
    browser.run(AXE.read_text(encoding="utf-8"))
    found = " ".join(browser.run(FAULTS))
    assert browser.run(TOO_WIDE) and browser.run("document.scrollingElement.scrollWidth") >= 2000
    assert "image-alt" in found and "color-contrast" in found and "html-has-lang" in found
