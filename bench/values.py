"""Statistics of the suites' synthetic weights and inputs, since the power of a matrix product depends on its values.

Run: python -m bench.values [TIER]    (smoke)

For each suite it prints, for the weights in bf16 (and as integers of eight and four bits) and for the inputs of one
feed, the fraction of zeros, the entropy of a value in bits, and the toggling: the fraction of differing bits between
neighbours. Random bits toggle by a half, zeros not at all. A Gaussian tensor is printed for comparison, since trained
weights are close to Gaussian.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.protocols import Spec
from mixmark.harness.contracts.schema import WeightClass
from mixmark.harness.contracts.weights import read_weight, round_to_bf16
from mixmark.harness.plugins.registry import BUILT_IN, load_suite
from mixmark.suites.weights import Draw, Synthetic

SUITES = [name for name in ("llm", "diffusion", "dlrm", "resnet50", "ssm") if name in BUILT_IN["suites"]]
MOST = 1 << 22
"""The limit of values per tensor."""


@dataclass(frozen=True)
class Values:
    """The statistics of a set of words."""

    zeros: float
    entropy_bits: float
    toggling: float


def values(words: npt.NDArray[Any], width: int) -> Values:
    """words: unsigned integers of `width` bits, in the order of memory."""
    words = words.ravel()
    _, counts = np.unique(words, return_counts=True)
    shares = counts / counts.sum()
    flips = np.unpackbits((words[1:] ^ words[:-1]).view(np.uint8)).sum()
    return Values(
        zeros=float((words == 0).mean()),
        entropy_bits=float(-(shares * np.log2(shares)).sum()),
        toggling=float(flips / (max(1, len(words) - 1) * width)),
    )


def bf16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    into = np.empty(array.shape, np.uint16)
    round_to_bf16(np.ascontiguousarray(array), into)
    return into


def weights_of(suite: Any) -> npt.NDArray[np.float32]:
    """The values of all matrices of a suite, up to MOST of each."""
    weights = suite.weights()
    found = []
    for name in weights.names():
        shape = weights.spec(name).shape
        if len(shape) < 2:
            continue  # norms and biases are a millionth of the work
        into = np.empty(shape, np.float32)
        weights.read(name, into)
        found.append(into.ravel()[:MOST])
    return np.concatenate(found)


def inputs_of(suite: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays of a feed, by name."""
    make = suite.feeds(1 if suite.name in ("llm", "diffusion", "ssm") else 32, seeds.pool(1))
    for name, array in make(seeds.nonce(1, 0)).items():
        if np.asarray(array).size > 1:
            yield name, np.asarray(array)


def rows(tier: str) -> Iterator[tuple[str, str, Values]]:
    """(name, format, values) of each tensor."""
    gauss = np.random.default_rng(0).standard_normal(MOST).astype(np.float32)
    yield "a Gaussian tensor", "bf16", values(bf16(gauss), 16)
    for name in SUITES:
        suite = load_suite(name, tier)
        yield f"weights of {name}", "bf16", values(bf16(weights_of(suite)), 16)
        for input, array in inputs_of(suite):
            if array.dtype == np.float32:
                yield f"input {input} of {name}", "bf16", values(bf16(array), 16)
            else:
                yield f"input {input} of {name}", "int32", values(array.astype(np.uint32), 32)
    for bits in (8, 4):
        integers = drawn(bits).astype(np.int8).view(np.uint8) & (2**bits - 1)
        yield "weights of any suite", f"int{bits}", values(integers.astype(np.uint8), bits)


def drawn(weight_class: WeightClass) -> npt.NDArray[np.float32]:
    """Synthetic weights of a class, in units of their scale."""
    shape = (MOST // 1024, 1024)
    return read_weight(
        Synthetic("values", {"w": Spec(shape)}, lambda name, shape: Draw(), weight_class), "w"
    ) / np.float32(Draw().scale(shape, weight_class))


def main() -> None:
    tier = sys.argv[1] if sys.argv[1:] else "smoke"
    print("| what | stored as | zeros | entropy of a value | toggling |\n|---|---|---:|---:|---:|")
    for what, stored, found in rows(tier):
        entropy = f"{found.entropy_bits:.2f} bits"
        print(f"| {what} | {stored} | {found.zeros * 100:.1f} % | {entropy} | {found.toggling * 100:.0f} % |")


if __name__ == "__main__":
    main()
