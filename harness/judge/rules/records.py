"""Rules about each record: whether it finished, is steady and precise, and kept its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge import screening
from mixmark.harness.judge.evidence import Evidence, Measurement, is_solo
from mixmark.harness.judge.findings import DOCTOR, found, invalid, note, warning
from mixmark.harness.judge.rules.registered import Room
from mixmark.harness.judge.statistics.intervals import (
    FEWEST_BLOCKS,
    FEWEST_INDEPENDENT,
    LOWEST_TAIL,
    WIDEST,
    effective_sample_size,
    sample_needed,
    within_limits,
)

room = Room(400)


@room.rule(
    weight=990,
    live=warning("still going on in another process"),
    interrupted=warning("interrupted; --resume goes on"),
    failed=invalid("{kind}: {message}{hint:hint}"),
    refused=note("{kind}: {message}{hint:hint}"),
)
def finished(evidence: Evidence) -> Iterator[Finding]:
    """A failed attempt is invalid; refused or unsupported is a note; an interrupted run is a warning."""
    if evidence.result.live:
        yield found("finished.live")
    elif not evidence.result.finished:
        yield found("finished.interrupted")
    for record in evidence.result.records:
        if error := record.error:
            code = "finished.failed" if error.attempted else "finished.refused"
            yield found(code, record.key, kind=error.kind, message=error.message, hint=error.hint)


@room.rule(
    weight=600,
    best=warning(
        "the search for the best batch ran out of time: none above {largest} was tried, and batch {batch} was measured"
    ),
    tried=note(
        "the search for the best batch ran out of time: none above {largest} was tried, and batch {batch} was measured"
    ),
    noticed=warning("the search for the best batch ran out of time{share:share}", "a longer preset searches longer"),
)
def batch_search_finished(evidence: Evidence) -> Iterator[Finding]:
    """The search for the best batch ended because a larger batch was no faster, did not fit or would make long feeds,
    and not for lack of time.

    It is a warning if the largest batch tried is the best one, because a larger batch may be better still.
    """
    for record in evidence.result.records:
        if record.search_ended_by == "time" and not record.screening:
            largest = max(trial.batch for trial in record.trials)
            case = "best" if record.batch == largest else "tried"
            yield found(f"batch_search_finished.{case}", record.key, largest=largest, batch=record.batch or 1)


@room.rule(
    warning(
        "not steady, so there is no interval: from {begin_s:.1f} s to {end_s:.1f} s of {window_s:.1f} s it ran at "
        "{rate_pct:.0f} % of the rate of the rest, without which the {figure} would be {moved_pct:.1f} % {other}"
    ),
    weight=600,
    unknown=note("too few feeds to tell whether it was steady: {needed} are needed"),
    noticed=warning("the speed was not steady{share:share}", DOCTOR),
)
def steady(evidence: Evidence) -> Iterator[Finding]:
    """No stretch of a closed loop's window, or of a mixed run's, ran at another level than the rest of it. For
    the test fewer than 20 blocks are too few, which is a note."""
    for measured in evidence.solo:
        if measured.record.scenario == "server":
            continue
        window = measured.window
        if window is not None and window.stretch is not None:
            values = window.stretch.values(window.blocks.edges_ns)
            yield found("steady", measured.key, figure="throughput", **values)
        elif window is None or window.steady is None:
            yield found("steady.unknown", measured.key, needed=FEWEST_BLOCKS)
    for run in evidence.runs:
        if run.stretch is not None:
            values = run.stretch.values(np.array(run.edges_ns))
            yield found("steady", run.phase, figure="mixes per hour", **values)


@room.record_rule(
    weight=600,
    wandering=warning(
        "the interval of the throughput is not known: the rate wanders so slowly that its {blocks} blocks are worth "
        "{independent:.1f} independent ones"
    ),
    wide=warning("the interval of the throughput is not known: it is wider than ±{widest_pct:g} %"),
)
def interval_known(measured: Measurement) -> Iterator[Finding]:
    """A steady window has an interval of its throughput: its blocks are worth at least 4 independent ones, and the
    interval is no wider than ±25 %."""
    if not measured.is_solo or measured.record.scenario == "server" or measured.interval:
        return
    if measured.window is None or not measured.window.steady:
        return
    rates = measured.window.blocks.rates_per_s
    independent = float(effective_sample_size(rates))
    if independent < FEWEST_INDEPENDENT:
        yield found("interval_known.wandering", measured.key, blocks=len(rates), independent=independent)
    else:
        yield found("interval_known.wide", measured.key, widest_pct=WIDEST * 100)


@room.rule(
    weight=600,
    broken=warning("the latency limits are not kept at {percentile}"),
    open=note("whether the latency limits are kept is open: {percentile} needs {needed} feeds"),
    noticed=warning("the latency limits were not kept{share:share}", "a lower --rate"),
)
def latency_within_limits(evidence: Evidence) -> Iterator[Finding]:
    """A server keeps the suite's latency limits in its window, also at a rate that its own search found."""
    for measured in evidence.measured:
        limits = measured.record.latency_limits
        if limits is None or measured.record.scenario != "server":
            continue
        kept, name = within_limits(measured.completions, limits), f"p{limits.percentile * 100:g}"
        if kept is False:
            yield found("latency_within_limits.broken", measured.key, percentile=name)
        elif kept is None:
            needed = sample_needed(limits.percentile)
            yield found("latency_within_limits.open", measured.key, percentile=name, needed=needed)


@room.rule(note("the longest time was reached at ±{reached_pct:.1f} % (asked for ±{wanted_pct:.1f} %)"), weight=450)
def precise(evidence: Evidence) -> Iterator[Finding]:
    """The half-width that the plan asks for was reached within the longest time."""
    for measured in evidence.measured:
        limits = evidence.limits.get(measured.key)
        if measured.record.ended_by != "cap" or limits is None or limits.half_width is None:
            continue
        known = measured.interval.half_width if measured.interval else None
        if known is not None and known > limits.half_width:
            yield found("precise", measured.key, reached_pct=known * 100, wanted_pct=limits.half_width * 100)


@room.rule(
    faster=note("only a quick check of seconds: another route was faster in it; --all-routes measures this one"),
    only=note("only a quick check of seconds"),
)
def screened(evidence: Evidence) -> Iterator[Finding]:
    """A route is measured no further if its screening runs were not the fastest of its suite on its device."""
    in_full = {record.route.key for record in evidence.result.records if is_solo(record)}
    code = "screened.faster" if evidence.result.finished else "screened.only"
    tried = {each.record.route.key: each.key for each in evidence.measured if each.record.screening}
    for route, key in tried.items():
        if route not in in_full:
            yield found(code, key)


@room.rule(
    note(
        "slower than {adapter} {precision} was whenever it was tried, so that may be the faster route; --all-routes "
        "measures both"
    )
)
def choice_confirmed(evidence: Evidence) -> Iterator[Finding]:
    """No route that was left out was, in each of its screening runs, more than 1.15 times as fast as the fastest
    measured route of its suite on its device."""
    tried = {(each.record.route.key, each.record.scenario) for each in evidence.measured if each.record.screening}
    in_full = {record.route.key for record in evidence.result.records if is_solo(record)}
    fastest: dict[tuple[str, str], tuple[float, str]] = {}
    for measured in evidence.solo:
        route, rate = measured.record.route, measured.throughput_per_s or 0.0
        if (route.key, measured.record.scenario) in tried:
            fastest[route.key[:2]] = max(fastest.get(route.key[:2], (0.0, "")), (rate, measured.key))
    for other, runs in screening.rates_per_s(evidence.measured).items():
        rate, key = fastest.get(other[:2], (math.inf, ""))
        if other not in in_full and min(runs) > screening.CLOSE * rate:
            _, _, adapter, precision = other
            yield found("choice_confirmed", key, adapter=adapter, precision=precision)


@room.rule(note("{kind} when it was closed: {message}{hint:hint}"))
def closed_cleanly(evidence: Evidence) -> Iterator[Finding]:
    """The adapter closed what it had opened without an error. Each measurement has a fresh process, so an error there
    affects no other measurement."""
    for record in evidence.result.records:
        if failure := record.close_failure:
            values = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
            yield found("closed_cleanly", record.key, **values)


@room.rule(note("roofline: {why}"))
def ceiling_known(evidence: Evidence) -> Iterator[Finding]:
    """The roofline fraction of a record is known, from the ceiling of its own adapter."""
    for measured in evidence.solo:
        if note := evidence.achieved(measured).note:
            yield found("ceiling_known", measured.key, why=note)


@room.record_rule(note("no tail percentile: {percentile} needs {needed} feeds"))
def enough_feeds(measured: Measurement) -> Iterator[Finding]:
    """The sample carries the lowest tail percentile; otherwise none is shown."""
    needed = sample_needed(LOWEST_TAIL)
    if measured.is_solo and len(measured.completions) < needed:
        yield found("enough_feeds", measured.key, percentile=f"p{LOWEST_TAIL * 100:g}", needed=needed)
