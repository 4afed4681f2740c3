from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Conditions, LatencyLimits, Limits, Phase, Result, Share, Task
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.evidence import gather
from mixmark.reporters import charts, document, figures, measurements, report
from mixmark.reporters.document import Bar, Document, Table
from tests.golden.sample import GPU, MS, closed_loop, record, result, sample
from tests.reporters.hostile import LONG, hostile
from tests.reporters.parsed import Page


def test_the_page_has_one_hash_of_the_code_that_ran() -> None:
    ran = result().model_copy(update={"code": {"mixmark/b.py": "1" * 64, "mixmark/a.py": "0" * 64}})
    sums = f"{'0' * 64}  mixmark/a.py\n{'1' * 64}  mixmark/b.py\n"
    assert f"2 files of Mixmark, SHA-256 {hashlib.sha256(sums.encode()).hexdigest()}" in report.html(judge(ran))


@pytest.mark.parametrize("whole", [sample(), hostile(), result(finished=False)], ids=["sample", "hostile", "empty"])
def test_the_page_asks_nobody_for_anything(whole: Result) -> None:
    text = report.html(judge(whole))
    page = Page(text)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert all(target.startswith(("#", "data:,")) for target in page.values("href"))
    assert not page.values("src") and not page.values("srcset") and not page.values("action")
    assert {"script", "img", "iframe", "object"}.isdisjoint(page.tags)
    assert "default-src 'none'" in "".join(page.values("content"))


def test_the_page_says_what_comes_next() -> None:
    assessment = judge(sample())
    assert "next" not in Page(report.html(assessment)).words
    words = Page(report.html(replace(assessment, next="mixmark run <x>"))).words
    assert words[words.index("next") + 1] == "mixmark run <x>"


def test_a_bar_without_a_margin_has_no_second_part() -> None:
    rows = [(Bar((0.5, 0.6), "own"),), (Bar((0.5, 0.5), "bound"),)]
    page = document.html(Document("", "", [Table("", ("bar",), rows)], ""))
    drawn = re.findall('class="scale ([a-z]+)" aria-hidden="true">(.*?)</span>', page)
    assert [(style, parts.count("<i ")) for style, parts in drawn] == [("own", 2), ("bound", 1)]


def test_a_name_without_end_does_not_fill_the_page() -> None:
    page = report.html(judge(hostile(LONG)))
    assert len(max(Page(page).words, key=len)) <= 20 * figures.LONGEST, "but for the style sheet and lists of facts"
    [title] = re.findall("<h1>(.*)</h1>", page)
    assert "…" in title and len(Page(title).words[0]) <= 2 * figures.LONGEST_NAME + 3


def test_every_id_is_unique_and_every_link_leads_somewhere() -> None:
    page = Page(report.html(judge(sample())))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    named = {word for value in page.values("aria-labelledby") for word in value.split()}
    assert named | {target[1:] for target in page.values("href") if target.startswith("#")} <= set(ids)


def test_charts_have_titles_and_descriptions() -> None:
    text = report.html(judge(sample()))
    page = Page(text)
    images = page.values("role").count("img")
    assert images == page.tags["desc"] == page.tags["title"] - 1 == page.tags["figure"]
    strips = page.values("class").count("strip")
    assert page.tags["svg"] == images + strips, "and a strip hides behind the words beside it"
    assert text.count('<svg class="strip" aria-hidden="true"') == strips
    assert "70 feeds from 586 ms to 594 ms; p50 586 ms; p90 589 ms" not in text, "an LLM shows its tokens"
    assert "700 feeds from 380 ms to 381 ms; p50 380 ms; p90 381 ms; p99 381 ms." in text
    assert all(scope in ("col", "row", "rowgroup") for scope in page.values("scope"))
    assert len(page.values("scope")) == page.tags["th"]


def test_an_llm_shows_its_first_and_its_later_tokens() -> None:
    words = "\n".join(Page(report.html(judge(sample()))).words)
    for caption in ("Time to first token (TTFT)", "Time per token (TPOT)", "Between tokens"):
        assert caption in words


def test_what_has_no_figure_is_listed_with_its_reason() -> None:
    route = record("c", "llm", "token", closed_loop([[5]]), device=GPU).route
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=0, min_feeds=1)
    share = Share(key="c", route=route, scenario="single-stream", limits=limits)
    planned = Phase(name="c", purpose="solo", tasks=(Task(device="cpu:0", shares=(share,)),))
    missing = list(report._missing(sample().model_copy(update={"phases": (planned,)})))
    assert [state for state, _, _ in missing] == ["failed", "refused", "not reached", "absent"]
    assert missing[2][1] == "llm on gpu:5d1c by torch in fp32, single-stream"
    assert "61.2 GiB" in missing[0][2] and "choose --tier smoke" in missing[0][2]
    assert "openvino" in "".join(missing[3])
    assert "unfinished" in report.html(judge(result(finished=False)))


def test_a_usual_page_is_small_for_any_number_of_feeds() -> None:
    done = closed_loop([[100_000 + feed % 977] for feed in range(200_000)])
    assert len(report.html(judge(result(record("a", "llm", "token", done))))) < 50_000
    assert len(report.html(judge(sample()))) < 100 * 1024


@pytest.mark.parametrize(
    "steps", [[[5]], [[0]], [[0]] * 30, [[7]] * 30, [[1]] * 29 + [[10**9]], [[1, 10**13]] * 3], ids=str
)
def test_the_oddest_times_can_be_drawn(steps: list[list[int]]) -> None:
    text = report.html(judge(result(record("a", "llm", "token", closed_loop(steps)))))
    assert not re.search(r"\b(nan|inf)\b", text[text.index("<main>") :])


def test_a_window_with_a_warm_up_in_it_is_not_called_steady() -> None:
    noise = np.random.Generator(np.random.Philox(7)).integers(0, MS, 200)
    warming = closed_loop([[(20 if feed < 20 else 10) * MS + int(each)] for feed, each in enumerate(noise)])
    slowing = closed_loop([[10 * MS + feed * MS // 20 + int(each)] for feed, each in enumerate(noise)])
    for done in (warming, slowing):
        page = report.html(judge(result(record("a", "resnet50", "image", done))))
        assert "not steady" in page and "; another level from" in page and ">another level</text>" in page
    still = report.html(judge(result(record("a", "resnet50", "image", closed_loop([[10 * MS]] * 200)))))
    assert "another level" not in still and "not steady" not in still
    few = closed_loop([[500 * MS, *[10 * MS] * 127]] * 3)
    short = report.html(judge(result(record("a", "llm", "token", few))))
    assert "another level" not in short and "not steady" not in short, "three blocks are too few"


def test_a_server_says_what_arrived_and_what_it_had_to_keep() -> None:
    limits = LatencyLimits(percentile=0.9, first_ns=2_000 * MS, source="somebody's rules")
    served = record("a", "llm", "token", closed_loop([[5 * MS] * 3] * 70))
    served = served.model_copy(update={"scenario": "server", "rate_per_s": 4.0, "latency_limits": limits})
    words = Page(report.html(judge(result(served)))).words
    assert {"Response time", "4.00 feeds/s", "p90 of first 2.00 s", "somebody's rules"} <= set(words)


def test_the_state_of_the_machine_is_shown() -> None:
    measured = record("a", "llm", "token", closed_loop([[500 * MS]] * 4))
    block = Conditions(
        begin_ns=2_000,
        end_ns=1_000 * MS,
        cpus=2,
        busy_ns=1_500 * MS,
        own_ns=1_000 * MS,
        plugins_ns=20 * MS,
        stolen_ns=20 * MS,
    )
    [seen] = gather(result(measured.model_copy(update={"conditions": (block,)}))).measured
    facts = dict(measurements._facts(seen, "tok"))
    assert facts["CPUs kept busy by others"] == "0.50"
    assert facts["taken by the hypervisor"] == "1.0 % of the machine's CPU time, 1.0 % in the worst block"
    assert facts["of these by meters and other plugins"] == "0.02"
    assert "hottest CPU sensor" not in facts, "unknown is not 0"


def test_a_measurement_has_its_energy() -> None:
    page = report.html(judge(sample()))
    assert "365 W of the devices · idle 75.0 W before, 75.0 W after" in "".join(Page(page).words)
    assert "Energy of the devices (without memory, mainboard" in page


@pytest.mark.parametrize(
    ("low", "high", "about", "labels"),
    [
        (0, 4.4, 4, ["0", "2", "4"]),
        (0, 1, 5, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 12_000, 4, ["0", "5,000", "10,000"]),
        (380.03, 380.66, 6, ["380.2", "380.4", "380.6"]),
        (0, 3e-4, 3, ["0.0000", "0.0001", "0.0002", "0.0003"]),
    ],
)
def test_ticks_are_round(low: float, high: float, about: int, labels: list[str]) -> None:
    assert [label for _, label in charts.steps(low, high, about)] == labels


def test_far_apart_times_get_a_logarithmic_axis() -> None:
    values = np.array([MS] * 30 + [800 * MS])
    assert "logarithmic" in charts.distribution("a", values, (), "Service time")
    assert charts.decades(0.9, 30) == [1, 2, 5, 10, 20]
    assert charts.decades(0.9, 30_000) == [1, 10, 100, 1000, 10_000]
    axis = charts.PixelAxis(1, 100, 0, 200, logarithmic=True)
    assert axis(10) == pytest.approx(100) and math.isclose(axis(100), 200)


def test_labels_of_percentiles_that_lie_together_do_not_cover_each_other() -> None:
    labels = [(400.0, "p50 1.00 ms"), (402.0, "p90 1.01 ms"), (404.0, "p99 1.02 ms"), (100.0, "p0")]
    assert charts._rows(labels[:3], taken_px=60) == [0, 1, 2]
    assert charts._rows([labels[3], labels[0]], taken_px=60) == [0, 0]
    assert charts._rows([labels[3]], taken_px=120) == [1]


def luminance(colour: str) -> float:
    """The relative luminance of a colour such as #1b55b8, by WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return sum(
        weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_text_and_marks_has_a_contrast_of_4_5_on_every_ground(scheme: int) -> None:
    css = files("mixmark.reporters").joinpath("blocks.css").read_text("utf-8")
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", css.split("prefers-color-scheme: dark")[scheme]))
    for ground in ("paper", "fill", "wash", "band"):
        for mark in ("ink", "quiet", "accent", "good", "bad", "warn", "behind"):
            dark, light = sorted((luminance(colours[ground]), luminance(colours[mark])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{mark} on {ground}"
