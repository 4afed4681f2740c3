"""The window cut into blocks: whether it is steady, and whether it is long enough, in the drive loop and in reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.judge.distributions import student_t
from harness.judge.intervals import CONFIDENCE, FEWEST_BLOCKS, mean_half_width
from harness.judge.stamps import Floats, finished_by, flights_ns, in_flight_ns, steps_begin_ns
from harness.schema import Completions, Int64s, Limits

DRIFT = 0.01  # what a steady window may drift from end to end, or from half to half
GROUP = 5  # blocks a group in MSER-5
MOST_BLOCKS = 60  # that a finished window is cut into
CHECKS_GROW = 1.5  # each look at the interval is a chance to stop by luck, so looks are few


@dataclass(frozen=True, eq=False)
class Blocks:
    """A window in pieces of equal time in flight. The mean of the rates is the throughput of the window."""

    edges_ns: Int64s
    """[blocks + 1], on the clock of the stamps."""
    units: Floats
    """[blocks], the units that were finished in each; fractions where a step reaches over an edge."""
    in_flight_ns: float
    """The time in flight of each block."""

    @property
    def rates_per_s(self) -> Floats:
        return self.units * 1e9 / self.in_flight_ns

    def __len__(self) -> int:
        return len(self.units)


def block_rates(completions: Completions, block_ns: int) -> Blocks | None:
    """The whole window in equal blocks, as near to block_ns each as fits. None where the clock did not tick.

    A mark's units are spread evenly over the step that led to it: from the mark before or, for a feed's first one,
    from its issue. So a feed of one yield counts evenly over its service time, and an edge cuts no unit in favour of
    one block. A block is at least as long as the median feed: more blocks than feeds would be invented evidence, and an
    LLM's prefill in a block of its own would be cut off as a warm-up.
    Time with nothing in flight (a feed being made) is cut out: edges_ns may lie further apart than in_flight_ns.
    """
    marks, (opened, closed) = completions.marks_ns, flights_ns(completions)
    begin = int(opened[0])
    opened, closed = opened - begin, closed - begin
    flown = np.cumsum(closed - opened)
    total = int(flown[-1])
    if total == 0:
        return None
    clock = np.stack((opened, closed), axis=1).ravel().astype(np.float64)
    in_flight = np.stack((flown - (closed - opened), flown), axis=1).ravel().astype(np.float64)

    step_from = np.interp(steps_begin_ns(completions) - begin, clock, in_flight)
    step_to = np.interp(marks - begin, clock, in_flight)
    block_ns = max(block_ns, int(np.median(marks[completions.ends - 1] - completions.issued_ns)), 1)
    count = max(1, total // block_ns)
    cuts = np.linspace(0, total, count + 1)
    finished = finished_by(cuts, step_from, step_to, completions.units)
    finished[0], finished[-1] = 0, completions.units.sum()
    edges = begin + np.interp(cuts, in_flight, clock).round().astype(np.int64)
    return Blocks(edges, np.diff(finished), total / count)


def steady_from(rates: Floats) -> int | None:
    """The block from which the rates are steady; None where they are not, or are too few to tell (20).

    MSER-5 (White, Simulation 69, 1997) cuts the warm-up off, never more than half. The rest is steady where neither
    its straight line nor the step between its halves moves by more than 1 %, or than noise alone may (95 %).
    So a noisy series passes with a drift that a quiet one would not: the width of its interval tells.
    """
    if len(rates) < FEWEST_BLOCKS:
        return None
    start = _truncation(rates)
    rest = rates[start:]
    if not rest.any():
        return None
    rest = rest / rest.mean()
    half = len(rest) // 2
    step = rest[-half:].mean() - rest[:half].mean()
    time = np.linspace(-0.5, 0.5, len(rest))
    rise = (time * rest).sum() / (time * time).sum()
    moves = ((step, math.sqrt(2 / half)), (rise, 1 / math.sqrt((time * time).sum())))
    noise = student_t(len(rest) - 1, CONFIDENCE) * math.sqrt(_long_run_variance(rest - rise * time))
    return start if all(abs(move) <= max(DRIFT, noise * error) for move, error in moves) else None


def _long_run_variance(level: Floats) -> float:
    """n times the variance of a mean of n blocks, as AR(1) noise has it; a step in the level hardly enters.

    From differences of neighbours, half of whose mean square is σ² (1 − ρ), and of next but one: σ² (1 − ρ²).
    """
    near, far = (float(((level[lag:] - level[:-lag]) ** 2).mean()) / 2 for lag in (1, 2))
    rho = min(max(far / near - 1, 0), 0.8) if near else 0.0
    return near * (1 + rho) / (1 - rho) ** 2


def _truncation(rates: Floats) -> int:
    """Where the standard error of the mean of what is left is least, in groups of 5 blocks."""
    groups = len(rates) // GROUP
    means = rates[len(rates) - groups * GROUP :].reshape(groups, GROUP).mean(axis=1)
    spread = [float(means[cut:].var()) / (groups - cut) for cut in range(groups // 2 + 1)]
    cut = int(np.argmin(spread))
    return cut * GROUP + len(rates) % GROUP if cut else 0


def checks(cap: int) -> list[int]:
    """The numbers of blocks at which the interval is looked at: 20, 30, 45, … up to the cap."""
    counts: list[int] = []
    count = FEWEST_BLOCKS
    while count <= cap:
        counts.append(count)
        count = math.ceil(count * CHECKS_GROW)
    return counts


def precise(rates: Floats, half_width: float) -> npt.NDArray[np.bool_]:
    """[...], whether the mean of each series of rates [blocks, ...] is known to ± half_width of itself."""
    return np.asarray(mean_half_width(rates) <= half_width * rates.mean(axis=0))


def stop_reason(rates: Floats, half_width: float, cap: int) -> Literal["precision", "cap"] | None:
    """Why to stop after these blocks, or None to go on; to be asked with all blocks so far, whenever there are more.

    half_width: of the 95 % interval, relative to the throughput. "precision": it was reached at two checks in turn; a
    single one may be luck, and stopping on luck makes intervals too narrow. Never looks at how fast the system is.
    """
    done = checks(len(rates))[-2:]
    if len(done) == 2 and all(precise(rates[:count], half_width) for count in done):
        return "precision"
    return "cap" if len(rates) >= cap else None


def enough(limits: Limits, completions: Completions) -> bool:
    """Whether the window may end: it is steady, and from there its throughput is known to the half-width asked for."""
    if limits.half_width is None:
        return True
    blocks = block_rates(completions, limits.min_ns // checks(FEWEST_BLOCKS * 2)[1])
    start = steady_from(blocks.rates_per_s) if blocks else None
    if blocks is None or start is None:
        return False
    rates = blocks.rates_per_s[start:]
    return stop_reason(rates, limits.half_width, cap=len(rates) + 1) == "precision"


@dataclass(frozen=True, eq=False)
class Window:
    """The blocks that a record's throughput is taken from."""

    blocks: Blocks
    start: int
    """The first block of the steady window; 0 where the whole window was taken, for want of a steady one."""
    steady: bool | None
    """None: fewer blocks than tell."""

    @property
    def rates_per_s(self) -> Floats:
        return self.blocks.rates_per_s[self.start :]


def window(completions: Completions) -> Window | None:
    """A closed loop's window in blocks, from where it is steady. None where the clock did not tick."""
    blocks = block_rates(completions, in_flight_ns(completions) // MOST_BLOCKS)
    if blocks is None:
        return None
    start = steady_from(blocks.rates_per_s)
    tells = len(blocks) >= FEWEST_BLOCKS
    return Window(blocks, start or 0, (start is not None) if tells else None)
