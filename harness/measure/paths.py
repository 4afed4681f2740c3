"""Measures paths between memories: draws the bytes, times the copies and compares each destination whole.

The clock is the parent's. A call over the border of the process takes longer than a copy of 4 KiB, so a sample is many
copies between two timestamps, and calls without a copy are timed beside it. The reply carries a word of the destination
that the parent draws, so it cannot be sent before that word has arrived.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.protocols import Suite, Value
from mixmark.harness.contracts.schema import Absent, CopyFault, CopySample, DataPath, Failure, Move, PathRecord, Tier
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources.memory import available_bytes
from mixmark.harness.worker.plugin_process import PathProcess

Bytes = npt.NDArray[np.uint8]

SIZES = tuple(4096 << shift for shift in range(0, 17, 2))
"""The sizes of copies in bytes: 4 KiB to 256 MiB."""
SAMPLES = 6
"""The samples of a size."""
SAMPLE_NS = 20_000_000  # a call takes 0.1 ms
MOST_COPIES = 1 << 16
POISON = 0xCA
LATE_S = 0.2
"""The time after which a destination that was wrong is read again."""
WORD = 8
BYTES = 2  # a value of 16 bits
TOKENS = (1024, 8192)
BATCH = 32
OPPOSING = 8  # copies of a call, so that the time between two calls is a small part
HELD = 6  # memories of a copy's size: source, destination, one between them, and the parent's three


class Copies(Protocol):
    """A plugin's paths, one of them open, as the parent sees them. They are listed before one is opened."""

    def paths(self) -> Sequence[DataPath | Absent]: ...

    def open(self, path: str, size_bytes: int) -> None: ...

    def put(self, data: Bytes) -> None: ...

    def poison(self, byte: int) -> None: ...

    def copy(self, times: int, word_at: int) -> int: ...

    def take(self) -> Bytes: ...


@dataclass(frozen=True)
class Watch:
    """The clock in nanoseconds, and how to wait some seconds."""

    now_ns: Callable[[], int] = time.perf_counter_ns
    wait: Callable[[float], None] = time.sleep


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


def measure(known: Container[str] = (), seed: int | None = None) -> Iterator[PathRecord | Absent]:
    """Measures all paths of all plugins, each plugin in a process of its own. A plugin that fails is absent.

    known: what to leave out, by the keys of records and the names of absences. seed: what the bytes are drawn from;
    None: a secret one.
    """
    for name, plugin in registry.find("paths").items():
        if name not in known:
            data = Data(secrets.randbits(64) if seed is None else seed)
            try:
                with closing(PathProcess(plugin)) as process:
                    yield from _of_plugin(plugin, process, data, known)
            except MixmarkError as error:
                yield Absent(kind="path", name=name, reason=f"no path: {error}")


def _of_plugin(
    plugin: Plugin, process: PathProcess, data: Data, known: Container[str]
) -> Iterator[PathRecord | Absent]:
    """Each path alone and, if it has a way back, while a second process copies there."""
    found = process.paths()
    yield from (each for each in found if isinstance(each, Absent) and each.name not in known)
    paths = [each for each in found if isinstance(each, DataPath)]
    for path in paths:
        alone = PathRecord(path=path)
        if alone.key not in known:
            yield (alone := measured(path, process, data, available_bytes() // HELD))
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
    watch: Watch = Watch(),
    sizes: Sequence[int] | None = None,
) -> PathRecord:
    """Measures a path, the smallest size first. It ends at the first failure or wrong copy.

    largest_bytes: sizes above do not fit into memory. sizes: None means all.
    """
    samples: list[CopySample] = []
    fault = failure = None
    for size in sizes or SIZES:
        try:
            if size > largest_bytes:
                raise Unsupported(f"copies of {size} bytes do not fit into the free memory", "end other programs")
            copies.open(path.id, size)
            samples += _of_size(size, copies, data, watch)
        except Faulty as found:
            fault = found.fault
            break
        except MixmarkError as error:
            failure = _failure(error)
            break
    return PathRecord(path=path, samples=tuple(samples), fault=fault, failure=failure)


def _failure(error: MixmarkError) -> Failure:
    kind: Literal["unsupported", "raised"] = "unsupported" if isinstance(error, Unsupported) else "raised"
    return Failure(kind=kind, message=str(error), hint=error.hint)


def opposed(
    path: DataPath,
    back: DataPath,
    copies: Copies,
    other: Copies,
    data: Data,
    largest_bytes: int,
    watch: Watch = Watch(),
) -> PathRecord:
    """Measures the largest size of a path that fits, while another process copies on the way back without a pause but
    that between two calls. Nothing counts if that process fails, or if its copies are wrong."""
    size = max((each for each in SIZES if each <= largest_bytes), default=SIZES[0])
    try:
        with _opposing(back, other, data, size):
            record = measured(path, copies, data, largest_bytes, watch, (size,))
    except Faulty as found:
        record = PathRecord(path=path, fault=found.fault)
    except MixmarkError as error:
        record = PathRecord(path=path, failure=_failure(error))
    return record.model_copy(update={"opposing": back.id})


@contextmanager
def _opposing(back: DataPath, other: Copies, data: Data, size: int) -> Iterator[None]:
    """Copies on a path until the block ends. Raises Faulty for a wrong copy, and MixmarkError if the plugin fails."""
    other.paths()
    other.open(back.id, size)
    before, sent = data.next(size), data.next(size)
    other.put(before)
    other.copy(1, 0)
    other.put(sent)
    other.poison(POISON)
    over = threading.Event()

    def copy() -> None:
        while not over.is_set():
            other.copy(OPPOSING, 0)

    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(copy)
        try:
            yield
        finally:
            over.set()
        copying.result()
    if not np.array_equal(taken := other.take(), sent):
        raise Faulty(_fault(sent, before, taken, other, 0, Watch()))


def _of_size(size: int, copies: Copies, data: Data, watch: Watch) -> list[CopySample]:
    """The samples of a size. Raises Faulty, and MixmarkError if the plugin fails."""
    before, times, found = data.next(size), 1, list[CopySample]()
    copies.put(before)
    copies.copy(1, 0)  # the first copy touches the pages
    while len(found) < 2 * SAMPLES:
        sent = data.next(size)
        copies.put(sent)
        copies.poison(POISON)
        call = _timed(size, 0, copies, data.offset(size), watch)[0]
        at = data.offset(size)
        sample, word = _timed(size, times, copies, at, watch)
        taken = copies.take()
        if word != int.from_bytes(sent[at : at + WORD].tobytes(), "little") or not np.array_equal(taken, sent):
            raise Faulty(_fault(sent, before, taken, copies, at, watch))
        before = sent
        if sample.ns - call.ns < SAMPLE_NS and times < MOST_COPIES:
            times *= 4
        else:
            found += [call, sample]
    return found


def _timed(size: int, times: int, copies: Copies, at: int, watch: Watch) -> tuple[CopySample, int]:
    begin_ns = watch.now_ns()
    word = copies.copy(times, at)
    return CopySample(size_bytes=size, copies=times, ns=watch.now_ns() - begin_ns), word


def _fault(sent: Bytes, before: Bytes, taken: Bytes, copies: Copies, at: int, watch: Watch) -> CopyFault:
    """What is wrong with a destination. at: the offset of the word that the reply carried."""
    wrong = np.flatnonzero(taken != sent)
    first = int(wrong[0]) if len(wrong) else at
    kind = "corrupted"
    watch.wait(LATE_S)
    if not len(wrong) or np.array_equal(copies.take(), sent):
        kind = "late"
    elif np.array_equal(taken[wrong], before[wrong]):
        kind = "repeated"
    elif (taken[first:] == POISON).all():
        kind = "short"
    return CopyFault.model_validate({"kind": kind, "size_bytes": len(sent), "first_byte": first})


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
