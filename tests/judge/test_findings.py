"""The declared codes of all rules: each can be written in full."""

from __future__ import annotations

from string import Formatter

import pytest

from mixmark.harness.contracts.schema import FindingValue
from mixmark.harness.judge.findings import CODES, FORMATS, found, remedy, words, words_of_all

OF_FORMAT: dict[str, FindingValue] = {
    "share": (1, 2),
    "hint": "a hint",
    "phase": "mixed.1",
    "exempt": "no torch",
    "": "a text",
}
"""A sample of a value that is no number, by the format of its field."""


def fields(code: str) -> dict[str, str]:
    """The format of each field of a code, by its name."""
    texts = CODES[code].words + CODES[code].remedy
    return {name: spec or "" for _, name, spec, _ in Formatter().parse(texts) if name}


def sample(spec: str) -> FindingValue:
    return OF_FORMAT.get(
        spec, 1.5 if spec.endswith(("f", "g")) or spec in ("percent", "times", "from", "to", "of") else 2
    )


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_is_written_in_full(code: str) -> None:
    finding = found(code, **{name: sample(spec) for name, spec in fields(code).items()})
    text = words(finding) + remedy(finding)
    assert words(finding) and not {"{", "}", "\n"} & set(text)
    for name, spec in fields(code).items():
        if spec in OF_FORMAT:
            assert any(str(part) in text for part in (OF_FORMAT[spec], "1 of 2")), name


def test_numbers_that_differ_are_written_as_a_range() -> None:
    drifts = [found("canary_stable", fastest_ms=1.0, slowest_ms=ms, drift=ms - 1, limit=0.02) for ms in (1.5, 8.2)]
    assert words_of_all(drifts) == (
        "a fixed loop took 1.00 ms at its fastest and 1.50 to 8.20 ms at its slowest, 1.50 to 8.20 times as long "
        "(limit 1.02 times)"
    )
    for times, said in (((1, 3), "1 to 3 times"), ((2, 2), "2 times")):
        several = [found("run_at_once", times=each) for each in times]
        assert words_of_all(several) == f"it was resumed {said} after its first solo window"


def test_the_moments_of_several_findings_are_left_out() -> None:
    values: dict[str, FindingValue] = {
        "figure": "throughput",
        "window_s": 10.0,
        "rate_pct": 124.0,
        "moved_pct": 1.9,
        "other": "lower",
    }
    early, late = (found("steady", begin_s=begin, end_s=begin + 0.6, **values) for begin in (0.0, 6.0))
    of_the_rest = "ran at 124 % of the rate of the rest, without which the throughput would be 1.9 % lower"
    assert words(early) == words_of_all([early])
    assert words(early) == f"not steady: a stretch from 0.0 s to 0.6 s of 10.0 s {of_the_rest}"
    assert words_of_all([early, late]) == f"not steady: a stretch {of_the_rest}"


def test_every_format_is_used() -> None:
    used = {spec.split(" ")[0] for code in CODES for spec in fields(code).values()}
    assert set(FORMATS) <= used
