"""A pipeline of two stages on a simulated GPU and CPU: `a` takes 0.1 s there, `b` takes 1 s here."""

from __future__ import annotations

from functools import partial
from typing import Any

from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineStage, PipelineWork
from mixmark.harness.capabilities.pipelines.queue import PipelineQueue
from mixmark.harness.contracts.schema import Record
from tests.fakes.machine import Machine, Rates, recorded

UNITS = {"a": 10, "b": 20}
ROW: Rates = {("a", "gpu:0"): 100.0, ("b", "cpu:0"): 20.0}
WORK = PipelineWork(suites=("a", "b"), units=(10, 20), in_flight=1, deadline_ns=2_050_000_000)
CHAIN = Pipeline(name="mine", stages=(PipelineStage(suite="a"), PipelineStage(suite="b")), deadline_ns=2_050_000_000)


def machine(in_flight: int, rates: Rates = ROW, actual: Any = None, **more: Any) -> Machine:
    """actual, more: of `Machine`."""
    work = WORK.model_copy(update={"in_flight": in_flight})
    quanta = {pair: UNITS[pair[0]] for pair in rates}
    return Machine(dict(UNITS), rates, quanta, actual, source=partial(PipelineQueue, work=work), **more)


def records(made: Machine, phase: str = "pipeline1") -> list[Record]:
    """The records of what the machine has done until now."""
    return recorded(made, phase)[0]
