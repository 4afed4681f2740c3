"""Numbers have one style: their digits, their prefixes, their plurals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mixmark.harness.contracts import numbers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "feed", "1 feed"),
        (0, "feed", "0 feeds"),
        (12345, "feed", "12,345 feeds"),
        (2, "entry", "2 entries"),
        (2, "day", "2 days"),
        (3, "process", "3 processes"),
        (2, "batch", "2 batches"),
        (1, "CPU", "1 CPU"),
        (2, "hardware thread", "2 hardware threads"),
    ],
)
def test_a_count_has_the_number_of_its_noun(count: int, noun: str, text: str) -> None:
    assert numbers.counted(count, noun) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.00001, "0.001 %"), (-0.0004, "-0.04 %"), (0.0006, "0.1 %"), (0.0, "0.0 %"), (1e-17, "0.0 %"), (3.5, "350 %")],
)
def test_a_fraction_that_is_not_zero_is_not_called_so(fraction: float, text: str) -> None:
    assert numbers.percent(fraction) == text


@pytest.mark.parametrize(("short", "unit"), [("tok", "tok/s"), ("samples", "samples/s"), ("audio s", "× real time")])
def test_seconds_that_are_done_in_a_second_are_multiples_of_real_time(short: str, unit: str) -> None:
    assert numbers.rate_unit(short) == unit


def test_no_file_makes_a_plural_of_its_own() -> None:
    by_hand = re.compile(
        r"""["']s["'] \*|["']["'] if [\w.()]+ == 1|["']s["'] if|f["']1 [a-z]+["'] if|["']1 [a-z]+["'] if"""
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for room in ("harness", "reporters", "submissions", "suites")
        for path in (ROOT / room).rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if by_hand.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(("size_bytes", "text"), [(0, "0 B"), (5, "5 B"), (16_266_232, "16.3 MB"), (2e9, "2 GB")])
def test_a_size_has_its_prefix(size_bytes: float, text: str) -> None:
    assert numbers.filesize(size_bytes) == text
