"""The scores of other machines that a report holds a machine against."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import Field, TypeAdapter

from mixmark.harness.contracts.schema import Boundary, Fact
from mixmark.harness.judge.grade import Grade

if TYPE_CHECKING:
    from mixmark.harness.judge.judgement import Judgement


class ReferenceScore(Fact):
    """A machine and its score."""

    name: str = Field(min_length=1)
    """What a reader calls the machine."""
    mix: str
    mixes_per_s: float = Field(gt=0)
    """TX."""
    mixes_per_kj: float | None = Field(default=None, gt=0)
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
    """The published entries that ship with Mixmark. `python -m mixmark.submissions.references` writes the file from
    `submissions/entries`."""
    text = files("mixmark.harness.judge").joinpath("references.json").read_text(encoding="utf-8")
    return TypeAdapter(tuple[ReferenceScore, ...]).validate_json(text)


def of(judgement: Judgement, name: str) -> ReferenceScore | None:
    """The score of a result, under a name. None: it has no score."""
    found = judgement.score
    if found is None or found.mixes_per_s is None:
        return None
    return ReferenceScore(
        name=name,
        mix=found.mix.name,
        mixes_per_s=found.mixes_per_s.estimate,
        mixes_per_kj=found.mixes_per_kj.estimate if found.mixes_per_kj else None,
        boundary=found.runs[0].total.boundary if found.mixes_per_kj else None,
        weight_class=found.weight_class,
        grade=found.grade,
        created_utc=judgement.result.created_utc,
    )
