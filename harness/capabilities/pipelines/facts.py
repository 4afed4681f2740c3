"""What a run keeps of a pipeline, and what each of its phases does of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from mixmark.harness.contracts.schema import Fact, Mix, Result, Tier
from mixmark.harness.plugins.experiments import Facts

NAME = "pipeline"
"""The name of the experiment."""


class PipelineStage(Fact):
    """A stage of a pipeline: one feed of a suite."""

    suite: str = Field(min_length=1)
    samples: int = Field(default=1, gt=0, le=10**12, strict=True)
    """The samples in the feed."""
    device: str | None = None
    """The only device that may run the stage. None if any device may."""
    carried: bool = False
    """Whether its suite continues the output of the stage before. Otherwise its feed is only derived from the digest of
    that output."""


class Pipeline(Fact):
    """A chain of stages with a deadline. A stage begins once the output of the stage before has arrived."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)
    stages: tuple[PipelineStage, ...] = Field(min_length=2)
    deadline_ns: int = Field(gt=0)
    """The longest time from the begin of a pipeline to its last output. A late pipeline is no work."""
    apart: bool = Field(default=False, strict=True)
    """Whether each device runs one stage only. Otherwise a device may run several."""
    whole: str | None = None
    """The suite that does the work of all stages in one feed. It is run in the same minutes. None: there is none."""

    @model_validator(mode="after")
    def _each_suite_once(self) -> Pipeline:
        suites = self.suites
        if twice := [suite for suite in dict.fromkeys(suites) if suites.count(suite) > 1]:
            raise ValueError(f"pipeline {self.name} comes back to {', '.join(twice)}: a chain has each suite once")
        if self.whole in suites:
            raise ValueError(f"pipeline {self.name} has {self.whole} as a stage and as whole: whole is another suite")
        return self

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the stages, in their order."""
        return tuple(stage.suite for stage in self.stages)

    @property
    def samples(self) -> dict[str, int]:
        """The samples in a feed of each suite that is measured alone: of the stages, and of the whole."""
        return {stage.suite: stage.samples for stage in self.stages} | ({} if self.whole is None else {self.whole: 1})


class PipelineWork(Fact):
    """What a phase does of a pipeline.

    A pipeline is known by the due time of its feeds: all of them are due when it begins, and no two begin at the same
    time.
    """

    suites: tuple[str, ...] = Field(min_length=1)
    """The suites of the stages, in their order; or only the one that does all of their work."""
    units: tuple[Annotated[int, Field(gt=0)], ...]
    """The units in the feed of each stage."""
    in_flight: int = Field(ge=1)
    """The number of pipelines that are under way at once. The next one begins when one ends."""
    deadline_ns: int = Field(gt=0)
    """The longest time from the begin of a pipeline to its last output, as in `Pipeline`."""
    carried: tuple[str, ...] = ()
    """The suites whose feeds continue the output of the stage before."""
    device: str | None = None
    """The only device of the phase, with all of its slices. None if all devices take part."""

    @model_validator(mode="after")
    def _each_stage_has_units(self) -> PipelineWork:
        if len(set(self.suites)) != len(self.suites) or len(self.units) != len(self.suites):
            raise ValueError("each stage of a pipeline has a suite of its own and the units of its feed")
        return self

    @property
    def mix_units(self) -> dict[str, int]:
        """The units of each suite in one pipeline."""
        return dict(zip(self.suites, self.units, strict=True))

    def mix(self, tier: Tier) -> Mix:
        """The mix that the planner and the judge take a pipeline for: one feed of each stage."""
        return Mix(name="pipeline", tier=tier, units=dict(self.mix_units))


FACTS = Facts(of_run=Pipeline, of_phase=PipelineWork)


def asked(result: Result) -> Pipeline:
    """The pipeline of a run that was asked for one."""
    return Pipeline.model_validate(result.experiments[NAME])
