"""How much slower the devices of one phase were than those of another."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.policies.slowdown import slowdown
from mixmark.harness.contracts.schema import Result
from mixmark.harness.plan.placement import place
from tests.fakes.machine import completions, device, of_experiment, phase, record, solo
from tests.golden.sample import result as bare

SECOND = 10**9
RATES = solo({("a", "gpu:0"): 10.0, ("b", "gpu:0"): 20.0, ("b", "cpu:0"): 5.0})


def made(**seconds: dict[tuple[str, str], float]) -> Result:
    """Phases with one feed of 10 units of each pair, which take so many seconds, one after the other."""
    plan, phases, records = place({"a": 10, "b": 10}, RATES, [device("gpu:0"), device("cpu:0")]), [], []
    for name, feeds in seconds.items():
        own, begin_ns = [], 0
        for pair, took_s in feeds.items():
            end_ns = begin_ns + round(took_s * SECOND)
            own.append(record(name, pair, completions([(begin_ns, end_ns)], 10), (0, end_ns)))
            begin_ns = end_ns
        records += own
        phases.append(of_experiment("policies", {}, phase(own, plan)))
    return bare(*records).model_copy(update={"phases": tuple(phases)})


@pytest.mark.parametrize(
    ("other", "slower"),
    [
        ({("a", "gpu:0"): 1.25}, 1.0),
        ({("a", "gpu:0"): 2.5}, 2.0),
        ({("a", "gpu:0"): 0.5}, 1.0),
        ({("b", "gpu:0"): 0.625}, 1.0),
        ({("b", "gpu:0"): 1.25, ("a", "gpu:0"): 1.25}, 2.5 / 1.5 / 1.25),
        ({("a", "gpu:0"): 1.25, ("b", "cpu:0"): 10.0}, 4.0),
    ],
)
def test_work_is_compared_with_the_time_that_it_takes_alone(other: dict[tuple[str, str], float], slower: float) -> None:
    """The plan's phase takes 1.25 s for 1 s of work, on the GPU alone. A device that it did not use, whose feed takes
    2 s alone, is compared with that."""
    result = made(planned={("a", "gpu:0"): 1.25}, other=other)
    assert slowdown(result, "planned", "other") == pytest.approx(slower)
