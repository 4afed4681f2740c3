"""Measures paths between memories: draws the bytes, times the copies and compares each destination whole.

The clock is the parent's. A call over the border of the process takes longer than a copy of 4 KiB, so a sample is many
copies between two timestamps, each of other bytes to another place, and calls without a copy are timed beside it. The
reply carries a word of the destination that the parent draws, so it cannot be sent before that word has arrived.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from math import inf, prod
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.paths.facts import (
    CopyFault,
    CopySample,
    CopyWork,
    DataPath,
    DutyWindow,
    Move,
    PathRecord,
)
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.protocols import Suite, Value
from mixmark.harness.contracts.schema import Absent, Failure, Metering, Tier
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
BYTES = 2  # a value of 16 bits
TOKENS = (1024, 8192)
BATCH = 32
OPPOSING = 8  # copies of a call, so that the time between two calls is a small part
COVERED = 0.9  # of a sample, by the calls of the process that copies the other way
DUTIES = (0.25, 1.0, 0.5, 0.0, 0.75)
"""The parts of the windows' time that copies take. Their order has no correlation with time, so a drift of the idle
power is in no joules per byte."""
DUTY_NS = 4_500_000_000  # of a meter that is read ten times a second 45 updates a window, and 200 in all are needed
PAUSE_S = 0.01
HELD = 6  # memories of a copy's size: source, destination, one between them, and the parent's three


class Copies(Protocol):
    """A plugin's paths, one of them open, as the parent sees them. They are listed before one is opened."""

    def paths(self) -> Sequence[DataPath | Absent]: ...

    def open(self, path: str, size_bytes: int, blocks: int) -> None: ...

    def put(self, data: Bytes) -> None: ...

    def poison(self, byte: int) -> None: ...

    def copy(self, times: int, word_at: int) -> int: ...

    def take(self) -> Bytes: ...


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
    return found.name if isinstance(found, Absent) else found.key


def measure(
    known: Iterable[PathRecord | Absent] = (), seed: int | None = None, meters: Meters | None = None
) -> Iterator[PathRecord | Metering | Absent]:
    """Measures all paths of all plugins, each plugin in a process of its own. A plugin that fails is absent.

    known: what to leave out. seed: what the bytes are drawn from; None: a secret one. meters: are read during copies of
    the largest size, if there are any.
    """
    names = {*map(name_of, known)}
    for name, plugin in registry.find("paths").items():
        if name not in names:
            data = Data(secrets.randbits(64) if seed is None else seed)
            try:
                with closing(PathProcess(plugin)) as process:
                    for found in _of_plugin(plugin, process, data, names, meters if plugin.built_in else None):
                        own = isinstance(found, PathRecord) and not plugin.built_in
                        yield found.model_copy(update={"own_code": True}) if own else found
            except MixmarkError as error:
                yield Absent(kind="path", name=name, reason="; ".join(filter(None, (f"no path: {error}", error.hint))))


def _of_plugin(
    plugin: Plugin, process: PathProcess, data: Data, known: Container[str], meters: Meters | None
) -> Iterator[PathRecord | Metering | Absent]:
    """Each path alone and, if it has a way back, while a second process copies there."""
    found = process.paths()
    yield from (each for each in found if isinstance(each, Absent) and each.name not in known)
    paths = [each for each in found if isinstance(each, DataPath)]
    for number, path in enumerate(paths):
        alone = PathRecord(path=path)
        if alone.key not in known:
            alone = measured(path, process, data, available_bytes() // HELD)
            metering = None
            if meters and meters.domains and alone.samples and not alone.fault:
                alone, metering = _metered(alone, process, data, meters, key_of("paths", plugin.name, str(number)))
            yield alone
            if metering:
                yield metering
        back = None if alone.fault or alone.failure else way_back(path, paths)
        if back and PathRecord(path=path, opposing=back.id).key not in known:
            with closing(PathProcess(plugin)) as other:
                yield opposed(path, back, process, other, data, available_bytes() // (2 * HELD))


def way_back(path: DataPath, paths: Iterable[DataPath]) -> DataPath | None:
    """The path of the same kind in the other direction, which may be the path itself. None if there is none."""
    back = {"id": path.id, "source": path.destination, "destination": path.source}
    alike = (each for each in (path, *paths) if each.model_copy(update={"id": path.id}) == path.model_copy(update=back))
    return None if path.converts else next(alike, None)


def measured(
    path: DataPath,
    copies: Copies,
    data: Data,
    largest_bytes: int,
    sizes: Sequence[int] | None = None,
    counts: Callable[[int, int], bool] = lambda begin_ns, end_ns: True,
) -> PathRecord:
    """Measures a path, the smallest size first. It ends at the first failure or wrong copy.

    largest_bytes: sizes above do not fit into memory. sizes: None means all. counts: whether a sample from one time to
    another counts.
    """
    samples: list[CopySample] = []
    with _noted() as problem:
        for size in sizes or SIZES:
            if size > largest_bytes:
                raise Unsupported(f"copies of {size} bytes do not fit into the free memory", "end other programs")
            samples += _of_size(path.id, size, copies, data, min(largest_bytes, SIZES[-1]), counts)
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


def opposed(
    path: DataPath,
    back: DataPath,
    copies: Copies,
    other: Copies,
    data: Data,
    largest_bytes: int,
) -> PathRecord:
    """Measures the largest size of a path that fits, while another process copies on the way back. Nothing counts if
    that process fails, or if its copies are wrong, and no sample counts that its calls do not cover."""
    size = max((each for each in SIZES if each <= largest_bytes), default=SIZES[0])
    with _noted() as problem:
        opposing = SteadyCopies(CopyWork(path=back.id, size_bytes=size), other, data)
        with opposing.going_on():
            record = measured(path, copies, data, largest_bytes, (size,), opposing.covers)
        opposing.check()
    record = PathRecord(path=path, **problem) if problem else record
    return record.model_copy(update={"opposing": back.id})


class SteadyCopies:
    """Copies of the same bytes without a pause but that between two calls. Their destination is compared whole at the
    end."""

    def __init__(self, work: CopyWork, copies: Copies, data: Data) -> None:
        """Raises MixmarkError if the plugin fails or has no such path."""
        found = (each for each in copies.paths() if isinstance(each, DataPath) and each.id == work.path)
        if (path := next(found, None)) is None:
            raise Unsupported(f"the path {work.path} is no longer here", "start a new run")
        copies.open(path.id, work.size_bytes, 1)
        self._work, self._copies, self._path = work, copies, path
        self._before, self._sent = data.next(work.size_bytes), data.next(work.size_bytes)
        copies.put(self._before)
        copies.copy(1, 0)
        copies.put(self._sent)
        copies.poison(POISON)
        self._ended: Future[None] | None = None
        self._calls_ns: list[tuple[int, float]] = []
        """When each call began and ended. The last one may go on."""

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """The block begins after the first call. No copy begins after it. `check` waits for the last call."""
        begun, over = threading.Event(), threading.Event()

        def copy() -> None:
            try:
                while not over.is_set():
                    self._calls_ns.append((clock.now_ns(), inf))
                    self._copies.copy(OPPOSING, 0)
                    self._calls_ns[-1] = self._calls_ns[-1][0], clock.now_ns()
                    begun.set()
            finally:
                begun.set()

        pool = ThreadPoolExecutor(1)
        self._ended = pool.submit(copy)
        try:
            begun.wait()
            yield
        finally:
            over.set()
            pool.shutdown(wait=False)  # the last call may take seconds, and the watch of a phase ends with its window

    def covers(self, begin_ns: int, end_ns: int) -> bool:
        """Whether calls went on in nearly all of this time. A call that goes on is taken to copy."""
        inside = (min(end, end_ns) - max(begin, begin_ns) for begin, end in self._calls_ns)
        return sum(ns for ns in inside if ns > 0) >= COVERED * (end_ns - begin_ns)

    def check(self) -> None:
        """Raises Faulty for a wrong copy, and MixmarkError if the plugin failed."""
        if self._ended:
            self._ended.result()
        if not np.array_equal(taken := self._copies.take(), self._sent):
            raise Faulty(_fault(self._work.size_bytes, self._sent, self._before, taken, self._copies, 0))

    def record(self, phase: str, begin_ns: int, end_ns: int) -> PathRecord:
        """The copies within the window of a phase of the mix: SAMPLES samples of equally many calls. No sample counts
        if a copy was wrong, the plugin failed or no call was over, since the mix then ran without copies."""
        samples: list[CopySample] = []
        with _noted() as problem:
            self.check()
            inside = [(begin, end) for begin, end in self._calls_ns if begin_ns <= begin and end <= end_ns]
            if not inside:
                raise Unsupported("no call of the copies was over within the window of the mix")
            for calls in filter(len, np.array_split(np.array(inside), SAMPLES)):
                took_ns, copies = int(calls[-1, 1] - calls[0, 0]), OPPOSING * len(calls)
                samples.append(CopySample(size_bytes=self._work.size_bytes, copies=copies, ns=took_ns))
        return PathRecord(path=self._path, beside=phase, samples=tuple(samples), **problem)

    def duty(self) -> Iterator[DutyWindow]:
        """A window for each of DUTIES."""
        for part in DUTIES:
            begin_ns = now_ns = clock.now_ns()
            busy_ns = copied_bytes = 0
            while now_ns - begin_ns < DUTY_NS:
                if busy_ns < part * (now_ns - begin_ns):
                    self._copies.copy(1, 0)
                    busy_ns += clock.now_ns() - now_ns
                    copied_bytes += self._work.size_bytes
                else:
                    clock.sleep(PAUSE_S)
                now_ns = clock.now_ns()
            yield DutyWindow(begin_ns=begin_ns, end_ns=now_ns, copied_bytes=copied_bytes)


def _metered(
    alone: PathRecord, copies: Copies, data: Data, meters: Meters, name: str
) -> tuple[PathRecord, Metering | None]:
    """Copies the largest measured size at each of DUTIES while the meters are read. name: of the metering."""
    with _noted() as problem:
        steady = SteadyCopies(CopyWork(path=alone.path.id, size_bytes=alone.samples[-1].size_bytes), copies, data)
        meters.begin()
        try:
            windows = tuple(steady.duty())
        finally:
            metering = meters.drain(name)
        steady.check()
    if problem:
        return alone.model_copy(update=problem), None
    return alone.model_copy(update={"duty": windows, "metering": name}), metering


def _of_size(
    path: str, size: int, copies: Copies, data: Data, most_bytes: int, counts: Callable[[int, int], bool]
) -> list[CopySample]:
    """The samples of a size. Raises Faulty, and MixmarkError if the plugin fails."""
    times, least_ns = 1, inf
    while True:
        copies.open(path, size, times)
        before, found = data.next(times * size), list[CopySample]()
        copies.put(before)
        copies.copy(times, 0)  # the first copy touches the pages
        for _ in range(2 * SAMPLES):
            sent = data.next(times * size)
            copies.put(sent)
            copies.poison(POISON)
            call = _timed(size, 0, copies, data.offset(times * size))[0]
            at, begin_ns = data.offset(times * size), clock.now_ns()
            sample, word = _timed(size, times, copies, at)
            counted, taken = counts(begin_ns, clock.now_ns()), copies.take()
            if word != int.from_bytes(sent[at : at + WORD].tobytes(), "little") or not np.array_equal(taken, sent):
                raise Faulty(_fault(size, sent, before, taken, copies, at))
            before = sent
            least_ns = min(least_ns, call.ns)
            if sample.ns < (1 + CALLS) * least_ns and GROWTH * times * size <= most_bytes:
                times *= GROWTH
                break
            if counted:
                found += [call, sample]
            if len(found) == 2 * SAMPLES:
                return found
        else:
            raise Unsupported("the other process paused while this one copied", "end other programs")


def _timed(size: int, times: int, copies: Copies, at: int) -> tuple[CopySample, int]:
    begin_ns = clock.now_ns()
    word = copies.copy(times, at)
    return CopySample(size_bytes=size, copies=times, ns=clock.now_ns() - begin_ns), word


def _fault(size: int, sent: Bytes, before: Bytes, taken: Bytes, copies: Copies, at: int) -> CopyFault:
    """What is wrong with the first wrong copy of a call. size: of a copy. at: the offset of the word that the reply
    carried."""
    is_wrong = not np.array_equal(taken, sent)
    first = int(np.argmax(taken != sent)) if is_wrong else at
    clock.sleep(LATE_S)
    is_late = not is_wrong or np.array_equal(copies.take(), sent)
    sent, before, taken = (each[first - first % size :][:size] for each in (sent, before, taken))
    wrong = taken != sent
    kind = "corrupted"
    if is_late:
        kind = "late"
    elif np.array_equal(taken[wrong], before[wrong]):
        kind = "repeated"
    elif (taken[first % size :] == POISON).all():
        kind = "short"
    return CopyFault.model_validate({"kind": kind, "size_bytes": size, "first_byte": first % size})


def moves(suites: Iterable[Plugin], tier: Tier) -> Iterator[Move]:
    """What suites move between memories at a tier, from their shapes, in 16 bits. Suites of other packages are left
    out: none of their code runs here."""
    for plugin in suites:
        if plugin.built_in:
            suite: Suite = registry.build_suite(plugin.name, plugin.spec, tier, {})
            weights = suite.weights()
            values = sum(prod(map(int, weights.spec(name).shape)) for name in weights.names())
            if values:
                yield Move(suite=suite.name, what="weights", size_bytes=BYTES * values)
            yield from (Move(suite=suite.name, what=what, size_bytes=size) for what, size in _of_shapes(suite.config))
            if suite.scenarios[0] == "offline":
                inputs = sum(array.nbytes for array in suite.feeds(1, 0)(0).values())
                what = f"inputs of {BATCH}"
                yield Move(suite=suite.name, what=what, size_bytes=BATCH * inputs, units=suite.units(BATCH))


def _of_shapes(config: Mapping[str, Value]) -> Iterator[tuple[str, int]]:
    """The KV cache of a language model (keys and values of each token, layer and head) and the embeddings of a suite:
    what a stage hands to the next one. In bytes, by what it is."""
    match config:
        case {"num_hidden_layers": int(layers), "num_key_value_heads": int(heads), "head_dim": int(width)}:
            for tokens in TOKENS:
                of_layer = 2 * BYTES * heads * width * tokens
                yield f"KV cache of {tokens} tokens, a layer", of_layer
                yield f"KV cache of {tokens} tokens", layers * of_layer
    match config:
        case {"hidden_size": int(width)}:
            yield from ((f"embeddings of {tokens} tokens", BYTES * width * tokens) for tokens in TOKENS)
        case {"num_embeddings_per_feature": tuple(tables), "embedding_dim": int(width)}:
            yield f"embeddings of {BATCH}", BATCH * BYTES * len(tables) * width
        case {"unet.cross_attention_dim": int(width), "text_encoder.max_position_embeddings": int(tokens)}:
            yield "embeddings of a prompt", BYTES * width * tokens
