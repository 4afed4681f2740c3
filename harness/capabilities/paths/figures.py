"""Paths between memories: the time of a copy by its size, and the fitted pair of latency and bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from mixmark.harness.capabilities.paths.energy import WIDEST, CopyEnergy, of_path
from mixmark.harness.capabilities.paths.facts import DataPath, PathRecord, measured
from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.rules.integrity import last_level_bytes
from mixmark.harness.judge.statistics.intervals import sample_needed

CACHES = 4  # copies below so many times the last cache may stay in it, as STREAM asks of its arrays
SECOND = 1e9


@dataclass(frozen=True)
class CopyFigures:
    """Copies of one size."""

    size_bytes: int
    """The bytes of one copy."""
    memory: Literal["memory", "cache"] | None
    """`cache`: the copies are smaller than four times the last cache, so they may not reach memory. None if the size of
    that cache is not known."""
    seconds: Estimate
    """The time of one copy."""
    bytes_per_s: float
    """Bytes over the time of one copy."""


@dataclass(frozen=True)
class PathFigures:
    """A path: the time of n bytes is latency_s + n / bytes_per_s."""

    path: DataPath
    """The path and its two memories."""
    own_code: bool
    """Whether a plugin of another package copied and returned the bytes that were compared. The times are as it says
    then, and no joules are known."""
    sizes: tuple[CopyFigures, ...]
    """Empty if a copy was wrong. A size whose times scatter by more than a factor of ten is left out."""
    latency_s: Estimate | None = None
    """The part of a copy's time that does not depend on its size, from the two smallest sizes."""
    bytes_per_s: Estimate | None = None
    """The bandwidth, from all sizes that reach memory."""
    reason: Reason | None = None
    """Why the pair is not known, or one of the two."""
    energy: CopyEnergy | None = None
    """The joules of a byte. None if they are not known."""
    energy_reason: Reason | None = None
    """Why the joules of a byte are not known."""


def figures(judged: Assessment) -> tuple[PathFigures, ...] | None:
    """The figures of each measured path. None if none was measured."""
    return paths(judged.result) or None


def paths(result: Result) -> tuple[PathFigures, ...]:
    return tuple(_figures(record, result) for record in measured(result))


def _figures(record: PathRecord, result: Result) -> PathFigures:
    cache_bytes = last_level_bytes(result.system_of(host_of(record.path.source)).caches)
    times = {} if record.fault else _seconds(record)
    sizes = tuple(_of_size(record, size, times[size], cache_bytes) for size in sorted(times))
    energy, why = of_path(result, record)
    found = PathFigures(record.path, record.own_code, sizes, energy=energy, energy_reason=why)
    if record.fault:
        return replace(found, reason="its copies were wrong")
    small = [each.size_bytes for each in sizes[:2]]
    large = [each.size_bytes for each in sizes if each.memory == "memory"]
    if len(small) < 2 or not large:
        why = "no copy was four times as large as the last cache" if cache_bytes else "the last cache's size is unknown"
        why = why if len(small) == 2 else "fewer than two sizes"
        return replace(found, reason=record.failure.message if record.failure else why)
    pairs = [_pair(round, small, large) for round in _rounds(times)]
    latency, bandwidth = _middle([each for each, _ in pairs]), _middle([1 / slope for _, slope in pairs if slope > 0])
    found = replace(found, latency_s=latency, bytes_per_s=bandwidth)
    if latency is None or bandwidth is None:
        return replace(found, reason=f"no {'bandwidth' if latency else 'latency'} follows from the times of its copies")
    return found


def _seconds(record: PathRecord) -> dict[int, list[float]]:
    """The times of one copy by size, in their order, without the median time of the call alone. A size whose time is
    not known is left out."""
    calls, found = defaultdict[int, list[int]](list), defaultdict[int, list[float]](list)
    for sample in record.samples:
        if not sample.copies:
            calls[sample.size_bytes].append(sample.ns)
    for sample in record.samples:
        if sample.copies:
            call_ns = median(calls[sample.size_bytes] or [0])
            found[sample.size_bytes].append((sample.ns - call_ns) / sample.copies / SECOND)
    return {size: times for size, times in found.items() if _middle(times)}


def _of_size(record: PathRecord, size: int, times: Sequence[float], cache_bytes: int | None) -> CopyFigures:
    memory: Literal["memory", "cache"] | None = "memory"
    if record.path.through_caches:
        memory = None if cache_bytes is None else "memory" if size >= CACHES * cache_bytes else "cache"
    seconds = _middle(times)
    assert seconds  # `_seconds` leaves out a size that has none
    return CopyFigures(size, memory, seconds, size / seconds.estimate)


def _middle(values: Sequence[float]) -> Estimate | None:
    """The median, and of six values or more the interval of at least 95 % from the smallest to the largest: what
    disturbs a copy only makes it longer, so a mean would follow the disturbance. None if the values say nothing."""
    found = Estimate(median(values), min(values), max(values)) if values else None
    if found is None or found.is_vague(WIDEST):
        return None
    return found if len(values) >= sample_needed(0.5) else Estimate(found.estimate)


def _rounds(times: dict[int, list[float]]) -> list[dict[int, float]]:
    """The first sample of each size, the second of each size and so on: they are independent of each other."""
    return [dict(zip(times, round, strict=True)) for round in zip(*times.values(), strict=False)]


def _pair(seconds: dict[int, float], small: Sequence[int], large: Sequence[int]) -> tuple[float, float]:
    """The latency in seconds, and the seconds a byte: the line through the two smallest sizes, and then the slope
    with the least squares of relative errors at the large sizes."""
    first, second = small
    latency = seconds[first] - first * (seconds[second] - seconds[first]) / (second - first)
    shares = [(size / seconds[size], 1 - latency / seconds[size]) for size in large]
    return latency, sum(a * b for a, b in shares) / sum(a * a for a, _ in shares)
