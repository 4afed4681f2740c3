from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from mixmark.harness.capabilities.paths.energy import CopyEnergy
from mixmark.harness.capabilities.paths.facts import PathRecord
from mixmark.harness.capabilities.paths.figures import paths
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment, judge
from tests.capabilities.paths.fakes import BACK, PATH, with_paths
from tests.capabilities.paths.test_figures import KIB, MIB, on_line
from tests.fakes.machine import WALL, one_run


def reports() -> Iterator[tuple[str, Assessment]]:
    """A path with joules, one without, and one without a latency."""
    copies = on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB)
    whole = one_run(600.0).model_copy(update={"domains": (WALL,)})
    judged = judge(with_paths(whole, PathRecord(path=PATH, samples=copies)))
    (alone,) = paths(judged.result)
    energy = CopyEnergy(Estimate(2e-9, 1.9e-9, 2.1e-9), "wall", ("wall",))
    seen = (
        replace(alone, energy=energy, energy_reason=None),
        replace(alone, energy_reason="the meters were not read", own_code=True),
        replace(alone, path=BACK, bytes_per_s=None, latency_s=None, sizes=()),
    )
    vars(judged)["_experiments"] = {"paths": seen}  # in place of what it would compute
    yield "paths", judged


def nine_sizes() -> Result:
    """A path at nine sizes."""
    copies = on_line(*(4**power * KIB for power in range(1, 10)))
    return with_paths(one_run(None), PathRecord(path=PATH, samples=copies))


PAGES: Mapping[str, Callable[[], Result]] = {"paths": nine_sizes}
