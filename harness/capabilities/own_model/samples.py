"""What a model is given: samples of a file, combined to batches, or values that are drawn."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mixmark.harness.capabilities.own_model.model import BATCH, regular
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Array, Feed, Spec


def read(file: Path) -> dict[str, Array]:
    """The arrays of a file of samples. Raises UsageError."""
    try:
        with np.load(regular(file), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, EOFError) as error:
        why = getattr(error, "strerror", None) or "it is no archive of arrays"
        raise UsageError(f"--inputs {file.name} cannot be read: {why}", hint="write it with numpy.savez") from error


class Samples:
    """The feeds of a model. arrays: of the file of samples; ranges: LOW:HIGH by the input. Raises UsageError."""

    def __init__(
        self,
        inputs: Mapping[str, Spec],
        types: Mapping[str, str],
        arrays: Mapping[str, Array],
        ranges: Mapping[str, str],
    ) -> None:
        if strange := [name for name in (*arrays, *ranges) if name not in inputs]:
            known = f"the model's inputs are {', '.join(inputs)}"
            raise UsageError(f"the model has no input {', '.join(strange)}", hint=known)
        self._inputs, self._types = inputs, types
        self._ranges = {name: self._range(name, text) for name, text in ranges.items()}
        self._fixed: dict[str, Array] = {}
        self._rows: dict[str, Array] = {}
        for name, array in arrays.items():
            self._add(name, array)
        counts = {name: len(rows) for name, rows in self._rows.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise UsageError(
                f"--inputs has unequal numbers of samples: {listed}", hint="give as many of each, and one at least"
            )
        self.count = next(iter(counts.values()), 0)

    @property
    def undescribed(self) -> list[str]:
        """The inputs that neither samples nor a range describe."""
        return [name for name in self._inputs if not {name} & {*self._rows, *self._fixed, *self._ranges}]

    def _range(self, name: str, text: str) -> tuple[float, float]:
        low, _, high = text.partition(":")
        try:
            bounds = float(low), float(high)
        except ValueError:
            bounds = 0.0, 0.0
        if not (math.isfinite(sum(bounds)) and bounds[0] < bounds[1]):
            raise UsageError(f"--range {name}={text} is no range", hint="give LOW:HIGH, such as 0:256")
        return bounds

    def _add(self, name: str, array: Array) -> None:
        shape, kind = self._inputs[name].shape, np.dtype(self._types[name])
        wanted = np.dtype(np.float32) if kind.kind == "f" else kind
        if not (array.dtype.kind == "f" if kind.kind == "f" else array.dtype.kind in "iub"):
            raise UsageError(f"--inputs: {name} is of {array.dtype}, and the model takes {kind}", hint="convert it")
        array = np.ascontiguousarray(array.astype(wanted))
        sample = tuple(1 if size == BATCH else size for size in shape)
        if array.ndim and array.shape[1:] == sample:
            self._rows[name] = array
        elif array.ndim == len(sample) and array.shape[1:] == sample[1:] and sample[0] == 1:
            self._rows[name] = array[:, None]
        elif array.shape == sample:
            self._fixed[name] = array
        else:
            raise UsageError(
                f"--inputs: {name} has the shape {array.shape}, and a sample of the model {sample}",
                hint=f"give an array of the shape (samples, {', '.join(map(str, sample))})",
            )

    def draw(self, random: np.random.Generator, batch: int) -> Feed:
        """A feed: each of its samples is one of the file, and others are drawn from the ranges, or are noise."""
        chosen = random.integers(self.count, size=batch) if self.count else np.zeros(batch, np.int64)
        feed = {}
        for name, spec in self._inputs.items():
            stacked = spec.shape[:1] == (BATCH,)
            if name in self._fixed:
                feed[name] = np.ascontiguousarray(
                    np.repeat(self._fixed[name], batch, 0) if stacked else self._fixed[name]
                )
            elif name in self._rows:
                rows = self._rows[name][chosen]
                feed[name] = np.ascontiguousarray(np.concatenate(rows) if stacked else rows[0])
            else:
                feed[name] = self._drawn(
                    random, name, tuple(batch if size == BATCH else int(size) for size in spec.shape)
                )
        return feed

    def _drawn(self, random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
        kind = np.dtype(self._types[name])
        if kind.kind == "f":
            low, high = self._ranges.get(name, (0.0, 0.0))
            noise = random.uniform(low, high, shape) if low < high else random.standard_normal(shape)
            return np.asarray(noise, np.float32)
        low, high = self._ranges.get(name, (0, 2))
        return np.asarray(random.integers(int(low), int(high), shape), kind)
