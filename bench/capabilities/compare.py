"""How often a comparison calls equal machines different, and how often it sees a difference.

Run: python -m bench.capabilities.compare [TRIALS]    (2000)

Runs scatter, and sittings differ besides. The floor is that of a self-test in one sitting: four suites, six pairs each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from mixmark.harness.capabilities.compare.noise_floor import noise_floor
from mixmark.harness.capabilities.compare.solo import LEAST_DELTA, ratio_of_runs, verdict_of

SUITES, PAIRS = 4, 6


def floor(scatter: float, random: np.random.Generator) -> float:
    """As a self-test measures it."""
    pairs = np.exp(scatter * random.standard_normal((SUITES, PAIRS, 2))).tolist()
    return max(noise_floor([tuple(pair) for pair in suite]) or 0.0 for suite in pairs)


def slower(
    count: int, scatter: float, sitting: float, true: float, alone: bool, trials: int, random: np.random.Generator
) -> tuple[float, float]:
    """The fraction of verdicts `slower` and `faster`. alone: whether each run is a result of its own sitting, so that
    no floor is used; else all runs of a side are of one sitting, with a floor."""
    said = []
    for _ in range(trials):
        shift = sitting * random.standard_normal((2, count if alone else 1)) + np.array([[0.0], [np.log1p(true)]])
        a, b = np.exp(shift + scatter * random.standard_normal((2, count))).tolist()
        said.append(verdict_of(ratio_of_runs(a, b, 0.0 if alone else floor(scatter, random)), LEAST_DELTA))
    return said.count("slower") / trials, said.count("faster") / trials


def table(trials: int) -> Iterator[str]:
    random = np.random.default_rng(1)
    for alone in (True, False):
        yield f"{'two results or more a side' if alone else 'one sitting a side, with a floor'}"
        for count in (3, 5):
            for scatter, true in ((0.01, -0.03), (0.03, -0.1), (0.01, -0.1)):
                seen = slower(count, scatter, 0.0, true, alone, trials, random)[0]
                yield f"| {count} v {count} | scatter {scatter:.0%} | true {true:.0%} | slower {seen:.3f} |"
            for scatter in (0.003, 0.01, 0.03):
                for sitting in (0.0, 0.005, 0.01):
                    wrong = sum(slower(count, scatter, sitting, 0.0, alone, trials, random))
                    yield f"| {count} v {count} | scatter {scatter:.1%} | sitting {sitting:.1%} | false {wrong:.3f} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if sys.argv[1:] else 2000):
        print(line, flush=True)
