"""What a run keeps of LoadGen, and its figures beside Mixmark's on the same feeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from mixmark.harness.contracts.figures import figure
from mixmark.harness.contracts.schema import Fact, Record
from mixmark.harness.contracts.schema.device import LARGEST
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.statistics.intervals import percentile
from mixmark.harness.plugins.experiments import Facts

NAME = "loadgen"
Scenario = Literal["SingleStream", "Offline", "Server"]
SCENARIOS: tuple[Scenario, ...] = ("SingleStream", "Offline", "Server")
PERCENTILES = (50, 90, 99)
KEYS = {f"p{each}": f"result_{each}.00_percentile_latency_ns" for each in PERCENTILES}
KEYS |= {"rate": "result_samples_per_second"}
"""The keys of the figures in LoadGen's log."""
PLACE = "timed by LoadGen inside of the worker, whose process is the vendor's: self-reported, and not an MLPerf result"


class LoadGenTest(Fact):
    """A test of LoadGen. A sample of its library is one feed, whose output's digest is the response."""

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
    figures: Mapping[str, float]
    """The latencies p50, p90 and p99 in ns, and the rate in samples per second."""


FACTS = Facts(of_phase=LoadGenTest, of_found=Reported)


@dataclass(frozen=True)
class Beside:
    """One figure of a test by two clocks: a latency in ns, or a rate in feeds per second."""

    suite: str
    """The suite that was measured."""
    device: str
    """The id of the device."""
    scenario: Scenario
    """LoadGen's scenario."""
    name: str
    """p50, p90 or p99 of the latency; in Offline the rate."""
    loadgen: float | None
    """By LoadGen. None if the test failed."""
    mixmark: float | None
    """By Mixmark in the same process: from when LoadGen issued a query to the last yield of its feed."""
    valid: bool | None
    """Whether LoadGen calls the test valid. None if it has no figure."""
    reason: str
    """Why the test failed. Empty if it did not."""
    alone_per_s: float
    """The feeds per second of the route alone, with feeds that the worker's own loop makes."""

    @property
    @figure
    def difference(self) -> float | None:
        """LoadGen's figure over Mixmark's, minus 1."""
        return self.loadgen / self.mixmark - 1 if self.loadgen and self.mixmark else None


def timed(judged: Assessment) -> tuple[Beside, ...] | None:
    """The figures of the tests of a run, in their order. None if there are none."""
    result = judged.result
    reported = [Reported.model_validate(each.facts) for each in result.found if each.experiment == NAME]
    by_phase = {each.phase: each for each in reported}
    tests = {phase.name: phase.told(LoadGenTest) for phase in result.phases if phase.experiment == NAME}
    records = {each.phase: each for each in result.records if each.phase in tests}
    return tuple(x for name, each in records.items() for x in _of(tests[name], each, by_phase.get(name))) or None


def _of(test: LoadGenTest, record: Record, reported: Reported | None) -> Iterator[Beside]:
    ours: dict[str, float | None] = {}
    if (done := record.completions) is not None:
        ended_ns = done.yielded_ns[done.ends - 1]
        ours = {f"p{each}": percentile(ended_ns - done.due_ns, each / 100) for each in PERCENTILES}
        ours["rate"] = len(done) * 1e9 / float(ended_ns.max() - done.due_ns.min())
    theirs, valid = (reported.figures, reported.valid) if reported else ({}, None)
    for name in ("rate",) if test.scenario == "Offline" else [f"p{each}" for each in PERCENTILES]:
        pair = theirs.get(name), ours.get(name)
        reason = record.error.message if record.error else ""
        yield Beside(record.route.suite, record.route.device, test.scenario, name, *pair, valid, reason, test.per_s)
