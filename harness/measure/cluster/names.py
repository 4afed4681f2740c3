"""Translates ids and timestamps between a host's own names and clock and the run's. Pure."""

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
    covers = tuple(on(host, device) for device in absent.covers)
    return absent.model_copy(update={"name": on(host, absent.name), "covers": covers})


def domain_on(host: str, domain: Domain, neighbours: Sequence[str]) -> Domain:
    """neighbours: the other hosts of the run on the same machine, whose devices the domain covers too."""
    parent = None if domain.parent is None else on(host, domain.parent)
    covers = tuple(on(name, device) for name in (host, *neighbours) for device in domain.covers)
    return domain.model_copy(update={"id": on(host, domain.id), "covers": covers, "parent": parent})


def phase_of(host: str, phase: Phase) -> Phase:
    """A host's part of a phase, with the host's own names. Of the placement it gets only its rates."""
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
    emptied = ("fractions", "bound_fractions", "suite_prices", "device_prices", "pool_bytes", "idle_watts")
    return placement.model_copy(update={"rates": rates, **{name: {} for name in emptied}})


def record_on(host: str, record: Record, clock: Clock) -> Record:
    """A record from a host's agent, with the run's names and clock."""
    parent_window_ns = record.parent_window_ns and (
        clocks.ours_ns(clock, record.parent_window_ns[0]),
        clocks.ours_ns(clock, record.parent_window_ns[1]),
    )
    return record.model_copy(
        update={
            "route": record.route.model_copy(update={"device": on(host, record.route.device)}),
            "parent_window_ns": parent_window_ns,
            "conditions": tuple(_conditions_on(host, conditions, clock) for conditions in record.conditions),
            "failed_watchers": tuple(absent_on(host, absent) for absent in record.failed_watchers),
            "completions": record.completions and _completions(record.completions, clock),
        }
    )


def _conditions_on(host: str, conditions: Conditions, clock: Clock) -> Conditions:
    accelerators = tuple(
        accelerator.model_copy(update={"id": on(host, accelerator.id)}) for accelerator in conditions.accelerators
    )
    return conditions.model_copy(
        update={
            "begin_ns": clocks.ours_ns(clock, conditions.begin_ns),
            "end_ns": clocks.ours_ns(clock, conditions.end_ns),
            "accelerators": accelerators,
        }
    )


def _completions(done: Completions, clock: Clock) -> Completions:
    due, issued, yields = (_moved(column, clock) for column in (done.due_ns, done.issued_ns, done.yielded_ns))
    return Completions(due, issued, done.ends, yields, done.units)


def _moved(stamps_ns: Int64s, clock: Clock) -> Int64s:
    """`clocks.ours_ns` of many timestamps. Only the drift is a float, so that no timestamp is rounded as one."""
    since = stamps_ns - (clock.offset_ns + clock.at_ns)
    drifted: Int64s = np.rint(since * (clock.drift / (1 + clock.drift))).astype(np.int64)
    return clock.at_ns + since - drifted


def metering_on(host: str, metering: Metering, clock: Clock) -> Metering:
    """A metering from a host's agent, with the run's names and clock."""

    def samples_on(samples: Samples) -> Samples:
        return Samples(_moved(samples.before_ns, clock), _moved(samples.after_ns, clock), samples.values)

    return metering.model_copy(
        update={
            "begin_ns": clocks.ours_ns(clock, metering.begin_ns),
            "end_ns": clocks.ours_ns(clock, metering.end_ns),
            "idle_ns": tuple((clocks.ours_ns(clock, a), clocks.ours_ns(clock, b)) for a, b in metering.idle_ns),
            "samples": {on(host, id): samples_on(samples) for id, samples in metering.samples.items()},
            "lost": {on(host, id): why for id, why in metering.lost.items()},
            "reading_age_ns": {on(host, id): reading_age_ns for id, reading_age_ns in metering.reading_age_ns.items()},
        }
    )


def merged(meterings: Sequence[Metering]) -> Metering | None:
    """One metering of all hosts; None without any. It is idle while every host was idle."""
    if not meterings:
        return None

    def joined(tables: Sequence[Mapping[str, object]]) -> dict[str, object]:
        return {id: value for table in tables for id, value in table.items()}

    idle_ns = [
        (max(begin_ns for begin_ns, _ in spans), min(end_ns for _, end_ns in spans))
        for spans in zip(*(metering.idle_ns for metering in meterings), strict=False)
    ]
    return meterings[0].model_copy(
        update={
            "begin_ns": min(metering.begin_ns for metering in meterings),
            "end_ns": max(metering.end_ns for metering in meterings),
            "cpu_ns": sum(metering.cpu_ns for metering in meterings),
            "idle_ns": tuple((begin_ns, end_ns) for begin_ns, end_ns in idle_ns if begin_ns < end_ns),
            "samples": joined([metering.samples for metering in meterings]),
            "lost": joined([metering.lost for metering in meterings]),
            "reading_age_ns": joined([metering.reading_age_ns for metering in meterings]),
        }
    )
