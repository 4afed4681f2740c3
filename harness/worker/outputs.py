"""The outputs of a window: how a worker keeps them, and how its parent knows that it kept those.

The worker tells a digest of each output, or of all of them, while it is timed. What it hands over when the window is
over must have the same digests. Where the outputs outgrow the memory for them, some are dropped: the worker first tells
a digest of all that it has, and then the parent draws a key, which decides. So nobody knows which outputs will be kept
while they are computed, and the parent computes again which they are: that each has its place by chance makes those
that are kept a fair sample, and none may be missing from it.
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

KEPT_BYTES = 128 << 20  # of outputs: three minutes of images from this machine, seconds from a fast one
AROUND_BYTES = 256  # of Python's objects, in which an output lies


def digest(serial: int, output: bytes) -> bytes:
    """The digest of an output and the number of its feed.

    SHA-256, since processors have instructions for it: made between two feeds, it took half of blake2b's time.
    """
    hashed = hashlib.sha256(serial.to_bytes(8, "little"))
    hashed.update(output)
    return hashed.digest()[:DIGEST_BYTES]


def most_kept(output_bytes: int, most_bytes: int = KEPT_BYTES) -> int:
    """How many outputs of that size are kept until some are dropped."""
    return max(1, most_bytes // (output_bytes + AROUND_BYTES))


def places(key: int, serials: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A place by chance for each feed, which nobody can tell who does not know the key (SplitMix64)."""
    mixed = (np.asarray(serials, np.int64).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def first(places: npt.NDArray[np.uint64], most: int) -> npt.NDArray[np.intp]:
    """Where the outputs stand that stay, once more than `most` are kept: those in the first half of the places."""
    return np.argsort(places, kind="stable")[: max(1, most // 2)]


Draw = Callable[[int, str], int]
"""Called with how many feeds are finished and the seal of their digests: draws the key that decides which stay."""


def _never(done: int, sealed: str) -> int:
    raise AssertionError("nobody drops these outputs")


class Outputs:
    """What a runner yielded, feed by feed. Lives in the worker; several threads may add at once.

    draw: asked for a key where the outputs take more than `most_bytes`.
    """

    def __init__(self, draw: Draw = _never, most_bytes: int = KEPT_BYTES) -> None:
        self._draw, self._most_bytes = draw, most_bytes
        self._lock = threading.Lock()
        self._serials = array("q")
        """The numbers of all feeds, in the order in which they were finished."""
        self._befores = array("q")
        """The number of the feed before each in the same chain; -1 for the first ones."""
        self._digests = bytearray()
        self._hash = hashlib.sha256()
        self._placed: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        """The places of the first outputs that are kept; the others have none yet."""
        self._kept: list[tuple[int, bytes]] = []
        """Serial and output."""
        self._like: tuple[np.dtype[np.generic], tuple[int, ...]] | None = None

    def add(self, serial: int, parts: list[bytes], last: Array, before: int = -1) -> bytes:
        """Returns the output's digest. parts: the bytes of a feed's yields, of which `last` is one. before: the number
        of the feed before in the same chain. Raises WrongOutput where two feeds' outputs differ in shape."""
        output = b"".join(parts)
        if not output:
            raise WrongOutput("the output for a feed is empty")
        like = last.dtype, last.shape[1:]
        told = digest(serial, output)
        with self._lock:
            self._like = self._like or like
            row = self._like[0].itemsize * math.prod(self._like[1])
            longer = self._kept and len(output) != len(self._kept[0][1])
            if like != self._like or longer or not row or len(output) % row:
                raise WrongOutput("the outputs for two feeds differ in shape")
            self._serials.append(serial)
            self._befores.append(before)
            self._digests += told
            self._hash.update(told)
            self._kept.append((serial, output))
            if len(self._kept) > (most := most_kept(len(output), self._most_bytes)):
                self._drop(most)
        return told

    def _drop(self, most: int) -> None:
        key = self._draw(len(self._serials), self.seal)
        new = places(key, [serial for serial, _ in self._kept[len(self._placed) :]])
        everything = np.concatenate((self._placed, new))
        stay = first(everything, most)
        self._kept = [self._kept[at] for at in stay]
        self._placed = everything[stay]

    @property
    def seal(self) -> str:
        """The seal of all digests."""
        return self._hash.hexdigest()

    def save(self, path: Path) -> None:
        """Writes finished [feeds] int64, the numbers of all feeds in the order in which they were finished; befores
        [feeds] int64 and digests [feeds, 16] uint8 of the same feeds; serials [kept] int64 and outputs
        [kept, units, …]."""
        dtype, tail = self._like or (np.dtype(np.int64), ())
        kept = sorted(self._kept)
        outputs = np.frombuffer(b"".join(output for _, output in kept), dtype)
        with path.open("wb") as file:
            np.savez(
                file,
                finished=np.array(self._serials, np.int64),
                befores=np.array(self._befores, np.int64),
                digests=np.frombuffer(bytes(self._digests), np.uint8).reshape(-1, DIGEST_BYTES),
                serials=np.array([serial for serial, _ in kept], np.int64),
                outputs=outputs.reshape(len(kept), -1, *tail) if len(outputs) else outputs,
            )


@dataclass
class Told:
    """What the parent knows of a window's outputs: it was told all of it while they were timed."""

    chains: int | None = None
    """In how many chains a feed followed from the output before, one or two for each lane of the worker; None: the
    parent handed out each feed."""
    seal: str | None = None
    """The seal of all digests, where it was told when the window ended."""
    digests: dict[int, str] = field(default_factory=dict)
    """The digests that were told feed by feed in a mixed phase, in hexadecimal, by the number of the feed."""
    draws: list[tuple[int, str, int]] = field(default_factory=list)
    """Each time that outputs were dropped: how many feeds were finished, their seal, and the key that was drawn."""

    def draw(self, done: int, sealed: str) -> int:
        """Draws the key that decides which outputs stay."""
        key = secrets.randbits(63)
        self.draws.append((done, sealed, key))
        return key

    def check(self, finished: npt.NDArray[np.int64], digests: npt.NDArray[np.uint8]) -> None:
        """Raises WrongOutput where these are not the digests that were told, of feeds in that order."""
        flat = digests.tobytes()
        rows = (row.tobytes().hex() for row in digests) if self.digests else ()
        same = dict(zip(finished.tolist(), rows, strict=False)).items() >= self.digests.items()
        hashed, hashed_to = hashlib.sha256(), 0
        for done, sealed in (*(drawn[:2] for drawn in self.draws), (len(finished), self.seal)):
            hashed.update(flat[hashed_to * DIGEST_BYTES : done * DIGEST_BYTES])
            hashed_to = done
            same = same and sealed in (None, hashed.hexdigest())
        if not same:
            raise WrongOutput("the outputs are not those that were sealed when they were timed")

    def before(
        self, finished: npt.NDArray[np.int64], befores: npt.NDArray[np.int64], digests: npt.NDArray[np.uint8]
    ) -> dict[int, bytes]:
        """The digest of the output before each feed, from which the feed followed; empty for the first of a chain.

        Raises WrongOutput where the feeds do not make as many chains: an engine would have known more of them at a time
        than it had to run.
        """
        if self.chains is None:
            return dict.fromkeys(finished.tolist(), b"")
        later = befores[befores >= 0]
        heads = len(befores) - len(later)
        if heads > self.chains or len(np.unique(later)) < len(later) or (befores >= finished).any():
            raise WrongOutput(f"the feeds were not run one after the other in {self.chains} chains")
        rows = dict(zip(finished.tolist(), (row.tobytes() for row in digests), strict=True))
        if not rows.keys() >= set(later.tolist()):
            raise WrongOutput("a feed followed one that was not finished")
        return {serial: rows.get(each, b"") for serial, each in zip(finished.tolist(), befores.tolist(), strict=True)}

    def kept(self, finished: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
        """The feeds whose outputs must be there. most: how many of their size are kept until some are dropped. Raises
        WrongOutput where outputs were dropped too early."""
        serials, placed = self._replayed(finished, most)
        return np.concatenate((serials, finished[placed:]))

    def sample(self, finished: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
        """Those of the kept ones that are a fair sample of all feeds: who came late had no chance to be dropped."""
        if not self.draws:
            return finished
        again = Told(draws=[*self.draws, (len(finished), "", secrets.randbits(63))])
        return again._replayed(finished, most, last=True)[0]

    def _replayed(
        self, finished: npt.NDArray[np.int64], most: int, last: bool = False
    ) -> tuple[npt.NDArray[np.int64], int]:
        """The feeds that stayed when outputs were dropped for the last time, and how many were finished then."""
        serials, ranks, before = finished[:0], np.zeros(0, np.uint64), 0
        for turn, (done, _, key) in enumerate(self.draws, 1):
            new = finished[before:done]
            outgrown = len(serials) + len(new) > most or (last and turn == len(self.draws))
            if not before <= done <= len(finished) or not outgrown:
                raise WrongOutput("the worker dropped outputs before they outgrew the memory for them")
            ranks = np.concatenate((ranks, places(key, new)))
            stay = first(ranks, most)
            serials, ranks, before = np.concatenate((serials, new))[stay], ranks[stay], done
        return serials, before
