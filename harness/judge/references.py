"""The scores of other machines that a report compares a machine with."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from pydantic import Field, TypeAdapter

from mixmark.harness.contracts.schema import Boundary, Fact, Result
from mixmark.harness.judge.grade import Grade
from mixmark.harness.judge.score import Score


class ReferenceScore(Fact):
    """A machine and its score."""

    name: str = Field(min_length=1)
    """The name of the machine for a reader."""
    mix: str
    mixes_per_hour: float = Field(gt=0)
    """TX."""
    mixes_per_kwh: float | None = Field(default=None, gt=0)
    """MX. None: not measured."""
    boundary: Boundary | None = None
    """The energy boundary of MX."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight."""
    grade: Grade
    created_utc: str
    """When it was measured."""


@cache
def published() -> tuple[ReferenceScore, ...]:
    """The published entries that ship with Mixmark.

    `python -m mixmark.submissions.references` writes the file from `submissions/entries`.
    """
    text = files("mixmark.harness.judge").joinpath("references.json").read_text(encoding="utf-8")
    return TypeAdapter(tuple[ReferenceScore, ...]).validate_json(text)


def reference(result: Result, score: Score | None, name: str) -> ReferenceScore | None:
    """The score of a result, under a name. None: it has no score."""
    if score is None or score.mixes_per_hour is None:
        return None
    return ReferenceScore(
        name=name,
        mix=score.mix.name,
        mixes_per_hour=score.mixes_per_hour.estimate,
        mixes_per_kwh=score.mixes_per_kwh.estimate if score.mixes_per_kwh else None,
        boundary=score.boundary,
        weight_class=score.weight_class,
        grade=score.grade,
        created_utc=result.created_utc,
    )
