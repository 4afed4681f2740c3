"""A suite that does nothing: what is left is the harness itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark import (
    Array,
    Cost,
    Feed,
    Feeds,
    Gate,
    Graph,
    LatencyLimits,
    Session,
    Spec,
    Suite,
    UnitNames,
    Value,
    WeightClass,
    Weights,
)
from mixmark.suites.limits import check_output


class NoWeights:
    def names(self) -> Sequence[str]:
        return ()

    def spec(self, name: str) -> Spec:
        raise KeyError(name)

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        raise KeyError(name)


def _never() -> Any:
    raise AssertionError("no test builds the null suite's graph")


class Null:
    """Nothing, as fast as possible."""

    name = "null"
    version = "1"
    unit = "sample"
    unit_names = UnitNames(short="samples", work="samples")
    config: Mapping[str, Value] = {}
    scenarios: Sequence[str] = ("offline", "single-stream", "server")
    latency: LatencyLimits | None = LatencyLimits(percentile=0.9, total_ns=50_000_000, source="a test")

    def __init__(
        self, tier: str = "smoke", options: Mapping[str, str] | None = None, weight_class: WeightClass = 16
    ) -> None:
        self.tier = tier
        self.options = options or {}
        self.weight_class = weight_class
        self.gib = float(self.options.get("gib", 0))

    def weights(self) -> Weights:
        return NoWeights()

    def graphs(self) -> Mapping[str, Graph]:
        state = {"ballast": Spec((int(self.gib * 2**28),))} if self.gib else {}
        return {"null": Graph({}, state, {}, module=_never, onnx=bytes)} if state else {}

    def feeds(self, batch: int, seed: int) -> Feeds:
        return lambda nonce: {"x": np.full(batch, nonce, np.int64)}

    def units(self, batch: int) -> int:
        return batch

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        yield np.full_like(feed["x"], np.inf, np.float32) if "overflow" in self.options else feed["x"]

    def gate(self, precision: str) -> Gate | None:
        return Gate(metric="difference", at_most=0.5)

    def reference(self) -> Suite:
        return self

    def quality(self, output: Array, reference: Array) -> float:
        return float(np.abs(check_output(output, reference.shape, "int64") - reference).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        return (Cost(name="nothing", flops=1.0 * batch, bytes=8.0 * batch),)


class Sum(Null):
    """The null suite with a limit that a busy machine keeps."""

    name = "sum"
    latency = LatencyLimits(percentile=0.9, total_ns=200_000_000, source="a test")
