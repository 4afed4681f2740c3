"""Quantises weights to 8 and 4 bits: integers and float32 scales, exact if the weights allow it. Pure numpy.

Synthetic weights of the classes 8 and 4 are integers up to ±63 and from −8 to 6 times a power of two (see
suites/weights.py), and a folded batch norm multiplies each output channel by a factor. Both are exact in the bits of
their class if the scale is the weight's step. The step is found as the largest value divided by an integer, up to 64 in
8 bits and up to 8 in 4. Weights without a step, such as trained weights, are rounded at the scale that their largest
value needs.

An exact coarse scale is used even if finer scales were requested: it is found in one pass, and a group of 32 without
the largest value would not show the step. The integers then stay within ±64 in 8 bits. This keeps sums of two products
below 16 bits, at which processors without dot products of bytes saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mixmark.harness.resources import cpus

GROUP = 32
STEPS = {8: (*range(1, 65),), 4: (8, *range(1, 8))}
"""Candidates for the largest value in steps, by the bits, in this order."""
ROUNDING = 2.0**-16  # the largest rounding of a folded weight in float32, as a fraction of a step
SAMPLE = 16  # so many values of a row must fit a step before all values are tried
FIRST = 1024  # one of so many rows must have a separate step before all rows are searched
CHUNK = 1 << 18  # values at a time in each thread: 1 MiB in float32

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Quantised:
    """A weight as `integers` times `scales`.

    Integers are from −127 to 127 in 8 bits and from −8 to 7 in 4 bits. A scale may be negative in 4 bits, so that the
    value of the largest magnitude becomes −8.
    """

    integers: Integers
    scales: Floats
    exact: bool
    """Whether the product equals the weight, up to float32's rounding."""


def per_channel(weight: Floats, bits: int = 8) -> Quantised:
    """A scale for each index of axis 0, the output channels: integers of the weight's shape, scales [channels]."""
    rows = _rows(weight)
    scales, exact = _row_scales(rows, bits)
    return Quantised(_round(rows, scales, bits).reshape(weight.shape), scales, exact)


def in_groups(weight: Floats, bits: int = 4, group: int = GROUP) -> Quantised:
    """A scale for each `group` values along the contraction axes, which are all axes after axis 0, flattened.

    integers: [channels, groups, group], the last group padded with zeros. scales: [channels, groups].
    """
    rows = _rows(weight)
    groups = -(-rows.shape[1] // group)
    if missing := groups * group - rows.shape[1]:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    scales, exact = _row_scales(rows, bits)
    if exact:
        scales = np.repeat(scales, groups)
        rows = rows.reshape(-1, group)
    else:
        rows = rows.reshape(-1, group)
        scales, exact = _row_scales(rows, bits)
    return Quantised(_round(rows, scales, bits).reshape(-1, groups, group), scales.reshape(-1, groups), exact)


def packed(integers: Integers) -> npt.NDArray[np.uint8]:
    """Two integers of 4 bits a byte along the last axis, the first one in the low half, each with 8 added to it."""
    shifted = (integers + np.int8(8)).view(np.uint8)
    return shifted[..., 0::2] | (shifted[..., 1::2] << np.uint8(4))


def _rows(weight: Floats) -> Floats:
    return weight.reshape(len(weight), -1)


def _row_scales(rows: Floats, bits: int) -> tuple[Floats, bool]:
    """A scale for each row, and whether all of them are exact."""
    if (shared := _shared_scale(rows, bits)) is not None:
        return shared, True
    largest = _largest(rows)
    scales = _step(largest, 8 if bits == 4 else 127, bits)
    if not _find_steps(rows[:FIRST], largest[:FIRST], bits, scales[:FIRST]).any():
        return scales, False
    return scales, bool(_find_steps(rows, largest, bits, scales).all())


def _find_steps(rows: Floats, largest: Floats, bits: int, scales: Floats) -> npt.NDArray[np.bool_]:
    """Writes the step of each row that has one into `scales`. Returns whether each row has a step: [rows]."""
    found = np.zeros(len(rows), np.bool_)
    for steps in STEPS[bits]:
        missing = np.flatnonzero(~found)
        tried = _step(largest[missing], steps, bits)
        fits = _fits(rows[missing, :SAMPLE], tried, bits)
        fits[fits] = _fits(rows[missing[fits]], tried[fits], bits)
        found[missing[fits]] = True
        scales[missing[fits]] = tried[fits]
    return found


def _shared_scale(rows: Floats, bits: int) -> Floats | None:
    """The common step of all rows, repeated for each row; None if there is none."""
    largest = _largest(rows)
    peak = largest[[np.abs(largest).argmax()]]
    for steps in STEPS[bits]:
        scales = np.broadcast_to(_step(peak, steps, bits), len(rows))
        if _fits(rows[:1], scales[:1], bits).all() and _fits(rows, scales, bits).all():
            return scales
    return None


def _largest(rows: Floats) -> Floats:
    """The value of the largest magnitude in each row, with its sign."""
    out = np.empty(len(rows), np.float32)

    def chunk(part: slice) -> None:
        high, low = rows[part].max(1), rows[part].min(1)
        out[part] = np.where(high > -low, high, low)

    _in_chunks(chunk, rows)
    return out


def _step(largest: Floats, steps: int, bits: int) -> Floats:
    """The scale at which the largest value is `steps` steps; −8, not 8, in 4 bits, which have no 8. 1 for zeros."""
    negative = bits == 4 and steps == 8
    scales: Floats = np.divide(largest if negative else np.abs(largest), -8 if negative else steps, dtype=np.float32)
    scales[scales == 0] = 1
    return scales


def _fits(rows: Floats, scales: Floats, bits: int) -> npt.NDArray[np.bool_]:
    """Whether all values of a row are integers times its scale. A value far below the scale does not count as zero."""
    out = np.empty(len(rows), np.bool_)

    def chunk(part: slice) -> None:
        quotient = rows[part] / scales[part, None]
        nearest = _nearest(quotient, bits)
        lost = ((nearest == 0) & (quotient != 0)).any(1)
        quotient -= nearest
        np.abs(quotient, out=quotient)
        out[part] = (quotient.max(1) <= ROUNDING) & ~lost

    _in_chunks(chunk, rows)
    return out


def _round(rows: Floats, scales: Floats, bits: int) -> Integers:
    out = np.empty(rows.shape, np.int8)

    def chunk(part: slice) -> None:
        quotient = rows[part] / scales[part, None]
        np.copyto(out[part], _nearest(quotient, bits), casting="unsafe")

    _in_chunks(chunk, rows)
    return out


def _nearest(quotient: Floats, bits: int) -> Floats:
    """The nearest integers. In 4 bits the negative of the largest value becomes 7, because there is no 8."""
    nearest: Floats = np.rint(quotient)
    if bits == 4:
        np.minimum(nearest, 7, out=nearest)
    return nearest


def _in_chunks(work: Callable[[slice], None], rows: Floats) -> None:
    """Calls `work` on slices of the rows that fit into a core's cache, in one thread for each core."""
    step = max(1, CHUNK // max(rows.shape[1], 1))
    parts = [slice(start, start + step) for start in range(0, len(rows), step)]
    if len(parts) < 2:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(cpus.count()) as pool:
        for _ in pool.map(work, parts):
            pass
