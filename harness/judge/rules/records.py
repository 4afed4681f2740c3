"""Rules about each record: whether it finished, is steady and precise, and kept its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mixmark.harness.judge import screening
from mixmark.harness.judge.evidence import Evidence, Measurement, is_solo
from mixmark.harness.judge.rules.rule import Severity, record_rule, rule
from mixmark.harness.judge.statistics.intervals import (
    FEWEST_BLOCKS,
    FEWEST_INDEPENDENT,
    LOWEST_TAIL,
    WIDEST,
    effective_sample_size,
    sample_needed,
    within_limits,
)


@rule
def finished(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """A failed attempt is invalid; refused or unsupported is a note; an interrupted run is a warning."""
    if evidence.result.live:
        yield "warning", "run", "still going on in another process"
    elif not evidence.result.finished:
        yield "warning", "run", "interrupted; --resume goes on"
    for record in evidence.result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            yield "invalid" if error.attempted else "note", record.key, f"{error.kind}: {error.message}{hint}"


@rule
def closed_cleanly(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The adapter closed what it had opened without an error. Each measurement has a fresh process, so an error there
    affects no other measurement."""
    for record in evidence.result.records:
        if failure := record.close_failure:
            hint = f" ({failure.hint})" if failure.hint else ""
            yield "note", record.key, f"{failure.kind} when it was closed: {failure.message}{hint}"


@record_rule("note")
def enough_feeds(measured: Measurement) -> Iterator[str]:
    """The sample carries the lowest tail percentile; otherwise none is shown."""
    needed = sample_needed(LOWEST_TAIL)
    if measured.is_solo and len(measured.completions) < needed:
        yield f"no tail percentile: p{LOWEST_TAIL * 100:g} needs {needed} feeds"


@rule
def screened(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """A route is measured no further if its screening runs were not the fastest of its suite on its device."""
    in_full = {record.route.key for record in evidence.result.records if is_solo(record)}
    message = "only tried for seconds"
    if evidence.result.finished:
        message += ": another route was faster in these screening runs; --all-routes measures it"
    tried = {each.record.route.key: each.key for each in evidence.measured if each.record.screening}
    for route, key in tried.items():
        if route not in in_full:
            yield "note", key, message


@rule
def choice_confirmed(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The fastest measured route of a suite on a device is not far slower than all screening runs of a route that was
    not measured."""
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
            message = f"slower than {adapter} {precision} was whenever it was tried, so that may be the faster route"
            yield "note", key, f"{message}; --all-routes measures both"


@rule
def batch_search_finished(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The search for the best batch ended because a larger batch was no faster, did not fit or would make long feeds,
    and not for lack of time.

    It is a warning if the largest batch tried is the best one, because a larger batch may be better still.
    """
    for record in evidence.result.records:
        if record.search_ended_by == "time" and not record.screening:
            largest = max(trial.batch for trial in record.trials)
            message = (
                f"the search for the best batch ran out of time: none above {largest} was tried, "
                f"and batch {record.batch} was measured"
            )
            yield "warning" if record.batch == largest else "note", record.key, message


@rule
def ceiling_known(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The roofline fraction of a record is known, from the ceiling of its own adapter."""
    for measured in evidence.solo:
        if note := evidence.achieved(measured).note:
            yield "note", measured.key, f"roofline: {note}"


@rule
def steady(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """No stretch of a closed loop's window, or of a mixed run's, ran at another level than the rest of it."""
    for measured in evidence.solo:
        if measured.record.scenario == "server":
            continue
        window = measured.window
        if window is not None and window.stretch is not None:
            found = window.stretch.described(window.blocks.edges_ns, "the throughput")
            yield "warning", measured.key, f"not steady, so there is no interval: {found}"
        elif window is None or window.steady is None:
            message = f"too few feeds to tell whether it was steady: {FEWEST_BLOCKS} are needed"
            yield "note", measured.key, message
    for run in evidence.runs:
        if run.stretch is not None:
            found = run.stretch.described(np.array(run.edges_ns), "the mixes per hour")
            yield "warning", run.phase, f"not steady, so there is no interval: {found}"


@record_rule("warning")
def interval_known(measured: Measurement) -> Iterator[str]:
    """A steady window has an interval of its throughput: its blocks are worth enough independent ones, and the interval
    is no wider than an interval may be."""
    if not measured.is_solo or measured.record.scenario == "server" or measured.interval:
        return
    if measured.window is None or not measured.window.steady:
        return
    rates = measured.window.blocks.rates_per_s
    independent = float(effective_sample_size(rates))
    if independent < FEWEST_INDEPENDENT:
        yield (
            f"the interval of the throughput is not known: the rate wanders so slowly that its {len(rates)} blocks are "
            f"worth {independent:.1f} independent ones"
        )
    else:
        yield f"the interval of the throughput is not known: it is wider than ±{WIDEST * 100:g} %"


@rule
def precise(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The half-width that the plan asks for was reached within the longest time."""
    for measured in evidence.measured:
        limits = evidence.limits.get(measured.key)
        if measured.record.ended_by != "cap" or limits is None or limits.half_width is None:
            continue
        known = measured.interval.half_width if measured.interval else None
        if known is not None and known > limits.half_width:
            reached, wanted = (f"±{width * 100:.1f} %" for width in (known, limits.half_width))
            yield "note", measured.key, f"the longest time was reached at {reached} (asked for {wanted})"


@rule
def latency_within_limits(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """A server keeps the suite's latency limits in its window, also at a rate that its own search found."""
    for measured in evidence.measured:
        limits = measured.record.latency_limits
        if limits is None or measured.record.scenario != "server":
            continue
        kept, name = within_limits(measured.completions, limits), f"p{limits.percentile * 100:g}"
        if kept is False:
            yield "warning", measured.key, f"the latency limits are not kept at {name}"
        elif kept is None:
            needed = sample_needed(limits.percentile)
            yield "note", measured.key, f"whether the latency limits are kept is open: {name} needs {needed} feeds"
