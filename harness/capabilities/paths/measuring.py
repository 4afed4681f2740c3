"""Measures paths between memories: draws the bytes, times the copies and compares each destination whole.

The clock is the parent's. A call over the border of the process takes longer than a copy of 4 KiB, so a sample is many
copies between two timestamps, each of other bytes to another place, and calls without a copy are timed beside it. The
reply carries a word of the destination that the parent draws, so it cannot be sent before that word has arrived.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterable, Iterator
from contextlib import closing, contextmanager
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.paths.facts import CopyFault, CopySample, DataPath, DutyWindow, PathRecord
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.schema import Absent, Failure, Metering
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from mixmark.harness.resources.memory import available_bytes

Bytes = npt.NDArray[np.uint8]

SIZES = tuple(4096 << shift for shift in range(0, 17, 2))
"""The sizes of copies in bytes: 4 KiB to 256 MiB. All copies of a call have the bytes of the largest at most."""
SAMPLES = 6
"""The samples of a size."""
CALLS = 20  # the copies of a sample take as long as so many calls alone, so that a call is known well enough
GROWTH = 4
POISON = 0xCA
LATE_S = 0.2
"""The time after which a destination that was wrong is read again."""
WORD = 8
DUTIES = (0.25, 1.0, 0.5, 0.0, 0.75)
"""The parts of the windows' time that copies take. Their order has no correlation with time, so a drift of the idle
power is in no joules per byte."""
DUTY_NS = 4_500_000_000  # a meter at 10 Hz updates 45 times in a window; five windows give the 200 that are needed
PAUSE_S = 0.01
HELD = 5  # memories of a copy's size: source, destination, and the parent's three


class Data:
    """Random bytes, other ones for each sample: a pool of 8 bits of entropy a byte, altered by a drawn word."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.Generator(np.random.Philox(seed))
        self._pool = np.zeros(0, np.uint64)

    def next(self, size_bytes: int) -> Bytes:
        """size_bytes: a multiple of 8."""
        if self._pool.nbytes < size_bytes:
            self._pool = self._draw.integers(0, 1 << 64, size_bytes // WORD, dtype=np.uint64)
        return (self._pool[: size_bytes // WORD] ^ self._draw.integers(1, 1 << 63, dtype=np.uint64)).view(np.uint8)

    def offset(self, size_bytes: int) -> int:
        return int(self._draw.integers(0, size_bytes - WORD, endpoint=True))


class Faulty(Exception):
    def __init__(self, fault: CopyFault) -> None:
        self.fault = fault


def name_of(found: PathRecord | Absent) -> str:
    """The name of what is known of a path. No two have the same."""
    return found.name if isinstance(found, Absent) else found.path.id


def measure(
    known: Iterable[PathRecord | Absent] = (), meters: Meters | None = None
) -> Iterator[PathRecord | Metering | Absent]:
    """Measures all paths of all plugins, each plugin in a process of its own. A plugin that fails is absent.

    known: what to leave out. meters: are read during copies of the largest size, if there are any; not for a plugin of
    another package, which could report other copies than it makes.
    """
    names = {*map(name_of, known)}
    for name, plugin in registry.find("paths").items():
        if name not in names:
            try:
                with closing(PathProcess(plugin)) as process:
                    yield from _of_plugin(plugin, process, names, meters if plugin.built_in else None)
            except MixmarkError as error:
                yield Absent(kind="path", name=name, reason="; ".join(filter(None, (f"no path: {error}", error.hint))))


def _of_plugin(
    plugin: Plugin, process: PathProcess, known: Container[str], meters: Meters | None
) -> Iterator[PathRecord | Metering | Absent]:
    data = Data(secrets.randbits(64))
    for number, found in enumerate(process.paths()):
        if name_of(PathRecord(path=found) if isinstance(found, DataPath) else found) in known:
            continue
        if isinstance(found, Absent):
            yield found
            continue
        record = measured(found, process, data, available_bytes() // HELD)
        record = record.model_copy(update={"own_code": not plugin.built_in})
        metering = None
        if meters and meters.domains and record.samples and not record.fault:
            record, metering = _metered(record, process, data, meters, key_of("paths", plugin.name, str(number)))
        yield record
        if metering:
            yield metering


def measured(path: DataPath, copies: PathProcess, data: Data, largest_bytes: int) -> PathRecord:
    """Measures a path, the smallest size first. It ends at the first failure or wrong copy.

    largest_bytes: sizes above do not fit into memory.
    """
    samples: list[CopySample] = []
    with _noted() as problem:
        for size in SIZES:
            if size > largest_bytes:
                raise Unsupported(f"copies of {size} bytes do not fit into the free memory", "end other programs")
            samples += _of_size(path.id, size, copies, data, min(largest_bytes, SIZES[-1]))
    return PathRecord(path=path, samples=tuple(samples), **problem)


@contextmanager
def _noted() -> Iterator[dict[str, Any]]:
    """Yields the fields of a `PathRecord` about what ends the block: a wrong copy, or a failure."""
    problem: dict[str, Any] = {}
    try:
        yield problem
    except Faulty as found:
        problem["fault"] = found.fault
    except MixmarkError as error:
        kind: Literal["unsupported", "raised"] = "unsupported" if isinstance(error, Unsupported) else "raised"
        problem["failure"] = Failure(kind=kind, message=str(error), hint=error.hint)


def _metered(
    record: PathRecord, copies: PathProcess, data: Data, meters: Meters, name: str
) -> tuple[PathRecord, Metering | None]:
    """Copies the largest measured size at each of DUTIES while the meters are read. name: of the metering."""
    size = record.samples[-1].size_bytes
    with _noted() as problem:
        copies.open(record.path.id, size, 1)
        sent = data.next(size)
        copies.put(sent)
        copies.poison(POISON)
        meters.begin()
        try:
            windows = tuple(duty_windows(copies, size))
        finally:
            metering = meters.drain(name)
        if not np.array_equal(taken := copies.take(), sent):
            raise Faulty(_fault(size, sent, taken, copies, 0))
    if problem:
        return record.model_copy(update=problem), None
    return record.model_copy(update={"duty": windows, "metering": name}), metering


def duty_windows(copies: PathProcess, size: int) -> Iterator[DutyWindow]:
    """Copies of an open path, in a window for each of DUTIES."""
    for part in DUTIES:
        begin_ns = now_ns = clock.now_ns()
        busy_ns = copied_bytes = 0
        while now_ns - begin_ns < DUTY_NS:
            if busy_ns < part * (now_ns - begin_ns):
                copies.copy(1, 0)
                busy_ns += clock.now_ns() - now_ns
                copied_bytes += size
            else:
                clock.sleep(PAUSE_S)
            now_ns = clock.now_ns()
        yield DutyWindow(begin_ns=begin_ns, end_ns=now_ns, copied_bytes=copied_bytes)


def _of_size(path: str, size: int, copies: PathProcess, data: Data, most_bytes: int) -> list[CopySample]:
    """The samples of a size. Raises Faulty, and MixmarkError if the plugin fails."""
    times, least_ns = 1, inf
    while True:
        copies.open(path, size, times)
        found = list[CopySample]()
        copies.put(data.next(times * size))
        copies.copy(times, 0)  # the first copy touches the pages
        for _ in range(SAMPLES):
            sent = data.next(times * size)
            copies.put(sent)
            copies.poison(POISON)
            call = _timed(size, 0, copies, data.offset(times * size))[0]
            at = data.offset(times * size)
            sample, word = _timed(size, times, copies, at)
            taken = copies.take()
            if word != int.from_bytes(sent[at : at + WORD].tobytes(), "little") or not np.array_equal(taken, sent):
                raise Faulty(_fault(size, sent, taken, copies, at))
            least_ns = min(least_ns, call.ns)
            if sample.ns < (1 + CALLS) * least_ns and GROWTH * times * size <= most_bytes:
                times *= GROWTH
                break
            found += [call, sample]
        else:
            return found


def _timed(size: int, times: int, copies: PathProcess, at: int) -> tuple[CopySample, int]:
    begin_ns = clock.now_ns()
    word = copies.copy(times, at)
    return CopySample(size_bytes=size, copies=times, ns=clock.now_ns() - begin_ns), word


def _fault(size: int, sent: Bytes, taken: Bytes, copies: PathProcess, at: int) -> CopyFault:
    """What is wrong with the first wrong copy of a call. size: of a copy. at: the offset of the word that the reply
    carried."""
    is_wrong = not np.array_equal(taken, sent)
    first = int(np.argmax(taken != sent)) if is_wrong else at
    clock.sleep(LATE_S)
    is_late = not is_wrong or np.array_equal(copies.take(), sent)
    return CopyFault(kind="late" if is_late else "corrupted", size_bytes=size, first_byte=first % size)
