"""What each device did over the mix, from the raw stamps, as numbers for a picture, a sentence and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Completions, Int64s
from mixmark.harness.judge.energy.total import metered, profile
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.judge.statistics.timestamps import Floats

MOST_COLUMNS = 400  # of the picture of a device; feeds that are shorter than a column share it
FEWEST_COLUMNS = 120
COLUMNS = 3200  # of all devices of a run together, so that many devices do not make a large page
OTHERS = 0.4  # of these columns for the runs that the figures are not of
FLICKER = (
    0.15  # of the height, by which neighbouring columns differ on average: beyond it they are a barcode to the eye
)
COARSEST = 25  # columns, to which a lane that flickers is coarsened
LONG = 0.01  # of the picture's width: a feed at least this long has its edges drawn
MOST_EDGES = 400  # of a device


@dataclass(frozen=True, eq=False)
class Lane:
    """One device over the mix."""

    device: str
    busy: float
    """The share of the window in which it had a feed in flight."""
    shares: Mapping[str, float]
    """The share of the window that each suite took."""
    columns: Floats
    """[suites, columns], the share of each column of time that each suite took; they add up to 1 at most."""
    edges: tuple[float, ...]
    """Where feeds that are long enough to be seen begin, as shares of the picture's width."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """One run of the mix over time."""

    run: ScoredRun
    suites: Sequence[str]
    lanes: Sequence[Lane]
    begin_ns: int
    """The left edge of the picture: the window's begin or the first feed, whichever is earlier."""
    end_ns: int
    power_edges_ns: Int64s
    """[blocks + 1]."""
    watts: Floats
    """[blocks], NaN where the power is not known."""

    @property
    def window(self) -> tuple[float, float]:
        """The edges of the window that counts, as shares of the picture's width."""
        length = self.end_ns - self.begin_ns
        return (self.run.begin_ns - self.begin_ns) / length, (self.run.end_ns - self.begin_ns) / length


def timelines(judgement: Judgement) -> tuple[Timeline, ...]:
    """One for each run of the mix, the one with the median throughput first, since the report's figures are of it."""
    found = judgement.score
    if found is None or not found.runs:
        return ()
    ranked = sorted(found.runs, key=lambda run: run.mixes_per_s.estimate)
    middle = ranked[(len(ranked) - 1) // 2]
    others = (run for run in found.runs if run is not middle)
    return (_timeline(judgement, middle, 1.0), *(_timeline(judgement, run, OTHERS) for run in others))


def _timeline(judgement: Judgement, run: ScoredRun, finely: float) -> Timeline:
    result = judgement.result
    done: dict[str, dict[str, list[Completions]]] = defaultdict(lambda: defaultdict(list))
    for record in result.records:
        if record.phase == run.phase and record.completions is not None:
            done[record.route.device][record.route.suite].append(record.completions)
    suites = [stream.suite for stream in run.suites]
    every = [each for of in done.values() for several in of.values() for each in several]
    begin_ns = min(run.begin_ns, *(int(each.issued_ns[0]) for each in every))
    end_ns = max(run.end_ns, *(int(each.marks_ns.max()) for each in every))
    devices = list(dict.fromkeys([*(each.id for each in result.devices), *done]))
    columns = round(finely * min(MOST_COLUMNS, max(FEWEST_COLUMNS, COLUMNS // len(devices))))
    span_ns = begin_ns, end_ns
    lanes = tuple(_lane(device, done[device], suites, run, span_ns, columns) for device in devices)
    blocks_ns = np.linspace(*span_ns, round(finely * MOST_COLUMNS / 2) + 1).round().astype(np.int64)
    watts = (
        np.full(len(blocks_ns) - 1, np.nan)
        if metered(result, run.phase) is None
        else profile(result, run.phase, blocks_ns)
    )
    return Timeline(run, suites, lanes, begin_ns, end_ns, blocks_ns, watts)


def _lane(
    device: str,
    done: Mapping[str, Sequence[Completions]],
    suites: Sequence[str],
    run: ScoredRun,
    span_ns: tuple[int, int],
    columns: int,
) -> Lane:
    window_ns = run.begin_ns, run.end_ns
    several = [each for suite in suites for each in done.get(suite, ())]
    return Lane(
        device=device,
        busy=timestamps.in_flight_ns(*several, inside=window_ns) / run.length_ns if several else 0.0,
        shares={
            suite: timestamps.in_flight_ns(*done[suite], inside=window_ns) / run.length_ns
            for suite in suites
            if done.get(suite)
        },
        columns=_columns([done.get(suite, ()) for suite in suites], span_ns, columns),
        edges=_edges(several, *span_ns),
    )


def _columns(done: Sequence[Sequence[Completions]], span_ns: tuple[int, int], finest: int) -> Floats:
    """[suites, columns], the share of each column of time that each suite took.

    Feeds that are a little longer than a column make a barcode in which nothing is seen. Then columns are twice as
    long, and again, until neighbours are alike; where that does not help, since feeds are seen as bars, they stay fine.
    """

    def cut(count: int) -> Floats:
        edges_ns = np.linspace(*span_ns, count + 1).round().astype(np.int64)
        taken = np.stack([_taken(each, edges_ns) for each in done])
        return np.asarray(taken / np.maximum(taken.sum(axis=0), 1))  # feeds that overlap share the time

    fine = cut(finest)
    shares = fine
    while _flicker(shares) > FLICKER and shares.shape[1] // 2 >= COARSEST:
        shares = cut(shares.shape[1] // 2)
    return shares if _flicker(shares) <= FLICKER else fine


def _flicker(shares: Floats) -> float:
    """By how much of its height a column differs from the one before it, on average. shares: [suites, columns]."""
    return float(np.abs(np.diff(shares, axis=1)).sum(axis=0).mean() / 2)


def _taken(done: Sequence[Completions], edges_ns: Int64s) -> Floats:
    """[edges - 1], the share of the time between two edges in which at least one of these feeds was in flight."""
    if not done:
        return np.zeros(len(edges_ns) - 1)
    begin_ns, end_ns = (each - edges_ns[0] for each in timestamps.flights_ns(*done))
    flown = np.cumsum(end_ns - begin_ns)
    clock = np.stack((begin_ns, end_ns), axis=1).ravel().astype(np.float64)
    in_flight = np.stack((flown - (end_ns - begin_ns), flown), axis=1).ravel().astype(np.float64)
    at = (edges_ns - edges_ns[0]).astype(np.float64)
    return np.asarray(np.diff(np.interp(at, clock, in_flight)) / np.maximum(np.diff(at), 1))


def _edges(done: Sequence[Completions], begin_ns: int, end_ns: int) -> tuple[float, ...]:
    """Where long feeds begin; none where they are so many that their edges would cover them."""
    least_ns = LONG * (end_ns - begin_ns)
    issued = [each.issued_ns[each.marks_ns[each.ends - 1] - each.issued_ns >= least_ns] for each in done]
    found = np.sort(np.concatenate(issued)) if issued else np.zeros(0)
    return () if len(found) > MOST_EDGES else tuple(((found - begin_ns) / (end_ns - begin_ns)).tolist())
