from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from mixmark.harness.capabilities.paths.energy import CopyEnergy
from mixmark.harness.capabilities.paths.facts import Move, PathRecord
from mixmark.harness.capabilities.paths.figures import PathCeiling, paths
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment, judge
from tests.capabilities.paths.fakes import BACK, PATH, with_paths
from tests.capabilities.paths.test_figures import KIB, MIB, on_line
from tests.fakes.machine import WALL, one_run


def reports() -> Iterator[tuple[str, Assessment]]:
    """A path alone, against another, beside the mix, with a conversion, and with a meter."""
    copies = on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB)
    moved = Move(suite="llm", what="weights", size_bytes=100 << 20)
    whole = one_run(600.0).model_copy(update={"domains": (WALL,)})
    judged = judge(with_paths(whole, PathRecord(path=PATH, samples=copies), moves=[moved]))
    (alone,) = paths(judged.result, judged.solos, judged.score)
    energy = CopyEnergy(Estimate(2e-9, 1.9e-9, 2.1e-9), 100.0, "wall", ("wall",))
    seen = (
        replace(alone, ceilings=(PathCeiling("llm", "gpu:0", 30.0, 20.0, 1.5),), energy=energy),
        replace(alone, opposing="fake/back", left=Estimate(0.5, 0.4, 0.6), energy_reason="the meters were not read"),
        replace(alone, beside="path", left=Estimate(0.25), mix_left=Estimate(0.9, 0.85, 0.95)),
        replace(alone, beside="path", mix_reason="the mixed runs have no rate"),
        replace(alone, path=PATH.model_copy(update={"converts": "layout"}), bytes_per_s=None, latency_s=None),
    )
    vars(judged)["_experiments"] = {"paths": seen}  # in place of what it would compute
    yield "paths", judged


def both_ways() -> Result:
    """A pair of paths at nine sizes, also against each other and beside the mix."""
    alone = on_line(*(4**power * KIB for power in range(1, 10)))
    largest = on_line(256 * MIB, slower=2)
    records = tuple(
        each
        for path in (PATH, BACK)
        for each in (
            PathRecord(path=path, samples=alone),
            PathRecord(path=path, opposing=BACK.id, samples=largest),
            PathRecord(path=path, beside="path", samples=largest),
        )
    )
    return with_paths(one_run(None), *records, moves=[Move(suite="llm", what="weights", size_bytes=100 * MIB)])


PAGES: Mapping[str, Callable[[], Result]] = {"paths": both_ways}
