"""LoadGen's figures beside Mixmark's on the same feeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mixmark.harness.capabilities.loadgen.facts import NAME, LoadGenTest, Reported
from mixmark.harness.contracts.figures import figure
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.statistics.intervals import percentile


@dataclass(frozen=True)
class Beside:
    """One test by two clocks."""

    suite: str
    """The suite that was measured."""
    device: str
    """The id of the device."""
    scenario: str
    """LoadGen's scenario: SingleStream, Offline or Server."""
    reported: Reported | None
    """What LoadGen reported. None if the test was cut off or failed."""
    percentiles_ns: Mapping[str, int | None]
    """The latencies by Mixmark's clock, from when LoadGen issued a query to the arrival of the digest."""
    samples_per_s: float | None
    """Feeds over the time from the first query to the last output, by Mixmark's clock."""
    alone_per_s: float
    """The feeds per second of the route alone, with feeds that the worker's own loop makes."""

    @property
    @figure
    def difference(self) -> float | None:
        """LoadGen's figure over Mixmark's, minus 1: of the rate in Offline, else of the 90th percentile."""
        theirs, ours = (
            self.rates if self.scenario == "Offline" else (self.told.get("90"), self.percentiles_ns.get("90"))
        )
        return theirs / ours - 1 if theirs and ours else None

    @property
    def told(self) -> Mapping[str, int]:
        """The latencies by LoadGen."""
        return self.reported.percentiles_ns if self.reported else {}

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """The feeds per second by LoadGen and by Mixmark."""
        return self.reported.samples_per_s if self.reported else None, self.samples_per_s


def timed(judged: Assessment) -> tuple[Beside, ...] | None:
    """The tests of a run, in their order. None if there are none."""
    result = judged.result
    told = [Reported.model_validate(each.facts) for each in result.found if each.experiment == NAME]
    by_phase = {each.phase: each for each in told}
    records = {record.phase: record for record in result.records}
    tests = []
    for phase in (phase for phase in result.phases if phase.experiment == NAME and phase.name in records):
        test, record = phase.told(LoadGenTest), records[phase.name]
        done, rate, latencies = record.completions, None, {}
        if done is not None:
            ended_ns = done.yielded_ns[done.ends - 1]
            latencies = {each: percentile(ended_ns - done.due_ns, int(each) / 100) for each in ("50", "90", "99")}
            rate = len(done) * 1e9 / float(ended_ns.max() - done.due_ns.min())
        told_of = by_phase.get(phase.name)
        device = record.route.device
        tests.append(Beside(test.suite, device, test.scenario, told_of, latencies, rate, test.per_s))
    return tuple(tests) or None
