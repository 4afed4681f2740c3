"""The fraction of the roofline that a record reached, by the ceilings that the probes of the run measured.

Williams et al., Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mixmark.harness.contracts.device_ids import is_covered
from mixmark.harness.contracts.schema import Device, Int64s, Record, Route
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.statistics.timestamps import Floats, in_flight_ns, steps_begin_ns
from mixmark.harness.plan.bound import each_once

STAND_IN = "torch"  # the built-in adapter whose probe replaces a missing one of the device's own adapter
WITNESSES = ("torch", "onnxruntime", "openvino")  # the built-in adapters, whose names no plugin may have
CeilingKey = tuple[str, str, str]
"""Device, adapter, precision."""


@dataclass(frozen=True)
class Ceiling:
    """The best rates that a probe reached on a device, and the kernels that did. None if no kernel measures it."""

    device: str
    adapter: str
    precision: str
    flops_per_s: float | None = None
    """Floating-point operations per second."""
    flops_kernel: str | None = None
    """The kernel of the probe that reached them."""
    bytes_per_s: float | None = None
    """Bytes read from memory per second."""
    bytes_kernel: str | None = None
    """The kernel of the probe that reached them."""


@dataclass(frozen=True)
class Achieved:
    """The fraction of the roofline that was reached."""

    fraction: float | None
    note: Reason | None = None
    """Why the fraction is unknown, or which other adapter's ceiling was used."""


@dataclass(frozen=True)
class PeakRates:
    """The highest rates of a device that probes proved. No honest record exceeds them."""

    flops_per_s: Mapping[tuple[str, str], float]
    """The FLOPs per second of each device in each precision."""
    bytes_per_s: Mapping[str, float]
    """The bytes per second of each device; the precision does not matter."""


def ceilings(records: Iterable[Record], devices: Sequence[Device] = ()) -> dict[CeilingKey, Ceiling]:
    """The ceiling of every (device, adapter, precision) that was probed: the best over all its probe records whose
    audit passed. A probe below 16 bits streams nothing and has the bytes of the device's best one. A group without a
    probe has the sum over its parts if the adapter probed them all."""
    best: dict[CeilingKey, Ceiling] = {}
    for record in records:
        for name, flops_per_s, bytes_per_s, _ in _probed(record):
            key = (record.route.device, record.route.adapter, record.route.precision)
            top = best.get(key, Ceiling(*key))
            if flops_per_s > (top.flops_per_s or 0):
                top = replace(top, flops_per_s=flops_per_s, flops_kernel=name)
            if bytes_per_s > (top.bytes_per_s or 0):
                top = replace(top, bytes_per_s=bytes_per_s, bytes_kernel=name)
            best[key] = top
    streams: dict[str, Ceiling] = {}
    for top in best.values():
        fastest = streams.get(top.device)
        if top.bytes_per_s and (fastest is None or top.bytes_per_s > (fastest.bytes_per_s or 0)):
            streams[top.device] = top
    for probed, top in best.items():
        if not top.bytes_per_s and (fastest := streams.get(top.device)):
            best[probed] = replace(top, bytes_per_s=fastest.bytes_per_s, bytes_kernel=fastest.bytes_kernel)
    for adapter, precision in {(adapter, precision) for _, adapter, precision in best}:
        known = {id: top for (id, *target), top in best.items() if target == [adapter, precision]}
        for group in devices:
            if group.id not in known and (members := _members(group, devices, known)):
                flops, moved = [known[id].flops_per_s for id in members], [known[id].bytes_per_s for id in members]
                whole = (group.id, adapter, precision)
                best[whole] = Ceiling(*whole, _sum(flops), "all parts", _sum(moved), "all parts")
    return best


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _members(group: Device, devices: Sequence[Device], known: Container[str]) -> list[str]:
    """The ids of the known devices that together are the silicon of a group. Empty if they are not all of it."""
    inside = [
        device
        for device in devices
        if device.id in known and all(is_covered(name, group.silicon) for name in device.silicon)
    ]
    members = each_once(inside)
    held = {name for device in members for name in device.silicon}
    return [device.id for device in members] if all(is_covered(name, held) for name in group.silicon) else []


def peak_rates(
    records: Iterable[Record], built_in: Callable[[Route], bool], devices: Sequence[Device] = ()
) -> PeakRates:
    """The best rates of the built-in adapters' probes of a device; without one, the best of any other adapter's.

    built_in: whether a route's adapter was built in: under a built-in name, another interpreter may run anything.

    An adapter that wants to look fast wants a high ceiling, so its own probe counts only if no built-in adapter probed
    the device. Which of these reads memory faster depends on the processor: with AMX, ONNX Runtime in fp32 read 1.4
    times as fast as torch in bf16. The bytes of all but torch count only for kernels whose outputs prove that they
    streamed (`Cost.streamed_bytes`).
    """
    witnesses: list[Record] = []
    others: list[Record] = []
    for record in records:
        witness = record.route.adapter in WITNESSES and built_in(record.route)
        (witnesses if witness else others).append(record)
    known, claimed = _peaks(witnesses, devices, STAND_IN), _peaks(others, devices)
    return PeakRates({**claimed.flops_per_s, **known.flops_per_s}, {**claimed.bytes_per_s, **known.bytes_per_s})


def _peaks(records: Sequence[Record], devices: Sequence[Device], trusted: str = "") -> PeakRates:
    """The best rates of these probes. A group that was not probed reaches no more than its parts together. trusted: the
    adapter whose bytes all count."""
    flops: dict[str, dict[str, float]] = defaultdict(dict)  # by precision and device
    moved: dict[str, float] = {}
    for record in records:
        device, precision = record.route.device, record.route.precision
        for _, flops_per_s, bytes_per_s, streamed_per_s in _probed(record):
            if flops_per_s:
                flops[precision][device] = max(flops[precision].get(device, 0.0), flops_per_s)
            if proved := bytes_per_s if record.route.adapter == trusted else streamed_per_s:
                moved[device] = max(moved.get(device, 0.0), proved)
    for group in devices:
        for rates in (*flops.values(), moved):
            if group.id not in rates and (members := _members(group, devices, rates)):
                rates[group.id] = sum(rates[id] for id in members)
    by_key = {(device, precision): rate for precision, rates in flops.items() for device, rate in rates.items()}
    return PeakRates(by_key, moved)


def passes(record: Record) -> Iterator[tuple[str, Floats, Floats, Floats]]:
    """(kernel, flop/s, byte/s, streamed byte/s) of a probe record that passed its audit: [passes] each, in their order.

    A pass is all yields of a kernel in a feed, one after the other: a kernel yields each of several matrices that only
    together exceed the caches. The work of all feeds in flight during a pass counts, because the ceiling belongs to the
    device and not to one issue thread.
    """
    completions = record.completions
    if record.scenario != "probe" or completions is None or _mismatch(record):
        return
    if record.audit is None or not record.audit.passed:
        return
    last = np.cumsum([cost.yields for cost in record.costs]) - 1
    first = np.concatenate(([0], last[:-1] + 1))
    feeds = len(completions)
    begins = steps_begin_ns(completions).reshape(feeds, -1)[:, first]
    ends = completions.yielded_ns.reshape(feeds, -1)[:, last]
    work = (
        [cost.flops * cost.yields for cost in record.costs],
        [cost.bytes * cost.yields for cost in record.costs],
        [cost.streamed_bytes * cost.yields for cost in record.costs],
    )
    rates = [_per_s(record.concurrency, begins, ends, done) for done in work]
    for kernel, cost in enumerate(record.costs):
        timed = ends[:, kernel] > begins[:, kernel]
        if timed.any():
            own = (
                cost.flops > 0,
                cost.bytes > 0,
                cost.streamed_bytes > 0,
            )  # a kernel raises only ceilings of its own work
            flops, moved, streamed = (rate[timed, kernel] * has for rate, has in zip(rates, own, strict=True))
            yield cost.name, flops, moved, streamed


def _probed(record: Record) -> Iterator[tuple[str, float, float, float]]:
    """(kernel, flop/s, byte/s, streamed byte/s) of the fastest pass of each kernel of a probe record. 0: the kernel
    does none of that work."""
    for kernel, *rates in passes(record):
        flops, moved, streamed = (float(rate.max()) for rate in rates)
        yield kernel, flops, moved, streamed


def _per_s(concurrency: int, begins: Int64s, ends: Int64s, work: Sequence[float]) -> Floats:
    """[feeds, kernels]: the work per second of all feeds together while each step ran; 0 for a step without length.

    begins, ends: [feeds, kernels] in ns. work: of each kernel. A step's work is spread evenly over its time.
    """
    took = np.maximum(ends - begins, 1)
    done = np.broadcast_to(np.array(work, np.float64), took.shape)
    if concurrency > 1:
        rates = (done / took).ravel()
        shared = done.copy()
        for feed, (row_begins, row_ends) in enumerate(zip(begins, ends, strict=True)):
            for step, (begin, end) in enumerate(zip(row_begins, row_ends, strict=True)):
                overlap = np.minimum(ends, end) - np.maximum(begins, begin)
                overlap[feed] = 0  # a feed's own steps follow one another
                shared[feed, step] += float(np.maximum(overlap, 0).ravel() @ rates)
        done = shared
    return np.where(ends > begins, done * 1e9 / took, 0.0)


def _mismatch(record: Record) -> Reason | None:
    """Why the record's costs do not describe its marks."""
    if record.completions is None:
        return "nothing was measured"
    if not record.costs:
        return "the suite has no cost model"
    modelled = sum(cost.yields for cost in record.costs)
    yielded = record.completions.ends - record.completions.starts
    if (yielded != modelled).any():
        return f"the cost model has {modelled} yields a feed, the record {yielded.min()} to {yielded.max()}"
    return None


def achieved(record: Record, known: Mapping[CeilingKey, Ceiling]) -> Achieved:
    """Σ over yields of max(flops / F, bytes / B), divided by the time that feeds were in flight.

    F in FLOP/s and B in byte/s are the record's ceiling in `known`, as `ceilings` gives them.
    """
    if reason := _mismatch(record):
        return Achieved(None, reason)
    assert record.completions is not None  # _mismatch said so
    route = record.route
    ceiling, note = known.get((route.device, route.adapter, route.precision)), None
    if ceiling is None:
        ceiling, note = known.get((route.device, STAND_IN, route.precision)), f"ceiling from adapter {STAND_IN}"
    if ceiling is None:
        return Achieved(None, f"{route.device} was not probed in {route.precision}")
    least_s = 0.0
    for cost in record.costs:
        if (cost.flops and not ceiling.flops_per_s) or (cost.bytes and not ceiling.bytes_per_s):
            return Achieved(None, f"the probe of {route.device} in {route.precision} lacks flop/s or byte/s")
        compute_s = cost.flops / ceiling.flops_per_s if ceiling.flops_per_s else 0.0
        memory_s = cost.bytes / ceiling.bytes_per_s if ceiling.bytes_per_s else 0.0
        least_s += cost.yields * max(compute_s, memory_s)
    took_ns = in_flight_ns(record.completions)
    if not took_ns:
        return Achieved(None, "the clock did not tick")
    return Achieved(least_s * len(record.completions) * 1e9 / took_ns, note)
