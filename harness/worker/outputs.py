"""The outputs of a window, and the commitments that show the parent that the worker kept the right ones.

While the worker is timed it sends a digest of each output, or one commitment to all of them that closes the window. The
outputs that it hands over after the window must have these digests. If the outputs outgrow their memory, some are
dropped: the worker first commits to a digest of all outputs so far, and only then the parent draws the sampling key
that decides which ones stay. So the sample is unbiased and unpredictable. The parent recomputes which outputs must be
present.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import DIGEST_BYTES
from mixmark.harness.resources import clock
from mixmark.harness.worker.calls import Garbled
from mixmark.harness.worker.messages import Window

KEPT_BYTES = 128 << 20  # of outputs: three minutes of images from a machine with two cores, seconds from a fast one
TAKEN_BYTES = 1 << 30  # of outputs that feeds continued, on disk
AROUND_BYTES = 256  # of Python objects around each output

Serials = npt.NDArray[np.int64]
"""The numbers of feeds, counted from 0 in the order of issue."""


def digest(serial: int, output: bytes) -> bytes:
    """The digest of the number of a feed and its output.

    SHA-256, which processors have instructions for: between two feeds it took half of the time of blake2b.
    """
    hashed = hashlib.sha256(serial.to_bytes(8, "little"))
    hashed.update(output)
    return hashed.digest()[:DIGEST_BYTES]


def capacity(output_bytes: int, most_bytes: int = KEPT_BYTES) -> int:
    """The number of outputs of that size that fit into the memory for them."""
    return max(1, most_bytes // (output_bytes + AROUND_BYTES))


def ranks(key: int, serials: Sequence[int] | Serials) -> npt.NDArray[np.uint64]:
    """A pseudorandom rank for each feed, unpredictable without the key (SplitMix64)."""
    mixed = (np.asarray(serials, np.int64).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def staying(ranks: npt.NDArray[np.uint64], most: int) -> npt.NDArray[np.intp]:
    """The indices of the outputs that stay when more than `most` are kept: the `most // 2` lowest ranks."""
    return np.argsort(ranks, kind="stable")[: max(1, most // 2)]


DrawKey = Callable[[int, str], int]
"""Draws the sampling key, given the number of finished feeds and the commitment to their outputs."""


def _no_key(done: int, commitment: str) -> int:
    raise AssertionError("these outputs must fit into their memory")


class Outputs:
    """What a runner yielded, feed by feed. Lives in the worker; several threads may add at once.

    draw_key: called when the outputs take more than `most_bytes`.
    """

    def __init__(self, draw_key: DrawKey = _no_key, most_bytes: int = KEPT_BYTES) -> None:
        self._draw_key, self._most_bytes = draw_key, most_bytes
        self._lock = threading.Lock()
        self._serials = array("q")
        """The numbers of all feeds, in the order of their ends."""
        self._previous = array("q")
        """For each of them the number of the previous feed in its chain; -1 for the first feed of a chain."""
        self._digests = bytearray()
        self._hash = hashlib.sha256()
        self._ranks: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        """The ranks of the first outputs in `_kept`; the rest have no rank yet."""
        self._kept: list[tuple[int, bytes]] = []
        """(number of the feed, output)."""
        self._row: tuple[np.dtype[np.generic], tuple[int, ...]] | None = None
        """The type and the shape of the output for one unit."""

    def add(self, serial: int, parts: list[bytes], last: Array, previous: int = -1) -> bytes:
        """Keeps an output and returns its digest. parts: the bytes of each yield of the feed; last: one of the yields.
        previous: the number of the previous feed in the same chain. Raises WrongOutput if the output is empty, or
        differs in shape from the output for another feed."""
        output = b"".join(parts)
        if not output:
            raise WrongOutput("the output for a feed is empty")
        row = last.dtype, last.shape[1:]
        hashed = digest(serial, output)
        with self._lock:
            self._row = self._row or row
            row_bytes = self._row[0].itemsize * math.prod(self._row[1])
            same_length = not self._kept or len(output) == len(self._kept[0][1])
            if row != self._row or not same_length or not row_bytes or len(output) % row_bytes:
                raise WrongOutput("the outputs for two feeds differ in shape")
            self._serials.append(serial)
            self._previous.append(previous)
            self._digests += hashed
            self._hash.update(hashed)
            self._kept.append((serial, output))
            if len(self._kept) > (most := capacity(len(output), self._most_bytes)):
                self._drop(most)
        return hashed

    def _drop(self, most: int) -> None:
        key = self._draw_key(len(self._serials), self.commitment)
        new = ranks(key, [serial for serial, _ in self._kept[len(self._ranks) :]])
        everything = np.concatenate((self._ranks, new))
        stay = staying(everything, most)
        self._kept = [self._kept[index] for index in stay]
        self._ranks = everything[stay]

    @property
    def commitment(self) -> str:
        """The SHA-256 of the digests of all outputs so far."""
        return self._hash.hexdigest()

    def save(self, path: Path) -> None:
        """Writes an .npz file. Of all feeds in the order of their ends: finished [feeds] int64, their numbers;
        previous [feeds] int64; digests [feeds, 16] uint8. Of the kept outputs: serials [kept] int64 and
        outputs [kept, units, …]."""
        dtype, tail = self._row or (np.dtype(np.int64), ())
        kept = sorted(self._kept)
        outputs = np.frombuffer(b"".join(output for _, output in kept), dtype)
        with path.open("wb") as file:
            np.savez(
                file,
                finished=np.array(self._serials, np.int64),
                previous=np.array(self._previous, np.int64),
                digests=np.frombuffer(bytes(self._digests), np.uint8).reshape(-1, DIGEST_BYTES),
                serials=np.array([serial for serial, _ in kept], np.int64),
                outputs=outputs.reshape(len(kept), -1, *tail) if len(outputs) else outputs,
            )


@dataclass(frozen=True)
class Taken:
    """What a feed continued: the output for another share's feed."""

    serial: int
    """The number of the other feed."""
    file: Path
    rank: int
    """Drawn for the feed. The lowest ranks stay."""


@dataclass
class Commitments(Window):
    """A worker's commitments to the outputs of a window, as the parent received them while the worker was timed."""

    sealed_ns: int | None = None
    """When the message that closes the window arrived. None if it is open, or the parent hands out each feed."""
    ended_ns: dict[int, int] = field(default_factory=dict)
    """When the digest of a whole output arrived, by the number of the feed."""
    first_ns: dict[int, int] = field(default_factory=dict)
    """When the digest of a first yield arrived, by the number of the feed."""
    reported: bool = False
    """Whether the worker was asked to report each feed."""
    on_output: Callable[[int], None] = lambda outputs: None
    """Gets the number of outputs that have arrived, after each that was reported."""

    chains: int | None = None
    """The number of chains, where each feed follows from the previous output: one or two per issue thread. None if the
    parent handed out each feed: then `followed` says which output a feed follows from."""
    window: str | None = None
    """The commitment to all outputs, if one was sent at the end of the window."""
    digests: dict[int, str] = field(default_factory=dict)
    """The digests that were sent feed by feed, in hexadecimal, by the number of the feed."""
    firsts: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The units of a first yield and its digest in hexadecimal, by the number of the feed."""
    followed: dict[int, bytes] = field(default_factory=dict)
    """The digest of the output that the parent derived a feed from, also of another share, by the feed's number."""
    taken: dict[int, Taken] = field(default_factory=dict)
    """What the feeds continued, by their numbers: all, or a fair sample of them."""
    draws: list[tuple[int, str, int]] = field(default_factory=list)
    """For each time that outputs were dropped: the finished feeds, the commitment to them, and the key drawn."""

    def outputs_full(self, *, key: str, done: int, commitment: str) -> int:
        self._check_open("outputs_full")
        return self.draw_key(done, commitment)

    def first_yielded(self, *, key: str, serial: int, units: int, digest: str) -> None:
        self._check_open("first_yielded")
        if not self.reported or serial in self.firsts or serial in self.digests:
            raise Garbled(f"the first yield of feed {serial} came late or was not asked for")
        self.firsts[serial], self.first_ns[serial] = (units, digest), clock.now_ns()

    def feed_finished(self, *, key: str, serial: int, digest: str) -> None:
        self._check_open("feed_finished")
        if not self.reported or serial in self.digests:
            raise Garbled(f"feed {serial} is reported a second time, or no report was asked for")
        self.digests[serial], self.ended_ns[serial] = digest, clock.now_ns()
        self.on_output(len(self.ended_ns))

    def sealed(self, *, key: str, commitment: str) -> None:
        self._check_open("sealed")
        self.sealed_ns, self.window = clock.now_ns(), commitment

    def _check_open(self, call: str) -> None:
        if self.sealed_ns is not None:
            raise Garbled(f"{call} came after the window was closed")

    def keep_taken(self, serial: int, continued: int, file: Path) -> None:
        """Keeps the output that a finished feed continued, or a random one less if TAKEN_BYTES hold no more. continued:
        the number of the feed that it was the output for."""
        self.taken[serial] = Taken(continued, file, secrets.randbits(63))
        if len(self.taken) > capacity(file.stat().st_size, TAKEN_BYTES):
            dropped = max(self.taken, key=lambda each: self.taken[each].rank)
            self.taken.pop(dropped).file.unlink()

    def draw_key(self, done: int, commitment: str) -> int:
        """Draws the sampling key that decides which outputs stay."""
        key = secrets.randbits(63)
        self.draws.append((done, commitment, key))
        return key

    def verify(self, finished: Serials, digests: npt.NDArray[np.uint8]) -> None:
        """Raises WrongOutput unless these digests, of the feeds in the order of their ends, match every
        commitment."""
        flat = digests.tobytes()
        rows = (row.tobytes().hex() for row in digests) if self.digests else ()
        match = dict(zip(finished.tolist(), rows, strict=False)).items() >= self.digests.items()
        hashed, hashed_to = hashlib.sha256(), 0
        for done, commitment in (*(draw[:2] for draw in self.draws), (len(finished), self.window)):
            hashed.update(flat[hashed_to * DIGEST_BYTES : done * DIGEST_BYTES])
            hashed_to = done
            match = match and commitment in (None, hashed.hexdigest())
        if not match:
            raise WrongOutput("the outputs do not match the commitments of the timed window")

    def verify_first(self, serial: int, output: Array) -> None:
        """Raises WrongOutput unless the first yield that was reported is the beginning of the output.

        output: [units, …], the joined yields of the feed.
        """
        units, told = self.firsts.get(serial, (0, ""))
        if units and digest(serial, output[:units].tobytes()).hex() != told:
            raise WrongOutput("a first yield is not the beginning of its output")

    def previous_digests(
        self, finished: Serials, previous: Serials, digests: npt.NDArray[np.uint8]
    ) -> dict[int, bytes]:
        """For each feed the digest of the previous output in its chain, from which the feed's nonce was derived; empty
        for the first feed of a chain. If the parent handed out each feed, it knows what each followed from.

        Raises WrongOutput if there are more chains than issue threads allow: then the engine would have known more
        feeds at a time than it had to run.
        """
        if self.chains is None:
            return {serial: self.followed.get(serial, b"") for serial in finished.tolist()}
        later = previous[previous >= 0]
        heads = len(previous) - len(later)
        if heads > self.chains or len(np.unique(later)) < len(later) or (previous >= finished).any():
            raise WrongOutput(f"the feeds were not run one after another in {self.chains} chains")
        rows = dict(zip(finished.tolist(), (row.tobytes() for row in digests), strict=True))
        if not rows.keys() >= set(later.tolist()):
            raise WrongOutput("a feed followed one that was not finished")
        return {
            serial: rows.get(predecessor, b"")
            for serial, predecessor in zip(finished.tolist(), previous.tolist(), strict=True)
        }

    def required(self, finished: Serials, most: int) -> Serials:
        """The feeds whose outputs must be handed over. most: how many outputs of their size fit into memory. Raises
        WrongOutput if outputs were dropped before they outgrew it."""
        serials, dropped_at = self._replay(finished, most)
        return np.concatenate((serials, finished[dropped_at:]))

    def fair_sample(self, finished: Serials, most: int) -> Serials:
        """A fair sample of all feeds among the required ones. The feeds after the last drop are in the required ones
        for certain, so one more drop is drawn over all of them."""
        if not self.draws:
            return finished
        once_more = Commitments(draws=[*self.draws, (len(finished), "", secrets.randbits(63))])
        return once_more._replay(finished, most, forced=True)[0]

    def _replay(self, finished: Serials, most: int, forced: bool = False) -> tuple[Serials, int]:
        """The feeds that stayed at the last drop, and the number of feeds that were finished then. forced: the last
        drop needs no reason."""
        kept, kept_ranks, done_before = finished[:0], np.zeros(0, np.uint64), 0
        for number, (done, _, key) in enumerate(self.draws, 1):
            new = finished[done_before:done]
            outgrown = len(kept) + len(new) > most or (forced and number == len(self.draws))
            if not done_before <= done <= len(finished) or not outgrown:
                raise WrongOutput("the worker dropped outputs before they outgrew the memory for them")
            kept_ranks = np.concatenate((kept_ranks, ranks(key, new)))
            stay = staying(kept_ranks, most)
            kept, kept_ranks, done_before = np.concatenate((kept, new))[stay], kept_ranks[stay], done
        return kept, done_before
