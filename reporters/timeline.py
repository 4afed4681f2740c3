"""The work of each device during the mix, from the raw timestamps: numbers for a picture, a sentence and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Completions, Int64s
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy.total import profile
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.judge.statistics.timestamps import Floats

MOST_COLUMNS = 400  # columns of time of a device; feeds that are shorter than a column share it
FEWEST_COLUMNS = 120
ALL_COLUMNS = 3200  # columns of all devices of a run, so that many devices do not make a large page
OTHER_RUNS = 0.4  # the fraction of these columns for runs other than the median run
FLICKER = 0.15  # the mean difference of neighbouring columns, as a fraction of their height, that is too much
COARSEST = 25  # the fewest columns of a lane that flickers
LONG = 0.01  # the length of a feed, as a fraction of the width, from which its begin is drawn
MOST_EDGES = 400  # begins of feeds that are drawn for a device


@dataclass(frozen=True, eq=False)
class Lane:
    """One device during the mix."""

    device: str
    busy: float
    """The fraction of the window that the device had a feed in flight."""
    fractions: Mapping[str, float]
    """The fraction of the window that each suite took."""
    columns: Floats
    """[suites, columns], the fraction of each column of time that each suite took; a column adds up to at most 1."""
    edges: tuple[float, ...]
    """The begins of long feeds, as fractions of the picture's width."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """One run of the mix, as numbers over time."""

    run: ScoredRun
    suites: Sequence[str]
    lanes: Sequence[Lane]
    begin_ns: int
    """The left edge of the picture: the begin of the window or of the first feed, whichever is earlier."""
    end_ns: int
    """The right edge: the end of the window or of the last feed, whichever is later."""
    watts: Floats
    """[blocks], the power in equal blocks from begin to end; NaN where it is unknown."""

    @property
    def window(self) -> tuple[float, float]:
        """The edges of the window that counts, as fractions of the picture's width."""
        length = self.end_ns - self.begin_ns
        return (self.run.begin_ns - self.begin_ns) / length, (self.run.end_ns - self.begin_ns) / length


def timelines(assessment: Assessment) -> tuple[Timeline, ...]:
    """One for each run of the mix. The run with the median throughput comes first: the report's figures are of it."""
    found = assessment.score
    middle = found.median_run() if found else None
    if found is None or middle is None:
        return ()
    others = (run for run in found.runs if run is not middle)
    return (_timeline(assessment, middle, 1.0), *(_timeline(assessment, run, OTHER_RUNS) for run in others))


def _timeline(assessment: Assessment, run: ScoredRun, fineness: float) -> Timeline:
    result = assessment.result
    done: dict[str, dict[str, list[Completions]]] = defaultdict(lambda: defaultdict(list))
    for record in result.records:
        if record.phase == run.phase and record.completions is not None:
            done[record.route.device][record.route.suite].append(record.completions)
    suites = [progress.suite for progress in run.suites]
    every = [feeds for by_suite in done.values() for several in by_suite.values() for feeds in several]
    begin_ns = min(run.begin_ns, *(int(feeds.issued_ns[0]) for feeds in every))
    end_ns = max(run.end_ns, *(int(feeds.yielded_ns.max()) for feeds in every))
    devices = list(dict.fromkeys([*(device.id for device in result.devices), *done]))
    columns = round(fineness * min(MOST_COLUMNS, max(FEWEST_COLUMNS, ALL_COLUMNS // len(devices))))
    span_ns = begin_ns, end_ns
    lanes = tuple(_lane(device, done[device], suites, run, span_ns, columns) for device in devices)
    blocks_ns = np.linspace(*span_ns, round(fineness * MOST_COLUMNS / 2) + 1).round().astype(np.int64)
    watts = profile(result, run.phase, blocks_ns)
    return Timeline(run, suites, lanes, begin_ns, end_ns, watts)


def _lane(
    device: str,
    done: Mapping[str, Sequence[Completions]],
    suites: Sequence[str],
    run: ScoredRun,
    span_ns: tuple[int, int],
    columns: int,
) -> Lane:
    window_ns = run.begin_ns, run.end_ns
    several = [feeds for suite in suites for feeds in done.get(suite, ())]
    return Lane(
        device=device,
        busy=timestamps.in_flight_ns(*several, inside=window_ns) / run.length_ns if several else 0.0,
        fractions={
            suite: timestamps.in_flight_ns(*done[suite], inside=window_ns) / run.length_ns
            for suite in suites
            if done.get(suite)
        },
        columns=_columns([done.get(suite, ()) for suite in suites], span_ns, columns),
        edges=_edges(several, *span_ns),
    )


def _columns(done: Sequence[Sequence[Completions]], span_ns: tuple[int, int], finest: int) -> Floats:
    """[suites, columns], the fraction of each column of time that each suite took.

    Feeds that are slightly longer than a column make columns flicker. Then columns are doubled in length until they no
    longer flicker. If no length helps, because each feed is visible as a bar, the columns stay fine.
    """

    def cut(count: int) -> Floats:
        edges_ns = np.linspace(*span_ns, count + 1).round().astype(np.int64)
        taken = np.stack([_taken(feeds, edges_ns) for feeds in done])
        return np.asarray(taken / np.maximum(taken.sum(axis=0), 1))  # feeds that overlap share the time

    fine = cut(finest)
    columns = fine
    while _flicker(columns) > FLICKER and columns.shape[1] // 2 >= COARSEST:
        columns = cut(columns.shape[1] // 2)
    return columns if _flicker(columns) <= FLICKER else fine


def _flicker(columns: Floats) -> float:
    """The mean difference of neighbouring columns, as a fraction of their height. columns: [suites, columns]."""
    return float(np.abs(np.diff(columns, axis=1)).sum(axis=0).mean() / 2)


def _taken(done: Sequence[Completions], edges_ns: Int64s) -> Floats:
    """[edges - 1], the fraction of the time between two edges with at least one of these feeds in flight."""
    if not done:
        return np.zeros(len(edges_ns) - 1)
    begin_ns, end_ns = (edge_ns - edges_ns[0] for edge_ns in timestamps.flights_ns(*done))
    flown = np.cumsum(end_ns - begin_ns)
    clock = np.stack((begin_ns, end_ns), axis=1).ravel().astype(np.float64)
    in_flight = np.stack((flown - (end_ns - begin_ns), flown), axis=1).ravel().astype(np.float64)
    edges = (edges_ns - edges_ns[0]).astype(np.float64)
    return np.asarray(np.diff(np.interp(edges, clock, in_flight)) / np.maximum(np.diff(edges), 1))


def _edges(done: Sequence[Completions], begin_ns: int, end_ns: int) -> tuple[float, ...]:
    """The begins of long feeds. Empty if they are so many that their edges would cover the picture."""
    least_ns = LONG * (end_ns - begin_ns)
    issued = [feeds.issued_ns[feeds.yielded_ns[feeds.ends - 1] - feeds.issued_ns >= least_ns] for feeds in done]
    found = np.sort(np.concatenate(issued)) if issued else np.zeros(0)
    return () if len(found) > MOST_EDGES else tuple(((found - begin_ns) / (end_ns - begin_ns)).tolist())
