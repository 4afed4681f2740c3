"""Paths between memories: the time of a copy by its size, and the fitted pair of latency and bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from mixmark.harness.capabilities.paths.energy import WIDEST, CopyEnergy, of_path
from mixmark.harness.capabilities.paths.facts import DataPath, PathRecord, measured, moved
from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Finding, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.findings import words_of_all
from mixmark.harness.judge.mixed_run import run_of
from mixmark.harness.judge.rules.integrity import last_level_bytes
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo, best
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
    call_s: float | None
    """The time of the call without a copy, which `seconds` leaves out. None if calls were not timed alone."""


@dataclass(frozen=True)
class PredictedMove:
    """How long a path takes for what a suite moves, by its latency and bandwidth."""

    suite: str
    what: str
    """`weights`, a KV cache, embeddings or a batch of inputs."""
    size_bytes: int
    """Its bytes, from the suite's shapes."""
    predicted_s: Estimate
    """The time of one copy of them."""


@dataclass(frozen=True)
class PathCeiling:
    """The rate of a suite that a path to its device allows, if each input takes that path and waits for no other."""

    suite: str
    device: str
    units_per_s: float
    """The rate on the device alone, as it was measured."""
    ceiling_per_s: float
    """Units a second by the predicted time of the inputs."""
    fraction: float
    """The measured rate over the ceiling. The path would limit the suite from 1 on."""


@dataclass(frozen=True)
class PathFigures:
    """A path: the time of n bytes is latency_s + n / bytes_per_s."""

    path: DataPath
    """The path and its two memories."""
    opposing: str | None
    """The path on which another process copied the other way all the time. None if nothing did."""
    beside: str | None
    """The phase of the mix that ran meanwhile. None if it did not run."""
    own_code: bool
    """Whether a plugin of another package copied and returned the bytes that were compared. The times are as it says
    then: no suite has a prediction or a ceiling by them, and no joules are known."""
    sizes: tuple[CopyFigures, ...]
    """Empty if a copy was wrong. A size whose times scatter by more than a factor of ten is left out."""
    latency_s: Estimate | None = None
    """The part of a copy's time that does not depend on its size, from the two smallest sizes. Not known if something
    else ran."""
    bytes_per_s: Estimate | None = None
    """The bandwidth, from all sizes that reach memory; beside an opposing path or the mix the rate of the one size."""
    reason: Reason | None = None
    """Why the pair is not known, or one of the two."""
    left: Estimate | None = None
    """What an opposing path or the mix leaves of the path: the rate over the rate of copies of the same size alone.
    None if either is not known, or nothing else ran."""
    mix_left: Estimate | None = None
    """What the copies leave of the mix: its rate over the rate of the mixed runs. None if either is not known, or the
    mix did not run."""
    mix_reason: Reason | None = None
    """Why the rate of the mix beside the copies is not known."""
    energy: CopyEnergy | None = None
    """The joules of a byte. None if they are not known, or something else ran."""
    energy_reason: Reason | None = None
    """Why the joules of a byte are not known."""
    moves: tuple[PredictedMove, ...] = ()
    """Empty if the pair is not known."""
    ceilings: tuple[PathCeiling, ...] = ()
    """One for each suite that ran alone on the device to whose memory the path leads, and whose inputs have a fixed
    size."""


def paths(
    result: Result, solos: Iterable[Solo] = (), score: Score | None = None, doubts: Sequence[Finding] = ()
) -> tuple[PathFigures, ...]:
    """The figures of each measured path.

    solos: what the suites reached alone. score: of the mixed runs. doubts: the findings of the integrity rules.
    """
    fastest = best(solos, lambda solo: (solo.route.suite, solo.route.device))
    rates = {pair: solo.speed for pair, solo in fastest.items()}
    records = {record.key: record for record in measured(result)}  # a phase that was resumed has copies twice
    found = {key: _figures(record, result) for key, record in records.items()}
    for key, record in records.items():
        if record.alone:
            energy, why = of_path(result, record)
            ceilings = tuple(_ceilings(found[key], result, rates))
            found[key] = replace(found[key], energy=energy, energy_reason=why, ceilings=ceilings)
        else:
            found[key] = replace(found[key], left=_left(found[key], found.get(record.path.id)))
        if record.beside:
            mix, why = _mix_left(record, result, score, doubts)
            found[key] = replace(found[key], mix_left=mix, mix_reason=why)
    return tuple(found.values())


def _left(shared: PathFigures, alone: PathFigures | None) -> Estimate | None:
    before = {each.size_bytes: each.seconds for each in alone.sizes} if alone else {}
    for each in shared.sizes:
        if alone_s := before.get(each.size_bytes):
            (low, high), (least, most) = alone_s.ends, each.seconds.ends  # both from the smallest to the largest
            return _informative(Estimate(alone_s.estimate / each.seconds.estimate, low / most, high / least))
    return None


def _mix_left(
    record: PathRecord, result: Result, score: Score | None, doubts: Sequence[Finding]
) -> tuple[Estimate | None, Reason | None]:
    phase = next((each for each in result.phases if each.name == record.beside), None)
    if score is None or score.mixes_per_hour is None or phase is None:
        return None, "the mixed runs have no rate"
    if record.failure:
        return None, f"the copies ended: {record.failure.message}"
    if record.fault:
        return None, f"the copies ended: {record.fault.kind}"
    run = run_of(result, score.mix, phase, doubts)
    if run is None or run.problems:
        return None, words_of_all(run.problems) if run else "nothing was recorded"
    return run.mixes_per_hour.ratio(score.mixes_per_hour), None


def _ceilings(found: PathFigures, result: Result, rates: Mapping[tuple[str, str], float]) -> Iterator[PathCeiling]:
    units = {(move.suite, move.what): move.units for move in moved(result)}
    if found.path.converts:
        return
    for move in found.moves:
        for device in result.devices:
            rate = rates.get((move.suite, device.id))
            needed = units[move.suite, move.what]
            if rate and needed and found.path.destination in (device.id, device.memory_pool):
                most = needed / move.predicted_s.estimate
                yield PathCeiling(move.suite, device.id, rate, most, rate / most)


def _figures(record: PathRecord, result: Result) -> PathFigures:
    cache_bytes = last_level_bytes(result.system_of(host_of(record.path.source)).caches)
    times = {} if record.fault else _seconds(record)
    sizes = tuple(_of_size(record, size, times[size], cache_bytes) for size in sorted(times))
    found = PathFigures(record.path, record.opposing, record.beside, record.own_code, sizes)
    if record.fault:
        return replace(found, reason="its copies were wrong")
    small, large = (
        [each.size_bytes for each in sizes[:2]],
        [each.size_bytes for each in sizes if each.memory == "memory"],
    )
    if large and not record.alone:
        return replace(found, bytes_per_s=_inverse(sizes[-1]))
    if len(small) < 2 or not large:
        why = "no copy was four times as large as the last cache" if cache_bytes else "the last cache's size is unknown"
        why = why if len(sizes) >= 1 + record.alone else "fewer than two sizes"
        return replace(found, reason=record.failure.message if record.failure else why)
    pairs = [_pair(round, small, large) for round in _rounds(times)]
    latency, bandwidth = _middle([each for each, _ in pairs]), _middle([1 / slope for _, slope in pairs if slope > 0])
    found = replace(found, latency_s=latency, bytes_per_s=bandwidth)
    if latency is None or bandwidth is None:
        return replace(found, reason=f"no {'bandwidth' if latency else 'latency'} follows from the times of its copies")
    moves = tuple(
        PredictedMove(move.suite, move.what, move.size_bytes, predicted(move.size_bytes, latency, bandwidth))
        for move in moved(result)
        if not record.own_code
    )
    return replace(found, moves=moves)


def _inverse(of_size: CopyFigures) -> Estimate:
    """The rate of copies of a size in bytes per second, with the interval of their time."""
    low, high = of_size.seconds.low, of_size.seconds.high
    return Estimate(
        of_size.bytes_per_s, of_size.size_bytes / high if high else None, of_size.size_bytes / low if low else None
    )


def predicted(size_bytes: int, latency_s: Estimate, bytes_per_s: Estimate) -> Estimate:
    """The time of a copy in seconds, by the pair. Its interval is the pair's, both ends at once."""
    middle = latency_s.estimate + size_bytes / bytes_per_s.estimate
    if latency_s.low is None or latency_s.high is None or bytes_per_s.low is None or bytes_per_s.high is None:
        return Estimate(middle)
    return Estimate(
        middle, latency_s.low + size_bytes / bytes_per_s.high, latency_s.high + size_bytes / bytes_per_s.low
    )


def _seconds(record: PathRecord) -> dict[int, list[float]]:
    """The times of one copy by size, in their order, without the time of the call. A size whose time is not known is
    left out."""
    found: dict[int, list[float]] = defaultdict(list)
    call = _calls(record)
    for sample in record.samples:
        if sample.copies:
            found[sample.size_bytes].append((sample.ns - call.get(sample.size_bytes, 0)) / sample.copies / SECOND)
    return {size: times for size, times in found.items() if _middle(times)}


def _calls(record: PathRecord) -> dict[int, float]:
    """The median time of the call alone in nanoseconds, by size."""
    found: dict[int, list[int]] = defaultdict(list)
    for sample in record.samples:
        if not sample.copies:
            found[sample.size_bytes].append(sample.ns)
    return {size: median(times) for size, times in found.items()}


def _of_size(record: PathRecord, size: int, times: Sequence[float], cache_bytes: int | None) -> CopyFigures:
    memory: Literal["memory", "cache"] | None = "memory"
    if record.path.through_caches:
        memory = None if cache_bytes is None else "memory" if size >= CACHES * cache_bytes else "cache"
    seconds = _middle(times)
    assert seconds  # `_seconds` leaves out a size that has none
    call_ns = _calls(record).get(size)
    return CopyFigures(size, memory, seconds, size / seconds.estimate, None if call_ns is None else call_ns / SECOND)


def _middle(values: Sequence[float]) -> Estimate | None:
    """The median, and of six values or more the interval of at least 95 % from the smallest to the largest: what
    disturbs a copy only makes it longer, so a mean would follow the disturbance. None if the values say nothing."""
    found = _informative(Estimate(median(values), min(values), max(values))) if values else None
    return found if not found or len(values) >= sample_needed(0.5) else Estimate(found.estimate)


def _informative(figure: Estimate) -> Estimate | None:
    return None if figure.is_vague(WIDEST) else figure


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
