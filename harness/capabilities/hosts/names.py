"""Translates ids and timestamps between a host's own names and clock and the run's. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from mixmark.harness.capabilities.hosts import clocks
from mixmark.harness.capabilities.hosts.dispatcher import Tally
from mixmark.harness.contracts.device_ids import host_of, local, on
from mixmark.harness.contracts.schema import (
    Absent,
    AcceleratorConditions,
    Clock,
    Completions,
    Conditions,
    Device,
    Domain,
    Int64s,
    Metering,
    Phase,
    Rate,
    Record,
    Route,
    Samples,
    Task,
)
from mixmark.harness.measure.mixed import LoadedSuites

IDS: Mapping[type, tuple[str, ...]] = {
    Device: ("id", "parts", "memory_pool", "slice_of"),
    Domain: ("id", "covers", "parent"),
    Absent: ("name", "covers"),
    **dict.fromkeys((Route, Task, Rate), ("device",)),
    AcceleratorConditions: ("id",),
    Metering: ("samples", "lost", "reading_age_ns"),
    LoadedSuites: ("quanta", "concurrency"),
    Tally: ("paces", "unfinished_s"),
}
"""The fields that hold an id, several ids, or a mapping by id or by suite and id. A fact of an experiment names its
own."""
TIMESTAMPS: Mapping[type, tuple[str, ...]] = {
    Record: ("parent_window_ns",),
    Completions: ("due_ns", "issued_ns", "yielded_ns"),
    Conditions: ("begin_ns", "end_ns"),
    Metering: ("begin_ns", "end_ns", "idle_ns"),
    Samples: ("before_ns", "after_ns"),
}
"""The fields that hold a timestamp, several timestamps, or a column of them."""
PLANS = ("fractions", "bound_fractions", "suite_prices", "device_prices", "pool_bytes", "idle_watts")
"""The fields of a placement that only the leading process uses."""

Value = TypeVar("Value")


def to_run(host: str, value: Value, clock: Clock | None = None) -> Value:
    """A fact of a host with the run's names, and with the run's timestamps if the host's clock is given."""
    move = partial(_ours, clock) if clock else None
    translated: Value = _translated(value, partial(on, host), move)
    return translated


def to_host(value: Value) -> Value:
    """A fact of the run with the names that its host uses."""
    translated: Value = _translated(value, local)
    return translated


def phase_of(host: str, phase: Phase) -> Phase:
    """A host's part of a phase, with the host's own names. Of the placement it gets only its rates."""
    tasks = tuple(task for task in phase.tasks if host_of(task.device) == host)
    placement = phase.placement
    if placement is not None:
        rates = tuple(rate for rate in placement.rates if host_of(rate.device) == host)
        placement = placement.model_copy(update={"rates": rates, **{name: {} for name in PLANS}})
    return to_host(phase.model_copy(update={"tasks": tasks, "placement": placement}))


def merged(meterings: Sequence[Metering]) -> Metering | None:
    """One metering of all hosts; None without any. It is idle while every host was idle."""
    if not meterings:
        return None

    def joined(name: str) -> dict[str, Any]:
        return {id: value for metering in meterings for id, value in getattr(metering, name).items()}

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
            **{name: joined(name) for name in ("samples", "lost", "reading_age_ns")},
        }
    )


def _translated(value: Any, rename: Callable[[str], str], move: Callable[[Any], Any] | None = None) -> Any:
    """Copies a fact, with everything inside."""
    if isinstance(value, tuple):
        return tuple(_translated(item, rename, move) for item in value)
    if isinstance(value, Mapping):
        return {key: _translated(item, rename, move) for key, item in value.items()}
    kind = type(value)
    if isinstance(value, BaseModel):
        fields = list(kind.model_fields)
    elif dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
    else:
        return value
    changed = {name: _translated(getattr(value, name), rename, move) for name in fields}
    changed |= {name: _each(changed[name], rename) for name in IDS.get(kind, getattr(kind, "ids", ()))}
    if move is not None:
        changed |= {name: _each(changed[name], move) for name in TIMESTAMPS.get(kind, ())}
    return value.model_copy(update=changed) if isinstance(value, BaseModel) else kind(**changed)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Changes a value, the items of a tuple, or the keys of a mapping: of a pair the device; None stays."""
    if isinstance(value, tuple):
        return tuple(_each(item, change) for item in value)
    if isinstance(value, Mapping):
        return {
            (key[0], change(key[1])) if isinstance(key, tuple) else change(key): item for key, item in value.items()
        }
    return None if value is None else change(value)


def _ours(clock: Clock, time: int | Int64s) -> int | Int64s:
    """`clocks.ours_ns`, also of a column. Only the drift is a float, so that no timestamp is rounded as one."""
    if isinstance(time, int):
        return clocks.ours_ns(clock, time)
    since = time - (clock.offset_ns + clock.at_ns)
    drifted: Int64s = np.rint(since * (clock.drift / (1 + clock.drift))).astype(np.int64)
    return clock.at_ns + since - drifted
