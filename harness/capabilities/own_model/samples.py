"""What a model is given: samples of a file, combined to batches, or values that are drawn."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mixmark.harness.capabilities.own_model.model import BATCH, Model, regular
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.protocols import Array, Feed


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

    def __init__(self, model: Model, arrays: Mapping[str, Array], ranges: Mapping[str, str]) -> None:
        self._inputs, self._types = model.inputs, model.types
        choose_by_name("input of the model", [*arrays, *ranges], model.inputs)
        self._ranges = {name: self._range(name, text) for name, text in ranges.items()}
        self._rows = {name: self._checked(name, array) for name, array in arrays.items()}
        counts = {name: len(rows) for name, rows in self._rows.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise UsageError(f"--inputs has unequal numbers of samples: {listed}", "give as many of each, at least one")
        self.count = next(iter(counts.values()), 0)
        self.described = model.inputs.keys() <= self._rows.keys() | self._ranges.keys()
        """Whether samples or a range describe each input."""

    def _range(self, name: str, text: str) -> tuple[float, float]:
        low, _, high = text.partition(":")
        try:
            bounds = float(low), float(high)
        except ValueError:
            bounds = 0.0, 0.0
        if not (math.isfinite(sum(bounds)) and bounds[0] < bounds[1]):
            raise UsageError(f"--range {name}={text} is no range", hint="give LOW:HIGH, such as 0:256")
        return bounds

    def _checked(self, name: str, array: Array) -> Array:
        """The samples as the model takes them: [samples, shape of the input without the batch]."""
        kind = np.dtype(self._types[name])
        if array.dtype.kind not in ("f" if kind.kind == "f" else "iub"):
            raise UsageError(f"--inputs: {name} is of {array.dtype}, and the model takes {kind}", hint="convert it")
        sample = tuple(1 if size == BATCH else int(size) for size in self._inputs[name].shape)
        if not array.ndim or array.shape[1:] not in (sample, sample[1:] if sample[:1] == (1,) else sample):
            shapes = f"has the shape {array.shape}, and a sample of the model {sample}"
            raise UsageError(f"--inputs: {name} {shapes}", hint="give the samples in the first dimension")
        shape = sample[BATCH in self._inputs[name].shape :]
        return array.astype(np.float32 if kind.kind == "f" else kind).reshape(-1, *shape)

    def draw(self, random: np.random.Generator, batch: int) -> Feed:
        """A feed: each of its samples is one of the file, and others are drawn from the ranges, or are noise."""
        chosen = (random.random(batch) * self.count).astype(np.intp)  # `integers` takes five times as long for one
        feed = {}
        for name, spec in self._inputs.items():
            if name in self._rows:
                feed[name] = self._rows[name].take(chosen if BATCH in spec.shape else chosen[0], 0)
            else:
                shape = tuple(batch if size == BATCH else int(size) for size in spec.shape)
                feed[name] = self._drawn(random, name, shape)
        return feed

    def _drawn(self, random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
        kind, bounds = np.dtype(self._types[name]), self._ranges.get(name)
        if kind.kind != "f":
            low, high = map(int, bounds or (0, 2))
            return np.asarray(random.integers(low, high, shape), kind)
        return np.asarray(random.uniform(*bounds, shape) if bounds else random.standard_normal(shape), np.float32)
