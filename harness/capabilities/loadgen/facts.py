"""What a run keeps of LoadGen: the test of each phase, and what LoadGen reported of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mixmark.harness.contracts.schema import Fact
from mixmark.harness.contracts.schema.device import LARGEST
from mixmark.harness.plugins.experiments import Facts

NAME = "loadgen"
Scenario = Literal["SingleStream", "Offline", "Server"]
SCENARIOS: tuple[Scenario, ...] = ("SingleStream", "Offline", "Server")


class LoadGenTest(Fact):
    """A test of LoadGen. A sample of its library is one feed, whose output's digest is the response."""

    suite: str = Field(max_length=200)
    """The suite that is measured."""
    scenario: Scenario
    """LoadGen's scenario."""
    queries: int = Field(ge=1, le=LARGEST)
    """The samples: as many as the library has, so each is issued once."""
    per_s: float = Field(gt=0)
    """The feeds per second of the route alone. The server's queries arrive at `LOAD` of it."""


class Reported(Fact):
    """The figures of LoadGen's log."""

    phase: str = Field(max_length=200)
    """The name of the phase."""
    version: str = Field(max_length=100)
    """LoadGen's version."""
    valid: bool
    """Whether LoadGen calls the test valid by its own rules."""
    percentiles_ns: dict[str, int]
    """The latencies by their percentiles: 50, 90, 99."""
    samples_per_s: float | None = None
    """As LoadGen reports it for the scenario. SingleStream: with LoadGen's overhead."""


FACTS = Facts(of_phase=LoadGenTest, of_found=Reported)
