"""Results side by side for a spreadsheet: a line for each figure of each result, and one for each cell that was tested.

Unknown is empty. The line of a test has the figures of the runs that it compares only as their quotient.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO

from mixmark.harness.judge.compare.machines import Best, Machine, Quotient, Row, SideBySide
from mixmark.harness.judge.compare.solo import Comparison
from mixmark.harness.judge.score import Figure
from mixmark.reporters.csv import safe

COLUMNS = (
    "kind", "result", "folder", "processor", "created_utc", "result_verdict", "tier", "what", "scenario", "device",
    "adapter", "precision", "weight_class", "batch", "grade", "boundary", "value", "unit", "half_width", "runs",
    "relative", "relative_low", "relative_high", "delta", "verdict", "reason",
)  # fmt: skip


def report(found: SideBySide) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in _lines(found):
        writer.writerow({name: safe(value) if isinstance(value, str) else value for name, value in line.items()})
    return text.getvalue()


def _lines(found: SideBySide) -> Iterator[dict[str, object]]:
    machines = {one.label: _machine(one) for one in found.machines}
    for at, one in enumerate(found.machines):
        yield {**machines[one.label], **_score("TX", "mix/s", one, one.mixes_per_s, found.mixes_per_s[at])}
        yield {**machines[one.label], **_score("MX", "mix/kJ", one, one.mixes_per_kj, found.mixes_per_kj[at])}
    for row in found.rows:
        for best in row.known:
            yield {**machines[best.label], **_best(row, best)}
    for label, compared in found.verdicts.items():
        for each in compared:
            yield {**machines[label], **_test(each)}
    for missed in found.uncompared:
        yield {**machines[missed.label], "kind": "not compared", "what": missed.about, "reason": missed.reason}


def _machine(one: Machine) -> dict[str, object]:
    told = {"result": one.label, "folder": one.name, "processor": one.cpu, "created_utc": one.created_utc}
    return {**told, "result_verdict": one.verdict, "tier": one.tier}


def _score(name: str, unit: str, one: Machine, figure: Figure | None, relative: Quotient | None) -> dict[str, object]:
    told = {"kind": "score", "what": name, "scenario": "mixed", "weight_class": one.weight_class, "grade": one.grade}
    if figure is None:
        return {**told, "reason": one.no_score or one.no_efficiency}
    value = {"boundary": one.boundary, "value": figure.estimate, "unit": unit, "half_width": figure.half_width}
    return {**told, **value, **_relative(relative)}


def _best(row: Row, best: Best) -> dict[str, object]:
    return {
        "kind": "best route",
        "what": row.work.suite,
        "tier": row.work.tier,
        "scenario": row.work.scenario,
        "device": best.device,
        "adapter": best.adapter,
        "precision": best.precision,
        "weight_class": row.work.weight_class,
        "batch": best.batch,
        "value": best.units_per_s,
        "unit": f"{row.work.unit}/s",
        "half_width": best.half_width,
        "runs": best.runs,
        **_relative(best.relative),
    }


def _relative(relative: Quotient | None) -> dict[str, object]:
    if relative is None:
        return {}
    low, high = relative.low, relative.high
    return {"relative": relative.estimate, "relative_low": low, "relative_high": high, "reason": relative.reason}


def _test(each: Comparison) -> dict[str, object]:
    assert each.ratio is not None  # as all tested ones have
    record = each.b[0].record
    return {
        "kind": "test",
        "what": record.route.suite,
        "tier": record.route.tier,
        "scenario": record.scenario,
        "device": record.route.device,
        "adapter": record.route.adapter,
        "precision": record.route.precision,
        "weight_class": record.route.weight_class,
        "runs": len(each.b),
        "relative": each.ratio.estimate,
        "relative_low": each.ratio.low,
        "relative_high": each.ratio.high,
        "delta": each.delta,
        "verdict": each.verdict,
        "reason": each.reason,
    }
