"""The scores of other machines that a report compares a machine with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from pydantic import Field, TypeAdapter

from mixmark.harness.contracts.schema import Boundary, Fact, Result
from mixmark.harness.judge.grade import Grade
from mixmark.harness.judge.mixed_run import Figure
from mixmark.harness.judge.rows import Row
from mixmark.harness.judge.score import Score


class ReferenceRate(Fact):
    """The fastest solo measurement of a suite on a machine."""

    version: str
    """The version of the suite. Rates of two versions do not compare."""
    units_per_s: float = Field(gt=0)
    """Units of the suite per second."""


class ReferenceScore(Fact):
    """A machine and its score."""

    name: str = Field(min_length=1)
    """The name of the machine for a reader."""
    entry: str | None = None
    """The path of the published entry. None: a result that the user named."""
    mix: str
    mixes_per_hour: float = Field(gt=0)
    """TX."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of TX. None: not known."""
    mixes_per_kwh: float | None = Field(default=None, gt=0)
    """MX. None: not measured."""
    boundary: Boundary | None = None
    """The energy boundary of MX."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight."""
    grade: Grade
    created_utc: str
    """When it was measured."""
    retained: tuple[float, ...] = ()
    """Measured over planned mixes per hour of each mixed run."""
    alone: dict[str, ReferenceRate] = Field(default_factory=dict)
    """The rate of each suite alone."""


@cache
def published() -> tuple[ReferenceScore, ...]:
    """The published entries that ship with Mixmark.

    `python -m mixmark.submissions.references` writes the file from `submissions/entries`.
    """
    text = files("mixmark.harness.judge").joinpath("references.json").read_text(encoding="utf-8")
    return TypeAdapter(tuple[ReferenceScore, ...]).validate_json(text)


def fastest(rows: Iterable[Row], result: Result) -> dict[str, ReferenceRate]:
    """The fastest solo measurement of each suite that counts. The rate of a server is its arrival rate, so it does not.

    rows: the solo measurements of the result.
    """
    versions = {suite.name: suite.version for suite in result.suites}
    found: dict[str, ReferenceRate] = {}
    for row in rows:
        suite, rate = row.record.route.suite, row.throughput_per_s
        if row.status != "ok" or not rate or row.record.scenario == "server" or suite not in versions:
            continue
        if suite not in found or rate > found[suite].units_per_s:
            found[suite] = ReferenceRate(version=versions[suite], units_per_s=rate)
    return found


def interval(figure: Figure) -> tuple[float, float] | None:
    """The 95 % interval of a figure. None: not known."""
    return None if figure.half_width is None or figure.low is None or figure.high is None else (figure.low, figure.high)


def reference(result: Result, score: Score | None, name: str, rows: Iterable[Row] = ()) -> ReferenceScore | None:
    """The score of a result, under a name. None: it has no score.

    rows: its solo measurements.
    """
    if score is None or score.mixes_per_hour is None:
        return None
    return ReferenceScore(
        name=name,
        mix=score.mix.name,
        mixes_per_hour=score.mixes_per_hour.estimate,
        interval=interval(score.mixes_per_hour),
        mixes_per_kwh=score.mixes_per_kwh.estimate if score.mixes_per_kwh else None,
        boundary=score.boundary,
        weight_class=score.weight_class,
        grade=score.grade,
        created_utc=result.created_utc,
        alone=fastest(rows, result),
    )
