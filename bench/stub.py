"""`bench.waiting` on a stub machine of 8 GPUs, 2 sockets and an NPU, whose loads, feeds and references only sleep.

    python -m bench.stub [OPTIONS OF mixmark run]

The rates are those of an H100 and of 16 cores in README.md, llm's on the H100 by jax; the NPU lies between. Outputs and
audits are exact and cheap, and an audit sleeps as long as a reference takes on two sockets. Sleeping needs no
processor, so a busy machine disturbs no mix, and none is repeated.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from bench import waiting
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Runner, Spec, Suite, Use
from mixmark.harness.contracts.schema import HOST_POOL, Cost, Device, Gate
from mixmark.harness.plan import presets
from mixmark.harness.plugins import registry
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.limits import check_output
from mixmark.suites.llm import Llm
from mixmark.suites.probe import Probe
from mixmark.suites.resnet50 import ResNet50
from mixmark.suites.tiered import Tiered

ROOT = Path(__file__).parents[1]
SUITES = ("llm", "diffusion", "dlrm", "resnet50", "probe")
UNITS_PER_S = {
    "gpu": (291, 7.25, 5_240_000, 9_880, 140),
    "npu": (30, 1.4, 670_000, 1_700, 70),
    "cpu": (17.5, 0.264, 86_500, 304, 35),
}
LAUNCH_S = 0.002  # of a feed of any size, so that large batches are faster
LOAD_S = {"gpu": 8, "npu": 10, "cpu": 12}
PROBE_LOAD_S = 2  # it has no network
REFERENCE_S = 4  # to load a reference
COMPARED_S = 1  # to run it on a feed


class Sleeper:
    """A runner whose outputs are its feeds."""

    concurrency = 1
    facts: Mapping[str, str] = {}

    def __init__(self, yields: bool, units_per_s: float = 0.0) -> None:
        """yields: whether each unit is a yield. units_per_s: 0 for a reference."""
        self._yields, self._units_per_s = yields, units_per_s

    def __call__(self, feed: Feed) -> Iterator[Array]:
        units = feed["x"]
        time.sleep(LAUNCH_S + len(units) / self._units_per_s if self._units_per_s else COMPARED_S)
        yield from np.split(units, len(units)) if self._yields else [units]


class Stub(Tiered):
    """What the stub of a suite has in place of its network."""

    def specs(self) -> Mapping[str, Spec]:
        return {}

    def graphs(self) -> Mapping[str, Graph]:
        return {}

    def feeds(self, batch: int, seed: int) -> Feeds:
        return lambda nonce: {"x": np.full(self.units(batch), nonce)}

    def gate(self, precision: str) -> Gate | None:
        return Gate(metric="difference", at_most=0.5)

    def reference(self) -> Suite:
        return self

    @contextmanager
    def open_reference(self) -> Iterator[Runner]:
        time.sleep(REFERENCE_S)
        yield Sleeper(self.name == "probe")

    def quality(self, output: Array, reference: Array) -> float:
        return float(np.abs(check_output(output, reference.shape, "int64") - reference).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        return (Cost(name="nothing", flops=batch, bytes=batch),)  # far below the ceilings that the probe shows


class StubLlm(Stub, Llm): ...


class StubDiffusion(Stub, Diffusion): ...


class StubDlrm(Stub, Dlrm): ...


class StubResnet50(Stub, ResNet50): ...


class StubProbe(Stub, Probe):
    costs = Probe.costs


class Machine:
    name = "machine"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def discover(self) -> Iterable[Device]:
        for kind, count in (("gpu", 8), ("cpu", 2), ("npu", 1)):
            for id in (f"{kind}:{number}" for number in range(count)):
                pool = HOST_POOL if kind == "cpu" else id
                yield Device.model_validate(
                    {"id": id, "kind": kind, "name": f"Stub {kind}", "memory_pool": pool, "precisions": ("bf16",)}
                )

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        probe = suite.name == "probe"
        time.sleep(PROBE_LOAD_S if probe else LOAD_S[device.kind])
        yield Sleeper(probe, UNITS_PER_S[device.kind][SUITES.index(suite.name)])


def main() -> None:
    stubs = {name: f"bench.stub:Stub{name.title()}" for name in SUITES}
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    words = [*sys.argv, "--adapter", "bench.stub:Machine"]
    once = replace(presets.PRESETS["quick"], repeats=0)
    with (
        mock.patch.dict(registry.BUILT_IN, suites=stubs),
        mock.patch.dict(presets.PRESETS, quick=once),
        mock.patch.dict(os.environ, PYTHONPATH=path),
        mock.patch.object(sys, "argv", words),
    ):
        waiting.main()


if __name__ == "__main__":
    main()
