"""What a host calls its own, as the run calls it, and back; and its stamps, on the run's clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mixmark.harness.contracts.device_ids import host_of, local, on
from mixmark.harness.contracts.schema import (
    Absent,
    Clock,
    Completions,
    Conditions,
    Device,
    Domain,
    Int64s,
    Metering,
    Phase,
    Placement,
    Record,
    Samples,
    Task,
)
from mixmark.harness.measure.cluster import clocks


def device_on(host: str, device: Device) -> Device:
    return device.model_copy(
        update={
            "id": on(host, device.id),
            "parts": tuple(on(host, part) for part in device.parts),
            "memory_pool": on(host, device.memory_pool),
            "slice_of": None if device.slice_of is None else on(host, device.slice_of),
        }
    )


def absent_on(host: str, absent: Absent) -> Absent:
    covers = tuple(on(host, each) for each in absent.covers)
    return absent.model_copy(update={"name": on(host, absent.name), "covers": covers})


def domain_on(host: str, domain: Domain, neighbours: Sequence[str]) -> Domain:
    """neighbours: the other hosts of the run that are agents on the same machine. What is read there is theirs too."""
    parent = None if domain.parent is None else on(host, domain.parent)
    covers = tuple(on(each, part) for each in (host, *neighbours) for part in domain.covers)
    return domain.model_copy(update={"id": on(host, domain.id), "covers": covers, "parent": parent})


def phase_of(host: str, phase: Phase) -> Phase:
    """The tasks of a phase that a host does, as the host calls them. Of a plan only the rates are its business."""
    tasks = tuple(
        Task(
            device=local(task.device),
            shares=tuple(
                share.model_copy(update={"route": share.route.model_copy(update={"device": local(task.device)})})
                for share in task.shares
            ),
        )
        for task in phase.tasks
        if host_of(task.device) == host
    )
    return phase.model_copy(update={"tasks": tasks, "placement": phase.placement and _rates_of(host, phase.placement)})


def _rates_of(host: str, placement: Placement) -> Placement:
    rates = tuple(
        rate.model_copy(update={"device": local(rate.device)})
        for rate in placement.rates
        if host_of(rate.device) == host
    )
    others = ("shares", "bound_fractions", "suite_prices", "device_prices", "pool_bytes", "idle_watts")
    return placement.model_copy(update={"rates": rates, **{name: {} for name in others}})


def record_on(host: str, record: Record, clock: Clock) -> Record:
    """A record of a host's agent, with its names and stamps as the run has them."""
    bracket_ns = record.bracket_ns and (
        clocks.ours_ns(clock, record.bracket_ns[0]),
        clocks.ours_ns(clock, record.bracket_ns[1]),
    )
    return record.model_copy(
        update={
            "route": record.route.model_copy(update={"device": on(host, record.route.device)}),
            "bracket_ns": bracket_ns,
            "conditions": tuple(_conditions_on(host, each, clock) for each in record.conditions),
            "unwatched": tuple(absent_on(host, each) for each in record.unwatched),
            "completions": record.completions and _completions(record.completions, clock),
        }
    )


def _conditions_on(host: str, conditions: Conditions, clock: Clock) -> Conditions:
    accelerators = tuple(each.model_copy(update={"id": on(host, each.id)}) for each in conditions.accelerators)
    return conditions.model_copy(
        update={
            "begin_ns": clocks.ours_ns(clock, conditions.begin_ns),
            "end_ns": clocks.ours_ns(clock, conditions.end_ns),
            "accelerators": accelerators,
        }
    )


def _completions(done: Completions, clock: Clock) -> Completions:
    due, issued, marks = (_moved(each, clock) for each in (done.due_ns, done.issued_ns, done.marks_ns))
    return Completions(due, issued, done.ends, marks, done.units)


def _moved(stamps_ns: Int64s, clock: Clock) -> Int64s:
    """`clocks.ours_ns` of many stamps. What is rounded is the drift alone, so no stamp is rounded as a float."""
    since = stamps_ns - (clock.offset_ns + clock.at_ns)
    drifted: Int64s = np.rint(since * (clock.drift / (1 + clock.drift))).astype(np.int64)
    return clock.at_ns + since - drifted


def metering_on(host: str, metering: Metering, clock: Clock) -> Metering:
    def samples_on(samples: Samples) -> Samples:
        return Samples(_moved(samples.before_ns, clock), _moved(samples.after_ns, clock), samples.values)

    return metering.model_copy(
        update={
            "begin_ns": clocks.ours_ns(clock, metering.begin_ns),
            "end_ns": clocks.ours_ns(clock, metering.end_ns),
            "idle_ns": tuple((clocks.ours_ns(clock, a), clocks.ours_ns(clock, b)) for a, b in metering.idle_ns),
            "samples": {on(host, id): samples_on(each) for id, each in metering.samples.items()},
            "lost": {on(host, id): why for id, why in metering.lost.items()},
            "late_ns": {on(host, id): late_ns for id, late_ns in metering.late_ns.items()},
        }
    )


def merged(meterings: Sequence[Metering]) -> Metering | None:
    """What the meters of all hosts read in a phase: all were read when the last one began, and idle at the same time
    while every host was. None where there is no metering."""
    if not meterings:
        return None

    def joined(tables: Sequence[Mapping[str, object]]) -> dict[str, object]:
        return {id: each for table in tables for id, each in table.items()}

    idle_ns = [
        (max(begin_ns for begin_ns, _ in several), min(end_ns for _, end_ns in several))
        for several in zip(*(each.idle_ns for each in meterings), strict=False)
    ]
    return meterings[0].model_copy(
        update={
            "begin_ns": min(each.begin_ns for each in meterings),
            "end_ns": max(each.end_ns for each in meterings),
            "cpu_ns": sum(each.cpu_ns for each in meterings),
            "idle_ns": tuple((begin_ns, end_ns) for begin_ns, end_ns in idle_ns if begin_ns < end_ns),
            "samples": joined([each.samples for each in meterings]),
            "lost": joined([each.lost for each in meterings]),
            "late_ns": joined([each.late_ns for each in meterings]),
        }
    )
