"""A suite's synthetic weights, which need the bits of their class.

The random generators of weights and feeds are counter-based (Philox), so they are equal on every platform.

Random Gaussian weights would make a quality gate useless: honest int4 would be as far from the reference as a skipped
layer. So the weights of a class are exact in the formats of that class, and in no format of fewer bits: an engine that
reads fewer bits than it declares gives other outputs. They are integers times one power of two per tensor:

    class 16   integers to ±1408 of 8 significant bits: exact in bf16 and fp16
    class 8    integers to ±63: exact in int8 with that power of two as the scale
    class 4    integers from -8 to 6: exact in int4 (scale = absmax / 8), MXFP4, NVFP4

Each group of 32 weights along the contraction axis (all axes after axis 0, flattened; groups restart at each row) is a
permutation of one multiset. It sums to zero: otherwise the mean of the activations would grow from layer to layer, and
the network would collapse to one constant output. The classes 8 and 16 add noise that sums to zero, too. In class 8 a
group is 16 pairs of a random magnitude and its negative. Whatever rounds both alike keeps the sum, so the scales of
stock int8 and of fp8, at which the integers are not exact, do not shift a whole channel. In class 16 the noise is a
ring of random numbers, each less its successor, and the sum is rounded to 8 significant bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from mixmark.harness.contracts.protocols import Spec
from mixmark.harness.contracts.schema import WeightClass
from mixmark.harness.resources import cpus

if TYPE_CHECKING:
    from torch import nn

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int8]
Words = npt.NDArray[np.uint64]

GROUP = 32
# The counts resemble a rounded bell curve. The multiset contains -8, so that absmax / 8 is the tensor's power of two.
_FOUR = {-8: 1, 6: 3, -6: 2, 4: 4, -4: 3, 3: 3, -3: 3, 2: 3, -2: 4, 1: 3, -1: 3}
# The magnitudes of pairs. With noise none is above 63: the sum of two products with unsigned bytes then fits into the
# 16 bits in which processors without dot products of bytes add them.
_EIGHT = {0: 2, 8: 3, 16: 3, 24: 3, 32: 2, 36: 1, 48: 1, 56: 1}
# A bell curve with the kurtosis of a Gaussian, in units of a quarter. A longer tail would make the rounding to int8
# larger, but would carry most of the variance: with ±48 a quarter of llm's outputs fell into a cycle at smoke.
_SIXTEEN = {sign * value: 1 for value in (36, 21, 19, 17, 15, 13, 12, 11, 9, 8, 7, *range(1, 6)) for sign in (1, -1)}


@dataclass(frozen=True)
class Grain:
    """The integers of a weight class: a multiset times `step`, plus noise."""

    multiset: Integers
    """The 32 values of a group, or the magnitudes of its 16 pairs."""
    shift: int
    """The power of two that the integers' root mean square is above class 4's."""
    step: int = 1
    pair_bits: int = 0
    """The bits of the noise that is added to the magnitude of a pair."""
    ring_bits: int = 0
    """The bits of each number in a ring of noise."""
    significant_bits: int | None = None
    """The bits that the integers are rounded to. None if they are exact."""


def _multiset(counts: Mapping[int, int]) -> Integers:
    return np.repeat(np.array(list(counts), np.int8), list(counts.values()))


GRAINS: Mapping[WeightClass, Grain] = {
    16: Grain(_multiset(_SIXTEEN), shift=7, step=32, ring_bits=8, significant_bits=8),
    8: Grain(_multiset(_EIGHT), shift=3, pair_bits=3),
    4: Grain(_multiset(_FOUR), shift=0),
}
RMS = math.sqrt(float(np.mean(np.square(GRAINS[4].multiset, dtype=np.float64))))
"""The root mean square of a class's integers, over 2^shift; within 2 % for all classes."""

_STARTS = 4096  # permutations in the table; its 128 KiB fit into a core's cache
_CHUNK = 1 << 12  # groups drawn at a time, 131,072 weights: their scratch memory fits into a core's cache
_STREAM = 1 << 192  # counters of each stream: the groups, the remainders, the noise of either


@dataclass(frozen=True)
class Draw:
    """A drawn tensor, whose scale is the power of two nearest to gain / (the rms of class 4's integers · √fan_in).

    fan_in is prod(shape[1:]), and 1 for a vector. So a matrix of gain 1 keeps the standard deviation of its input, up
    to a factor of 0.71 to 1.41 from the rounding of the scale.

    signs_only: the draw decides the signs, and every magnitude is the gain. It must be exact in the class's formats.
    """

    gain: float = 1.0
    signs_only: bool = False

    def scale(self, shape: Sequence[int], weight_class: WeightClass) -> float:
        """The value of the integer 1. The same tensor has the same gain in all classes."""
        fan_in = math.prod(shape[1:])
        return 2.0 ** (round(math.log2(self.gain / (RMS * math.sqrt(fan_in)))) - GRAINS[weight_class].shift)


def philox_key(text: str) -> int:
    """A 128-bit key from the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def generator(*words: object) -> np.random.Generator:
    """A generator seeded by these words. Generators of different words are independent."""
    key: Any = _Key(philox_key("/".join(map(str, words))))
    return np.random.Generator(np.random.Philox(key))


@dataclass(frozen=True)
class _Key(ISeedSequence):
    """Seeds Philox as `key=` does. With that numpy also draws entropy that it does not use, which took longer than the
    generator of a feed takes otherwise."""

    key: int

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return np.frombuffer(self.key.to_bytes(16, "little"), "<u8")


Fill = float | Draw
"""How a tensor is filled: with a constant or with a draw."""


class Named:
    """Weights whose names and shapes are known before they are read."""

    specs: Mapping[str, Spec]

    def names(self) -> Sequence[str]:
        return list(self.specs)

    def spec(self, name: str) -> Spec:
        return self.specs[name]


@dataclass(frozen=True)
class Synthetic(Named):
    """Weights of a class from a counter-based generator keyed by suite, tensor name and seed.

    The bits are equal on every platform and with every number of threads. rule: returns how a tensor of a name and a
    shape is filled.
    """

    suite: str
    specs: Mapping[str, Spec]
    rule: Callable[[str, tuple[int, ...]], Fill]
    weight_class: WeightClass
    seed: int = 0
    threads: int = field(default_factory=cpus.count)

    def read(self, name: str, into: Floats) -> None:
        """Fills `into`; raises ValueError if it is not C-contiguous float32 of the tensor's shape."""
        shape = check_buffer(name, self.specs[name], into)
        fill = self.rule(name, shape)
        if isinstance(fill, Draw):
            rows = into.reshape(-1, math.prod(shape[1:])) if len(shape) > 1 else into.reshape(1, -1)
            Drawing(
                GRAINS[self.weight_class],
                philox_key(f"{self.suite}/{name}/{self.seed}"),
                _starts(self.weight_class, self.seed),
                np.float32(fill.scale(shape, self.weight_class)),
            ).fill(rows, self.threads)
            if fill.signs_only:
                np.copysign(np.float32(fill.gain), into, out=into)
        else:
            into.fill(fill)


@dataclass(frozen=True)
class Drawing:
    """The draw of one tensor. key: of its generator. starts: as `_starts` returns them. scale: of the integer 1."""

    grain: Grain
    key: int
    starts: Words
    scale: np.float32

    def fill(self, rows: Floats, threads: int) -> None:
        """Fills rows [rows, length] with whole groups from the left, then with the remainder."""
        whole, rest = divmod(rows.shape[1], GROUP)
        step = _CHUNK if not rest else max(2, _CHUNK // max(whole, 1) & ~1)  # even: a Philox block serves two groups
        # Without a remainder the groups of all rows lie back to back, so row ends do not matter.
        plane = rows.reshape(-1, GROUP) if not rest else rows

        def part(start: int) -> None:
            filled = plane[start : start + step]
            groups = filled.shape[1] // GROUP
            self._groups(filled[:, : GROUP * groups], start * groups)
            if rest:
                self._remainders(filled[:, GROUP * groups :], start)

        begins = range(0, len(plane), step)
        if threads == 1 or len(begins) == 1:
            for start in begins:
                part(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(part, begins):
                    pass

    def _groups(self, into: Floats, first: int) -> None:
        """Fills rows of whole groups. first: the number of their first group."""
        groups = into.size // GROUP
        noise = None
        if bits := self.grain.pair_bits:
            raw = _raw(self.key, 2 * _STREAM + first // 2, 2 * groups).reshape(-1, 2).T
            noise = np.ascontiguousarray(raw).view(np.uint8) >> np.uint8(8 - bits)
        values = _groups(_raw(self.key, first // 2, 2 * groups), self.starts, noise)
        ring = self._ring(2, first, groups, GROUP) if self.grain.ring_bits else None
        self._store(values, self.grain.step, ring, into)

    def _remainders(self, into: Floats, first: int) -> None:
        """Fills the ends of rows. first: the number of their first row."""
        rows, rest = into.shape
        # Each row takes a multiple of 4 words, so that it begins with a new Philox block.
        words = -(-rest // 4) * 4
        keys = _raw(self.key, _STREAM + first * words // 4, rows * words).reshape(rows, words)
        values = remainder(rest)[np.argsort(keys[:, :rest], axis=1, kind="stable")]
        ring = self._ring(3, first, rows, rest) if self.grain.ring_bits else None
        self._store(values, 1 << self.grain.shift, ring, into)

    def _ring(self, stream: int, first: int, count: int, length: int) -> npt.NDArray[np.int16]:
        """Rings of random numbers, each less its successor: [count, length]. Each ring sums to zero.

        A ring takes one Philox block. first: the number of the first ring.
        """
        raw = _raw(self.key, stream * _STREAM + first, 4 * count).view(np.uint8).reshape(count, GROUP)
        ring = raw[:, :length].astype(np.int16)
        ring >>= 8 - self.grain.ring_bits
        noise = np.empty_like(ring)
        flat = ring.reshape(-1)  # one long subtraction is faster than many short ones
        np.subtract(flat[:-1], flat[1:], out=noise.reshape(-1)[:-1])
        np.subtract(ring[:, -1], ring[:, 0], out=noise[:, -1])
        return noise

    def _store(self, values: Integers, step: int, ring: npt.NDArray[np.int16] | None, into: Floats) -> None:
        """Writes (values · step + ring) · scale, with the significant bits of the class."""
        if ring is None:
            np.multiply(values.reshape(into.shape), self.scale * np.float32(step), out=into, dtype=np.float32)
            return
        sums = values.astype(np.int16)
        sums *= np.int16(step)
        sums += ring
        np.multiply(sums.reshape(into.shape), self.scale, out=into, dtype=np.float32)
        if bits := self.grain.significant_bits:  # Veltkamp's rounding to the upper bits of float32's 24
            high = into * np.float32((1 << 24 - bits) + 1)
            np.subtract(high, into, out=into)
            np.subtract(high, into, out=into)


def _groups(raw: Words, starts: Words, noise: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.int8]:
    """Permutations of the multiset, [groups, 32], from two random words a group.

    noise: [2, 8 · groups], for pairs: it is added to the words 0 and 1 of a start, and subtracted from the negatives.

    A group is four words of eight bytes, and each step only moves bytes: one of 4,096 random starts (12 bits), random
    exchanges between the words (32 bits), a rotation of each word (12 bits), exchanges again (32 bits). So 88 random
    bits determine a group, and 89.4 bits would number all permutations: no short index encodes a group.
    """
    start, swap = raw.reshape(-1, 2).T
    words = starts.take((start & np.uint64(_STARTS - 1)).astype(np.intp), axis=1)  # [4, groups]
    if noise is not None:
        positive, negative = words.view(np.uint8).reshape(2, *noise.shape)
        positive += noise
        negative -= noise
    _exchange(words, swap, 0)
    turn: Words = ((start >> _SHIFTS) & np.uint64(7)) << np.uint64(3)
    words = (words << turn) | (words >> ((np.uint64(64) - turn) & np.uint64(63)))
    _exchange(words, swap, 4)
    return np.ascontiguousarray(words.T).view(np.int8)


_SHIFTS = np.array([[16], [24], [32], [40]], np.uint64)
_LOW_BITS = np.uint64(0x0101010101010101)


def _exchange(words: Words, bits: Words, plane: int) -> None:
    """Exchanges bytes between words 0 and 2 and words 1 and 3, then between words 0 and 1 and words 2 and 3.

    A byte is exchanged if its bit in `bits` is set: bit `plane` of each byte for the first pair of words, and the
    three bits after it for the other pairs.
    """
    for pairs in (words.reshape(2, 2, -1), words.reshape(2, 2, -1).swapaxes(0, 1)):
        left, right = pairs
        moved = (bits >> np.array([[plane], [plane + 1]], np.uint64)) & _LOW_BITS
        moved *= np.uint64(255)
        moved &= left ^ right
        left ^= moved
        right ^= moved
        plane += 2


def remainder(length: int) -> npt.NDArray[np.int8]:
    """The `length` < 32 values at the end of a row that is no multiple of 32 long, before they are permuted and before
    noise is added, in units of 2^shift.

    They are ± pairs, preceded by -3, 2, 1 if the length is odd, so they sum to zero. A single value cannot sum to
    zero and is 4: a row of length 1 acts as a gain, which needs a mean. In class 4 the values are exact at the tensor's
    power of two, but not at absmax / 8 of the remainder.
    """
    if length == 1:
        return np.array([4], np.int8)
    odd = [-3, 2, 1] if length % 2 else []
    pairs = [value for i in range((length - len(odd)) // 2) for value in (_PAIRS[i % 5], -_PAIRS[i % 5])]
    return np.array(odd + pairs, np.int8)


_PAIRS = (4, 3, 6, 2, 1)  # in this order the rms of every length is near the multiset's


def _raw(key: int, block: int, count: int) -> Words:
    """`count` raw words of the generator, from a block of four words on.

    The raw output is defined by the algorithm; numpy may change its distributions.
    """
    return np.asarray(np.random.Philox(key=key, counter=block).random_raw(count), np.uint64)


@lru_cache(maxsize=4)
def _starts(weight_class: WeightClass, seed: int) -> Words:
    """Random permutations of a class's multiset, each as four little-endian words: [4, starts] uint64.

    Of pairs, the magnitudes are in the words 0 and 1, and their negatives at the same places of the words 2 and 3.
    """
    grain = GRAINS[weight_class]
    length = len(grain.multiset)
    keys = _raw(philox_key(f"starts/{seed}"), 0, _STARTS * length).reshape(_STARTS, length)
    drawn = grain.multiset[np.argsort(keys, axis=1, kind="stable")]
    groups = np.concatenate((drawn, -drawn), axis=1) if grain.pair_bits else drawn
    return np.ascontiguousarray(groups.view(np.uint64).T)


def check_buffer(name: str, spec: Spec, into: Floats) -> tuple[int, ...]:
    """The tensor's shape. Raises ValueError if `into` is not C-contiguous float32 of that shape."""
    if into.shape != spec.shape or into.dtype != np.float32 or not into.flags.c_contiguous:
        raise ValueError(f"{name} needs C-contiguous float32 {spec.shape}, not {into.dtype} {into.shape}")
    return into.shape


def embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding whose weight [rows, width] is not drawn. torch would draw it even on the meta device, and import its
    compiler for that, which takes a second in each process."""
    import torch
    from torch import nn

    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))
