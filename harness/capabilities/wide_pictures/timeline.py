"""The work of each device during the mix, from the raw timestamps: a picture with its words and its table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from mixmark.harness.capabilities.wide_pictures import strips
from mixmark.harness.capabilities.wide_pictures.routes import hues
from mixmark.harness.contracts.schema import Completions, Int64s, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy.coverage import antichain
from mixmark.harness.judge.energy.reading import power as power_of
from mixmark.harness.judge.energy.total import metered, to_meter
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.judge.statistics.timestamps import Floats
from mixmark.reporters import charts, figures, hosts, scores
from mixmark.reporters.document import Chart, Table

COLUMNS = 160  # columns of time of a device: 64 devices make no large page, and brief feeds share a column
POWER_BLOCKS = 200


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


@dataclass(frozen=True)
class Strip:
    """A row of the picture: a strip with its label and its value."""

    label: str
    value: str
    drawn: Markup
    lines: tuple[tuple[float, str], ...] = ()
    """(height in percent, label) of the horizontal lines."""


def mix_over_time(assessment: Assessment) -> Iterator[Chart]:
    """The run of the mix that the report's figures are of. Nothing if there is no score."""
    colours = hues(assessment)
    run = assessment.score.median_run() if assessment.score else None
    if run is None:
        return
    names, suites = hosts.shown(assessment), [progress.suite for progress in run.suites]
    begin_ns, end_ns = span_ns(assessment.result, run)
    edges_ns = np.array((run.begin_ns, run.end_ns))
    window = tuple(((edges_ns - begin_ns) / (end_ns - begin_ns)).tolist())
    seen = [lane for lane in lanes(assessment.result, run) if lane.device in names]
    rows = [
        Strip(names[lane.device], f"{figures.whole_percent(lane.busy)} busy", strips.lane(lane.columns, window))
        for lane in seen
    ]
    of_run = {finding.rule: words(finding) for finding in assessment.findings if finding.about == run.phase}
    yield strips.drawing(
        "",
        "mix_over_time",
        f"{figures.duration(run.length_ns)} of {run.phase}",
        of_run.get("steady", scores.STEADINESS[run.steady]),
        {suite: colours[suite] for suite in suites},
        power(assessment.result, run, window),
        rows,
        _ticks(begin_ns - run.begin_ns, end_ns - run.begin_ns, run.length_ns),
        window != (0, 1),
        table=_table(seen, suites, names),
    )


def span_ns(result: Result, run: ScoredRun) -> tuple[int, int]:
    """The edges of the picture: of the window, or of the first and the last feed if they lie outside of it."""
    done = [feeds for by_suite in _done(result, run).values() for several in by_suite.values() for feeds in several]
    begin_ns = min(run.begin_ns, *(int(feeds.issued_ns[0]) for feeds in done))
    return begin_ns, max(run.end_ns, *(int(feeds.yielded_ns.max()) for feeds in done))


def _done(result: Result, run: ScoredRun) -> Mapping[str, Mapping[str, list[Completions]]]:
    """The feeds of the run by device and suite."""
    done: dict[str, dict[str, list[Completions]]] = defaultdict(lambda: defaultdict(list))
    for record in result.records:
        if record.phase == run.phase and record.completions is not None:
            done[record.route.device][record.route.suite].append(record.completions)
    return done


def lanes(result: Result, run: ScoredRun) -> list[Lane]:
    """One for each device of the result, used or not."""
    done, suites = _done(result, run), [progress.suite for progress in run.suites]
    columns_ns = np.linspace(*span_ns(result, run), COLUMNS + 1).round().astype(np.int64)
    window_ns = run.begin_ns, run.end_ns
    found = []
    for device in dict.fromkeys([*(device.id for device in result.devices), *done]):
        own = {suite: done[device][suite] for suite in suites if device in done and done[device].get(suite)}
        taken = np.stack([_taken(own.get(suite, ()), columns_ns) for suite in suites])
        several = [feeds for feeds_of_suite in own.values() for feeds in feeds_of_suite]
        in_flight_ns = {suite: timestamps.in_flight_ns(*feeds, inside=window_ns) for suite, feeds in own.items()}
        found.append(
            Lane(
                device=device,
                busy=timestamps.in_flight_ns(*several, inside=window_ns) / run.length_ns if several else 0.0,
                fractions={suite: ns / run.length_ns for suite, ns in in_flight_ns.items()},
                columns=np.asarray(taken / np.maximum(taken.sum(axis=0), 1)),  # feeds that overlap share the time
            )
        )
    return found


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


def power(result: Result, run: ScoredRun, window: tuple[float, ...]) -> Strip | None:
    """The power over the picture. None if it is unknown."""
    watts = profile(result, run.phase, np.linspace(*span_ns(result, run), POWER_BLOCKS + 1).round().astype(np.int64))
    known = watts[np.isfinite(watts)]
    if not len(known):
        return None
    axis, mean = charts.PixelAxis(0, max(float(known.max()), 1e-3) * charts.HEADROOM, 100, 0), run.total.watts
    ticks = [(value, label) for value, label in axis.ticks(2) if value]
    low, high = (figures.prefixed(float(value), "W") for value in (known.min(), known.max()))
    return Strip(
        label=f"Power of {f'the {run.total.boundary}' if run.total.boundary else 'what is metered'}",
        value=f"{low} to {high}" if mean is None else f"{figures.prefixed(mean, 'W')} on average",
        drawn=strips.curve(watts, axis.high, window, mean, [value for value, _ in ticks]),
        lines=tuple((axis(value), f"{label} W") for value, label in ticks),
    )


def _ticks(begin_ns: int, end_ns: int, length_ns: int) -> list[tuple[float, str]]:
    """(place in percent, label) of round times since the window began. length_ns: of the window."""
    unit, unit_ns = charts.time_unit(length_ns)
    axis = charts.PixelAxis(begin_ns / unit_ns, end_ns / unit_ns, 0, 100)
    return [(axis(value), f"{label} {unit}") for value, label in axis.ticks(6)]


def _table(seen: Sequence[Lane], suites: Sequence[str], names: Mapping[str, str]) -> Table:
    """A device, the fraction of the window that each suite took, and the rest."""
    rows = [
        (
            names[lane.device],
            *(figures.whole_percent(lane.fractions.get(suite, 0.0)) for suite in suites),
            figures.whole_percent(lane.busy),
            figures.whole_percent(max(0.0, 1 - lane.busy)),
        )
        for lane in seen
    ]
    return Table("Fractions of the window", ("device", *map(figures.name, suites), "busy", "idle"), rows)


def profile(result: Result, phase: str, edges_ns: Int64s) -> Floats:
    """[edges - 1], the mean watts of the domains that a `total` of the whole phase would add. NaN if one is not known.

    It is for a chart: short blocks of a source that updates rarely are interpolated.
    """
    metering = metered(result, phase)
    watts = np.full(len(edges_ns) - 1, np.nan)
    if metering is None:
        return watts
    powers = {
        domain.id: power_of(domain, samples)
        for domain in result.domains
        if domain.method != "modelled" and (samples := metering.samples.get(domain.id))
    }
    readable = {id for id, (_, steps) in powers.items() if np.isfinite(steps).any()}
    chosen = antichain(result.domains, readable, to_meter(result))
    if not chosen:
        return watts
    length_s = np.diff(edges_ns) / 1e9
    sums = np.zeros(len(watts))
    for domain in chosen:
        at_ns, steps = powers[domain.id]
        steps_s, known = np.diff(at_ns) / 1e9, np.isfinite(steps)
        joules = _between(edges_ns, at_ns, np.where(known, steps * steps_s, 0))
        known_s = _between(edges_ns, at_ns, np.where(known, steps_s, 0))
        sums += np.where(known_s > length_s * (1 - 1e-6), joules / length_s, np.nan)
    return sums


def _between(edges_ns: Int64s, at_ns: Int64s, amounts: Floats) -> Floats:
    """[edges - 1], how much of the amounts [at - 1] lies between the edges, each spread evenly over its time."""
    return np.diff(np.interp(edges_ns, at_ns, np.concatenate((np.zeros(1), np.cumsum(amounts)))))
