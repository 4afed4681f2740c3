"""How often the interval of a score holds the truth: simulated machines of known speed, by Mixmark's own dispatcher,
end of the window, and figures.

Run: python -m bench.intervals one [TRIALS]     (one run; its speed wanders within the window)
     python -m bench.intervals runs [TRIALS]    (3 and 5 runs, which differ in speed)

The mix is edge-1, the window that of the preset ranked. The truth is λ* at the mean speed. A wandering speed is AR(1)
noise with a correlation time; a feed takes the time that the speed on its way gives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from bench.coverage import STEP_S, autoregressive
from bench.dispatch import EDGE_1
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Mix, NoiseFloor
from mixmark.harness.judge import score
from mixmark.harness.judge.mixed_run import ScoredRun, run_of
from mixmark.harness.measure.dispatch import Pair
from mixmark.harness.plan import presets
from tests.fakes.machine import Machine, completions, phase, record
from tests.golden.sample import result as bare

LIMITS = presets.PRESETS["ranked"].mix
MIX = Mix(name="edge-1", tier="edge", units=EDGE_1)
EPYC = {"llm": 17.7, "diffusion": 0.54, "dlrm": 20_200.0, "resnet50": 103.0}
OTHER = {"llm": 1.2, "diffusion": 0.9, "dlrm": 0.8, "resnet50": 1.1}  # what a second device is better and worse at
QUANTA = {"llm": 128, "diffusion": 1, "dlrm": 16_384, "resnet50": 64}
FEED_NOISE = 0.01
DEVICES = {"1 device": (1.0,), "1:3": (1.0, 3.0), "1:10": (1.0, 10.0)}
Clock = Callable[[float, float], float]
"""How long a feed takes from a moment on, whose work is so many seconds at the mean speed."""


def wandering(scatter: float, correlated_s: float, random: np.random.Generator) -> Clock:
    """The clock of a device whose speed wanders."""
    steps = round(2 * LIMITS.max_ns / 1e9 / STEP_S)
    noise = autoregressive(steps, math.exp(-STEP_S / correlated_s), 1, random)[:, 0]
    work_s = np.concatenate((np.zeros(1), np.cumsum(np.maximum(0.1, 1 + scatter * noise)) * STEP_S))
    at_s = np.arange(steps + 1) * STEP_S
    return lambda since_s, needs_s: float(np.interp(np.interp(since_s, at_s, work_s) + needs_s, work_s, at_s) - since_s)


def run(
    speeds: tuple[float, ...], clocks: Mapping[str, Clock], random: np.random.Generator, floor: float | None = None
) -> tuple[ScoredRun, float]:
    """A run on these devices, and the truth in mixes per hour. The first device is EPYC times its speed. floor: of a
    self-test."""
    rates = {
        (suite, f"npu:{index}"): speed * rate * (OTHER[suite] if index else 1)
        for index, speed in enumerate(speeds)
        for suite, rate in EPYC.items()
    }

    def actual(pair: Pair, at_s: float) -> float:
        needs_s = QUANTA[pair[0]] / rates[pair] * (1 + FEED_NOISE * random.standard_normal())
        return QUANTA[pair[0]] / (clocks[pair[1]](at_s, needs_s) if clocks else needs_s)

    machine = Machine(EDGE_1, rates, {pair: QUANTA[pair[0]] for pair in rates}, actual, marks={"llm": 128})
    machine.window(LIMITS)
    for end_ns, _, id, handed, since_ns in machine.ends:  # feeds under way are finished, and their marks inside count
        machine.done[handed.suite, id].append((since_ns, end_ns))
    records = [
        record(
            "mix1",
            pair,
            completions(sorted(spans), QUANTA[pair[0]], machine.yields.get(pair[0], 1)),
            (0, machine.now_ns),
        )
        for pair, spans in machine.done.items()
        if spans
    ]
    made = phase(records, machine.placement)
    noise = None if floor is None else NoiseFloor(fraction=floor, tier="edge", created_utc="2026-11-28T00:00:00+00:00")
    result = bare(*records).model_copy(update={"phases": (made,), "mix": MIX, "tier": "edge", "noise_floor": noise})
    found = run_of(result, MIX, made, ())
    assert found is not None
    return found, machine.placement.bound_per_s * 3600


def holds(estimate: Estimate | None, truth: float) -> bool | None:
    """None if there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return estimate.low <= truth <= estimate.high


def shown(seen: list[bool | None], widths: list[float]) -> str:
    given = [each for each in seen if each is not None]
    share = f"{sum(given) / len(given):.3f}" if given else "–"
    width = f"± {100 * float(np.median(widths)):.2f} %" if widths else "–"
    return f"given {len(given) / len(seen):.2f} | holds {share} | median {width}"


def one(trials: int) -> Iterator[str]:
    for name, speeds in DEVICES.items():
        for scatter in (0.0, 0.01, 0.05):
            for correlated_s in (0.2, 2, 10) if scatter else (1,):
                random = np.random.default_rng(round(scatter * 1000) + round(10 * correlated_s))
                seen, widths = [], []
                for _ in range(trials):
                    clocks = {f"npu:{n}": wandering(scatter, correlated_s, random) for n in range(len(speeds))}
                    found, truth = run(speeds, clocks, random)
                    tx = score.figures([found])[0]
                    seen.append(holds(tx, truth))
                    if tx is not None and tx.half_width is not None:
                        widths.append(tx.half_width)
                yield f"| {name} | {scatter:.0%}, {correlated_s:g} s | {shown(seen, widths)} |"


def runs(trials: int) -> Iterator[str]:
    """As many runs are simulated for a cell as trials, which draw theirs from them."""
    for name, speeds in DEVICES.items():
        truth = run(speeds, {}, np.random.default_rng(0))[1]
        for scatter in (0.001, 0.003, 0.01, 0.03):
            random = np.random.default_rng(round(scatter * 1000))
            factors = np.exp(scatter * random.standard_normal(trials))
            made = [run(tuple(float(factor) * each for each in speeds), {}, random)[0] for factor in factors]
            for count in (3, 5):
                drawn = [random.choice(trials, count, replace=False) for _ in range(trials)]
                txs = [score.figures([made[each] for each in own])[0] for own in drawn]
                widths = [tx.half_width for tx in txs if tx is not None and tx.half_width is not None]
                yield f"| {name} | {scatter:.1%} | {count} runs | {shown([holds(tx, truth) for tx in txs], widths)} |"


if __name__ == "__main__":
    for line in {"one": one, "runs": runs}[sys.argv[1]](int(sys.argv[2]) if sys.argv[2:] else 1000):
        print(line, flush=True)
