"""How often an interval contains the truth in windows that are called steady, over a catalogue of simulated processes.

    python -m bench.coverage [trials]

Each process is a rate over time, cut into 60 blocks like a window. Its truth is the mean over all trials, which readers
take the figure for. A window may be called steady or not, and an interval may be given or not; `held` is the fraction
of given intervals that contain the truth, `false` the fraction of steady windows with an interval that does not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.judge.statistics.intervals import MOST_BLOCKS, is_steady, mean_interval
from mixmark.harness.judge.statistics.timestamps import Floats

STEP_S = 0.1
LENGTHS_S = (30, 120)
NOISE = 0.02  # noise of each block, unless the process is noise
Random = np.random.Generator


@dataclass(frozen=True)
class Process:
    """rates: [blocks, trials] of windows of a length in seconds; truth: their expected mean at that length."""

    name: str
    rates: Callable[[int, int, Random], Floats]
    truth: Callable[[int], float] = lambda length_s: 1.0


@dataclass(frozen=True)
class Outcome:
    steady: float
    """The fraction of windows that are called steady."""
    given: float
    """The fraction of windows with an interval."""
    held: float
    """The fraction of given intervals that contain the truth; NaN if none was given."""
    false: float
    """The fraction of steady windows whose interval does not contain the truth."""


def autoregressive(steps: int, phi: float, trials: int, random: Random) -> Floats:
    """[steps, trials] of AR(1) with variance 1."""
    white = random.standard_normal((steps, trials))
    series = white.copy()
    for at in range(1, steps):
        series[at] = phi * series[at - 1] + math.sqrt(1 - phi**2) * white[at]
    return series


def _blocks(fine: npt.NDArray[Any]) -> Floats:
    """[steps, trials] of STEP_S each -> [blocks, trials]."""
    return np.asarray(fine.reshape(MOST_BLOCKS, -1, fine.shape[1]).mean(axis=1))


def _noise(trials: int, random: Random) -> Floats:
    return np.asarray(NOISE * random.standard_normal((MOST_BLOCKS, trials)))


def _times_s(length_s: int) -> Floats:
    return np.asarray(np.arange(round(length_s / STEP_S))[:, None] * STEP_S)


def _wandering(phi_per_s: float) -> Callable[[int, int, Random], Floats]:
    def rates(length_s: int, trials: int, random: Random) -> Floats:
        steps = len(_times_s(length_s))
        return 1 + 0.05 * _blocks(autoregressive(steps, phi_per_s**STEP_S, trials, random))

    return rates


def _turbo(every_s: int, gain: float) -> Callable[[int, int, Random], Floats]:
    def rates(length_s: int, trials: int, random: Random) -> Floats:
        phase_s = random.uniform(0, 2 * every_s, trials)
        on = (_times_s(length_s) + phase_s) % (2 * every_s) < every_s
        return _blocks(1 + gain * on) + _noise(trials, random)

    return rates


def _half_on(gain: float, length_s: int) -> float:
    return 1 + gain / 2


def _drifting(per_minute: float) -> Callable[[int, int, Random], Floats]:
    def rates(length_s: int, trials: int, random: Random) -> Floats:
        middle = (np.arange(MOST_BLOCKS)[:, None] + 0.5) / MOST_BLOCKS - 0.5
        return 1 + per_minute * length_s / 60 * middle + _noise(trials, random)

    return rates


def _stalling(length_s: int, trials: int, random: Random) -> Floats:
    at_s, times_s = random.uniform(0, length_s - 2, trials), _times_s(length_s)
    return _blocks(1.0 - ((times_s >= at_s) & (times_s < at_s + 2))) + _noise(trials, random)


def _dropping(length_s: int, trials: int, random: Random) -> Floats:
    at_s = random.uniform(0.9 * length_s, 0.98 * length_s, trials)
    return _blocks(1 - (_times_s(length_s) >= at_s) / 3) + _noise(trials, random)


def _slow_first(share: float) -> Callable[[int, int, Random], Floats]:
    def rates(length_s: int, trials: int, random: Random) -> Floats:
        return _blocks(1 - (_times_s(length_s) < share * length_s) / 3) + _noise(trials, random)

    return rates


def _warming(length_s: int, trials: int, random: Random) -> Floats:
    return 1 - 0.3 * np.exp(-(np.arange(MOST_BLOCKS)[:, None] + 0.5) / 4) + _noise(trials, random)


def _feeds(draw: Callable[[Random, tuple[int, int]], Floats], per_block: int) -> Callable[[int, int, Random], Floats]:
    """Service times of mean 1, one feed after the other; a block lasts as long as `per_block` feeds on average."""

    def rates(length_s: int, trials: int, random: Random) -> Floats:
        done = np.cumsum(draw(random, (3 * MOST_BLOCKS * per_block, trials)), axis=0)
        edges = np.arange(MOST_BLOCKS + 1) * float(per_block)
        counts = np.arange(len(done) + 1)
        finished = [np.interp(edges, np.concatenate((np.zeros(1), each)), counts) for each in done.T]
        return np.asarray(np.diff(np.array(finished), axis=1).T / per_block)

    return rates


def _pareto(alpha: float) -> Callable[[Random, tuple[int, int]], Floats]:
    return lambda random, shape: np.asarray((random.pareto(alpha, shape) + 1) * (alpha - 1) / alpha)


def _lognormal(random: Random, shape: tuple[int, int]) -> Floats:
    return np.asarray(random.lognormal(-0.5, 1, shape))


CATALOGUE = (
    Process("independent noise of 2 %", lambda length_s, trials, random: 1 + _noise(trials, random)),
    *(Process(f"AR(1) of 5 %, φ {phi} a second", _wandering(phi)) for phi in (0.3, 0.5, 0.7, 0.9)),
    *(
        Process(f"turbo of {gain:.0%} on and off every {s} s", _turbo(s, gain), partial(_half_on, gain))
        for gain in (0.03, 0.1)
        for s in (10, 20)
    ),
    *(Process(f"drift of {rate * 100:g} % a minute", _drifting(rate)) for rate in (0.005, 0.04)),
    Process("one stall of 2 s", _stalling, lambda length_s: 1 - 2 / length_s),
    Process("a third slower from somewhere in the last tenth", _dropping, lambda length_s: 1 - 0.06 / 3),
    Process("a third slower in the first half", _slow_first(1 / 2), lambda length_s: 1 - 1 / 6),
    Process("a third slower in the first third", _slow_first(1 / 3), lambda length_s: 1 - 1 / 9),
    Process(
        "a warm-up that fades from 30 %",
        _warming,
        lambda length_s: 1 - 0.3 * float(np.exp(-(np.arange(MOST_BLOCKS) + 0.5) / 4).mean()),
    ),
    Process("log-normal service times, σ 1, 20 a block", _feeds(_lognormal, 20)),
    Process("Pareto service times, α 2.5, 20 a block", _feeds(_pareto(2.5), 20)),
    Process("Pareto service times, α 2.5, 3 a block", _feeds(_pareto(2.5), 3)),
    Process("Pareto service times, α 2.1, 20 a block", _feeds(_pareto(2.1), 20)),
)


def simulate(process: Process, length_s: int, trials: int, seed: int = 0) -> Outcome:
    """Simulates `trials` windows of this length."""
    truth = process.truth(length_s)
    steady = given = held = 0
    for rates in process.rates(length_s, trials, np.random.default_rng([seed, length_s])).T:
        if not is_steady(rates):
            continue
        steady += 1
        if (interval := mean_interval(rates)) is not None:
            given += 1
            low, high = interval.ends
            held += low <= truth <= high
    return Outcome(
        steady / trials, given / trials, held / given if given else math.nan, (given - held) / steady if steady else 0.0
    )


def table(trials: int) -> Iterator[str]:
    """The published table, a Markdown row each."""
    yield "| process | window | steady | interval given | holds | steady with a false interval |"
    yield "|---|---:|---:|---:|---:|---:|"
    for process in CATALOGUE:
        for length_s in LENGTHS_S:
            seen = simulate(process, length_s, trials)
            held = "–" if math.isnan(seen.held) else f"{seen.held:.1%}"
            shares = (f"{seen.steady:.0%}", f"{seen.given:.0%}", held, f"{seen.false:.1%}")
            yield f"| {' | '.join((process.name, f'{length_s} s', *shares))} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else 600):
        print(line, flush=True)
