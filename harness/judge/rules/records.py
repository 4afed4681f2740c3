"""Rules about each record: whether it finished, is steady and precise, and kept its limits; Evidence -> findings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence, is_cell
from mixmark.harness.judge.statistics.intervals import (
    FEWEST_BLOCKS,
    FEWEST_INDEPENDENT,
    LOWEST_TAIL,
    WIDEST,
    effective_sample_size,
    sample_needed,
    within_limits,
)


def finished(evidence: Evidence) -> Iterator[Finding]:
    """A failed attempt is invalid; refused or unsupported is a note; an interrupted run is a warning."""
    if evidence.result.live:
        yield Finding(rule="finished", severity="warning", about="run", message="still going on in another process")
    elif not evidence.result.finished:
        yield Finding(rule="finished", severity="warning", about="run", message="interrupted; --resume goes on")
    for record in evidence.result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            yield Finding(
                rule="finished",
                severity="invalid" if error.attempted else "note",
                about=record.key,
                message=f"{error.kind}: {error.message}{hint}",
            )


def closed_cleanly(evidence: Evidence) -> Iterator[Finding]:
    """The adapter closed what it had opened without an error. Each measurement has a fresh process, so an error there
    touches no other."""
    for record in evidence.result.records:
        if failure := record.unclosed:
            message = f"{failure.kind} when it was closed: {failure.message}"
            message += f" ({failure.hint})" if failure.hint else ""
            yield Finding(rule="closed_cleanly", severity="note", about=record.key, message=message)


def enough_feeds(evidence: Evidence) -> Iterator[Finding]:
    """No tail percentile where the sample does not carry the lowest of them."""
    needed = sample_needed(LOWEST_TAIL)
    for each in evidence.cells:
        if len(each.completions) < needed:
            yield Finding(
                rule="enough_feeds",
                severity="note",
                about=each.key,
                message=f"no tail percentile: p{LOWEST_TAIL * 100:g} needs {needed} feeds",
            )


def screened(evidence: Evidence) -> Iterator[Finding]:
    """A route whose screening run was not the fastest of its suite on its device is not measured any further."""
    whole = {record.route.key for record in evidence.result.records if is_cell(record)}
    message = "only a screening run of a few seconds ran"
    if evidence.result.finished:
        message += ", since another route was faster; --all-routes measures it"
    for each in (each for each in evidence.measured if each.record.screening and each.record.route.key not in whole):
        yield Finding(rule="screened", severity="note", about=each.key, message=message)


def batch_search_finished(evidence: Evidence) -> Iterator[Finding]:
    """The search for the best batch ended because a larger one brought nothing, did not fit or would make long feeds,
    not for want of time.
    It is a warning where the largest batch that was tried is the best one, so that a larger one may be better still."""
    for record in evidence.result.records:
        if record.search_ended_by == "time" and not record.screening:
            tried = [trial.batch for trial in record.trials]
            message = (
                f"the search for the best batch ran out of time: none above {max(tried)} was tried, "
                f"and batch {record.batch} was measured"
            )
            rising = record.batch == max(tried)
            yield Finding(
                rule="batch_search_finished",
                severity="warning" if rising else "note",
                about=record.key,
                message=message,
            )


def ceiling_known(evidence: Evidence) -> Iterator[Finding]:
    """Why a record has no share of the roofline, or whose ceiling it was compared with."""
    for each in evidence.cells:
        if note := evidence.achieved(each).note:
            yield Finding(rule="ceiling_known", severity="note", about=each.key, message=f"roofline: {note}")


def steady(evidence: Evidence) -> Iterator[Finding]:
    """No stretch of a closed loop's window, or of that of a mixed run, ran at another level than the rest of it."""
    for each in evidence.cells:
        if each.record.scenario == "server":
            continue
        seen = each.window
        if seen is not None and seen.stretch is not None:
            told = seen.stretch.told(seen.blocks.edges_ns, "the throughput")
            message = f"not steady, so there is no interval: {told}"
            yield Finding(rule="steady", severity="warning", about=each.key, message=message)
        elif seen is None or seen.steady is None:
            message = f"too few feeds to tell whether it was steady: {FEWEST_BLOCKS} are needed"
            yield Finding(rule="steady", severity="note", about=each.key, message=message)
    for run in evidence.score.runs if evidence.score else ():
        if run.stretch is not None:
            told = run.stretch.told(np.array(run.edges_ns), "the mixes per second")
            message = f"not steady, so there is no interval: {told}"
            yield Finding(rule="steady", severity="warning", about=run.phase, message=message)


def interval_known(evidence: Evidence) -> Iterator[Finding]:
    """The interval of a steady window's throughput is known: its blocks are worth enough independent ones, and it is no
    wider than an interval may be."""
    for each in evidence.cells:
        if each.record.scenario == "server" or each.window is None or not each.window.steady or each.interval:
            continue
        rates = each.window.blocks.rates_per_s
        message = (
            f"the interval of the throughput is not known: the rate wanders so slowly that its {len(rates)} blocks are "
            f"worth {float(effective_sample_size(rates)):.1f} independent ones"
        )
        if float(effective_sample_size(rates)) >= FEWEST_INDEPENDENT:
            message = f"the interval of the throughput is not known: it is wider than ±{WIDEST * 100:g} %"
        yield Finding(rule="interval_known", severity="warning", about=each.key, message=message)


def precise(evidence: Evidence) -> Iterator[Finding]:
    """The half-width that was asked for was reached before the longest time was."""
    asked = {
        share.key: share.limits.half_width
        for phase in evidence.result.phases
        for task in phase.tasks
        for share in task.shares
    }
    for each in evidence.measured:
        half_width = asked.get(each.key)
        if each.record.ended_by != "cap" or half_width is None:
            continue
        interval = each.interval
        if interval is not None and interval.half_width > half_width:
            reached, wanted = (f"±{share * 100:.1f} %" for share in (interval.half_width, half_width))
            message = f"the longest time was reached at {reached} (asked for {wanted})"
            yield Finding(rule="precise", severity="note", about=each.key, message=message)


def latency_within_limits(evidence: Evidence) -> Iterator[Finding]:
    """A server at a given rate keeps the suite's latency limits."""
    for each in evidence.measured:
        limits = each.record.latency_limits
        if limits is None or each.record.rate_trials or each.record.scenario != "server":
            continue
        kept = within_limits(each.completions, limits)
        if kept is False:
            message = f"the latency limits are not kept at p{limits.percentile * 100:g}"
            yield Finding(rule="latency_within_limits", severity="warning", about=each.key, message=message)
        elif kept is None:
            needed = sample_needed(limits.percentile)
            message = f"whether the latency limits are kept is open: p{limits.percentile * 100:g} needs {needed} feeds"
            yield Finding(rule="latency_within_limits", severity="note", about=each.key, message=message)
