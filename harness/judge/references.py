"""The scores of other machines that a report compares a machine with."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache

from pydantic import Field, TypeAdapter

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Boundary, Fact
from mixmark.harness.judge.diagnosis import Diagnosis
from mixmark.harness.judge.score import Grade, Score
from mixmark.harness.judge.solo import Solo, best, by_suite


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
    entry: str
    """The path of the published entry."""
    mix: str
    mixes_per_hour: Estimate
    """TX."""
    mixes_per_kwh: Estimate | None = None
    """MX. None if it is not measured."""
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
    """The published scores that ship with Mixmark."""
    text = pkgutil.get_data(__package__, "references.json")
    assert text is not None  # its loader reads files
    return TypeAdapter(tuple[ReferenceScore, ...]).validate_json(text)


def rates(solos: Iterable[Solo]) -> dict[str, ReferenceRate]:
    """The rate of the fastest solo measurement of each suite."""
    return {
        suite: ReferenceRate(version=solo.route.suite_version, units_per_s=solo.speed)
        for suite, solo in best(solos, by_suite).items()
    }


def retained(score: Score | None, diagnoses: Mapping[str, Diagnosis]) -> tuple[float, ...]:
    """Measured over planned mixes per hour of each mixed run that the score counts. Empty if there is no score.

    diagnoses: of each mixed run, by its phase.
    """
    if score is None or score.mixes_per_hour is None:
        return ()
    planned = ((run, diagnoses[run.phase].planned_per_hour) for run in score.counted())
    return tuple(run.mixes_per_hour.estimate / per_hour for run, per_hour in planned if per_hour)
