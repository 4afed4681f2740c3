"""The fraction of the roofline that a record reached, by the ceilings that the probes of the run measured.

Williams et al., Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from mixmark.harness.contracts.device_ids import is_covered
from mixmark.harness.contracts.schema import Device, Int64s, Record, Route
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.statistics.timestamps import Floats, in_flight_ns, steps_begin_ns
from mixmark.harness.plan.bound import each_once

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
    witnessed: bool = False
    """Whether the probe is of a built-in adapter. If not, it is the device's own ceiling: its adapter may gain from a
    probe that is too fast or too slow, so no figure is a fraction of it."""


@dataclass(frozen=True)
class Achieved:
    """The fraction of the roofline that was reached."""

    fraction: float | None
    note: Reason | None = None
    """Why the fraction is unknown."""
    typical: float | None = None
    """The fraction of the median pass of the kernels that set the ceiling."""


@dataclass(frozen=True)
class PeakRates:
    """The highest rates of a device by the probes of built-in adapters. No honest record exceeds them."""

    flops_per_s: Mapping[tuple[str, str], float]
    """The FLOPs per second of each device in each precision."""
    bytes_per_s: Mapping[str, float]
    """The bytes per second of each device; the precision does not matter."""

    def flops_of(self, route: Route) -> float:
        """The FLOPs per second of the route's device in its precision. 0 if they are not known."""
        return self.flops_per_s.get((route.device, route.precision), 0.0)

    def for_equals(self, equals: Mapping[str, Sequence[str]]) -> PeakRates:
        """With the peaks of devices that were not probed, by an equal one. equals: see `plan.equals`."""
        flops = {(id, bits): peak for (own, bits), peak in self.flops_per_s.items() for id in equals.get(own, ())}
        moved = {id: peak for own, peak in self.bytes_per_s.items() for id in equals.get(own, ())}
        return PeakRates({**flops, **self.flops_per_s}, {**moved, **self.bytes_per_s})


def ceilings(
    records: Iterable[Record], devices: Sequence[Device] = (), witnesses: Container[str] = ()
) -> dict[CeilingKey, Ceiling]:
    """The ceiling of every (device, adapter, precision) that was probed: the best over all its probe records whose
    audit passed. A group without a probe has the sum over its parts if the adapter probed them all.

    witnesses: the keys of the records by built-in adapters.
    """
    best: dict[CeilingKey, Ceiling] = {}
    for record in records:
        for name, flops_per_s, bytes_per_s in _probed(record):
            key = (record.route.device, record.route.adapter, record.route.precision)
            top = best.get(key, Ceiling(*key, witnessed=record.key in witnesses))
            if flops_per_s > (top.flops_per_s or 0):
                top = replace(top, flops_per_s=flops_per_s, flops_kernel=name)
            if bytes_per_s > (top.bytes_per_s or 0):
                top = replace(top, bytes_per_s=bytes_per_s, bytes_kernel=name)
            best[key] = top
    for adapter, precision in {(adapter, precision) for _, adapter, precision in best}:
        known = {id: top for (id, *target), top in best.items() if target == [adapter, precision]}
        for group in devices:
            if group.id not in known and (members := _members(group, devices, known)):
                flops, moved = [known[id].flops_per_s for id in members], [known[id].bytes_per_s for id in members]
                whole, seen = (group.id, adapter, precision), all(known[id].witnessed for id in members)
                best[whole] = Ceiling(*whole, _sum(flops), "all parts", _sum(moved), "all parts", seen)
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


def peak_rates(records: Iterable[Record], devices: Sequence[Device] = ()) -> tuple[PeakRates, PeakRates]:
    """The best rates of each device by the probes of built-in adapters, and the medians over the passes of the kernels
    that reached them. A group that was not probed reaches no more than its parts together. Which adapter reads memory
    faster depends on the processor: with AMX, ONNX Runtime in fp32 read 1.4 times as fast as torch in bf16."""
    seen: dict[tuple[str, str, str, str, str], list[Floats]] = defaultdict(list)
    for record in records:
        route = record.route
        for kernel, flops, moved in passes(record):
            for precision, rates in ((route.precision, flops), ("", moved)):  # bytes have no type
                if rates.any():
                    seen[route.device, precision, route.adapter, route.precision, kernel].append(rates)
    best: dict[tuple[str, str], Floats] = {}
    for (device, precision, *_), series in seen.items():
        passed = np.concatenate(series)
        if passed.max() > best.get((device, precision), np.zeros(1)).max():
            best[device, precision] = passed
    return _summed(best, devices, np.max), _summed(best, devices, np.median)


def _summed(
    passed: Mapping[tuple[str, str], Floats], devices: Sequence[Device], of: Callable[[Floats], np.float64]
) -> PeakRates:
    """One rate of the passes of each device and precision, and of the groups that were not probed."""
    rates = {key: float(of(each)) for key, each in passed.items()}
    for group in devices:
        for precision in {precision for _, precision in rates}:
            known = {device: rate for (device, own), rate in rates.items() if own == precision}
            if group.id not in known and (members := _members(group, devices, known)):
                rates[group.id, precision] = sum(known[id] for id in members)
    moved = {device: rate for (device, precision), rate in rates.items() if not precision}
    return PeakRates({key: rate for key, rate in rates.items() if key[1]}, moved)


def passes(record: Record) -> Iterator[tuple[str, Floats, Floats]]:
    """(kernel, flop/s, byte/s) of a probe record that passed its audit: [passes] each, in their order.

    A pass is all yields of a kernel in a feed, one after the other: a kernel yields each of several matrices that only
    together exceed the caches. The work of all feeds in flight during a pass counts, because the ceiling belongs to the
    device and not to one issue thread.
    """
    completions = record.completions
    if record.scenario != "probe" or completions is None or not record.audited or _mismatch(record):
        return
    last = np.cumsum([cost.yields for cost in record.costs]) - 1
    first = np.concatenate(([0], last[:-1] + 1))
    feeds = len(completions)
    begins = steps_begin_ns(completions).reshape(feeds, -1)[:, first]
    ends = completions.yielded_ns.reshape(feeds, -1)[:, last]
    work = [cost.flops * cost.yields for cost in record.costs], [cost.bytes * cost.yields for cost in record.costs]
    flops, moved = (_per_s(record.concurrency, begins, ends, done) for done in work)
    for kernel, cost in enumerate(record.costs):
        timed = ends[:, kernel] > begins[:, kernel]
        if timed.any():  # a kernel raises only ceilings of its own work
            yield cost.name, flops[timed, kernel] * (cost.flops > 0), moved[timed, kernel] * (cost.bytes > 0)


def _probed(record: Record) -> Iterator[tuple[str, float, float]]:
    """(kernel, flop/s, byte/s) of the fastest pass of each kernel of a probe record. 0: the kernel does none of that
    work."""
    for kernel, flops, moved in passes(record):
        yield kernel, float(flops.max()), float(moved.max())


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


def achieved(record: Record, best: PeakRates, typical: PeakRates) -> Achieved:
    """Σ over yields of max(flops / F, bytes / B), divided by the time that feeds were in flight.

    F in FLOP/s and B in byte/s are the ceiling of the record's device in its precision, whichever adapter reached it.
    """
    if reason := _mismatch(record):
        return Achieved(None, reason)
    assert record.completions is not None  # _mismatch said so
    took_ns, fractions = in_flight_ns(record.completions), []
    if not took_ns:
        return Achieved(None, "the clock did not tick")
    for peaks in (best, typical):
        flops_per_s, bytes_per_s = peaks.flops_of(record.route), peaks.bytes_per_s.get(record.route.device, 0.0)
        least_s = 0.0
        for cost in record.costs:
            if (cost.flops and not flops_per_s) or (cost.bytes and not bytes_per_s):
                where = f"{record.route.device} in {record.route.precision}"
                return Achieved(None, f"no undisturbed probe of a built-in adapter found the ceiling of {where}")
            compute_s = cost.flops / flops_per_s if flops_per_s else 0.0
            memory_s = cost.bytes / bytes_per_s if bytes_per_s else 0.0
            least_s += cost.yields * max(compute_s, memory_s)
        fractions.append(least_s * len(record.completions) * 1e9 / took_ns)
    return Achieved(fractions[0], typical=fractions[1])


def speed_drifts(records: Iterable[Record]) -> Iterator[tuple[CeilingKey, str, float, float]]:
    """(probe, unit of its figure, drift, scatter) of the kernels that set the ceilings.

    The drift is how far the highest median of a probe's passes lies above the lowest one, as a fraction. The fastest
    pass, which is the ceiling, is a matter of luck on a shared machine: once it moved by 35 % between two probes whose
    medians differ by 11 %. The scatter is the largest one of a single probe's passes: a smaller drift means nothing.
    """
    probed: dict[tuple[CeilingKey, str], list[tuple[float, ...]]] = defaultdict(list)
    for record in records:
        of_kernel = {kernel: (flops, moved) for kernel, flops, moved in passes(record)}
        for key, ceiling in ceilings([record]).items():
            if ceiling.flops_kernel in of_kernel:
                probed[key, "flop/s"].append(tuple(of_kernel[ceiling.flops_kernel][0].tolist()))
            if ceiling.bytes_kernel in of_kernel:  # a probe of few bits has the bytes of another one
                probed[key, "byte/s"].append(tuple(of_kernel[ceiling.bytes_kernel][1].tolist()))
    for (key, unit), probes in probed.items():
        medians = [median(rates) for rates in probes]
        yield key, unit, max(medians) / min(medians) - 1, max(spread(rates) for rates in probes)


def farthest(records: Iterable[Record]) -> float:
    """The largest drift of probes beyond the scatter of their passes. 0: there is none."""
    return max((drift for _, _, drift, scatter in speed_drifts(records) if drift > scatter), default=0.0)


def spread(times: Sequence[float]) -> float:
    """The distance between the quartiles, as a fraction of the median."""
    ordered, quarter = sorted(times), len(times) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(times)
