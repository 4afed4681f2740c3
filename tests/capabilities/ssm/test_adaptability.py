"""Adaptability: the fraction of the roofline on ssm, divided by the fraction on llm, and its part of the reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from mixmark.harness.capabilities.ssm.adaptability import adaptability
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.solo import Solo
from mixmark.reporters import data, report
from tests.fakes.solos import solo
from tests.golden.sample import closed_loop, record, result


def kept(suite: str, fraction: float | None, **changed: Any) -> Solo:
    return solo(f"{suite} {changed}", suite=suite, roofline_fraction=fraction, **changed)


def test_adaptability_divides_the_fractions_of_the_fastest_routes_of_a_device() -> None:
    slower = kept("llm", 0.9, per_s=0.5, adapter="acme")
    void = kept("ssm", 0.9, per_s=9.0, adapter="acme", status="invalid")
    gpu = [kept(suite, fraction, device="gpu:0") for suite, fraction in (("llm", 0.5), ("ssm", 0.6))]
    found = adaptability([kept("llm", 0.8), slower, kept("ssm", 0.2, precision="int8"), void, *gpu])
    assert [(each.device, each.ratio) for each in found] == [("cpu:0", 0.25), ("gpu:0", pytest.approx(1.2))]
    assert (found[0].llm.precision, found[0].ssm.precision) == ("fp32", "int8")


@pytest.mark.parametrize(
    "rows",
    [
        [kept("llm", 0.8)],
        [kept("ssm", 0.8)],
        [kept("llm", 0.8), kept("ssm", None)],
        [kept("llm", None), kept("ssm", 0.8)],
        [kept("llm", 0.0), kept("ssm", 0.8)],
        [kept("llm", 0.8), kept("ssm", 0.8, device="gpu:0")],
        [kept("llm", 0.8), kept("ssm", 0.8, scenario="server")],
    ],
)
def test_without_both_fractions_there_is_no_adaptability(rows: list[Solo]) -> None:
    assert adaptability(rows) == ()


def measured(*solos: Solo) -> Assessment:
    return replace(judge(result(record("a", "llm", "token", closed_loop([[1000]])))), solos=solos)


def test_the_full_report_says_how_adaptable_each_device_is() -> None:
    alone = measured(kept("llm", 0.8))
    assert "Adaptability" not in report.full(alone) and json.loads(data.as_json(alone))["experiments"] == {}
    unknown = measured(kept("llm", 0.8), kept("ssm", None))
    assert "Unknown: no device has a fraction of its roofline on both llm and ssm." in report.full(unknown)
    both = measured(kept("llm", 0.8), kept("ssm", 0.2))
    assert "Unknown: no device" not in report.full(both)
    assert re.search(r"cpu:0 +80 % by torch fp32 +20 % by torch fp32 +0.250", report.full(both))
    [device] = json.loads(data.as_json(both))["experiments"]["adaptability"]["devices"]
    assert (device["device"], device["ratio"]) == ("cpu:0", 0.25)
