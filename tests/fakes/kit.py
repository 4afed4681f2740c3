"""A vendor's package as it lies in an environment of its own: an adapter that computes dlrm with numpy, and
the vendor's runtime, whose two versions cannot be in one process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mixmark import Array, Device, GraphRunner, Runner, Suite, Unsupported, Use, refuse_options

NAMES = ("W_kernels", "V_kernels", "bias")
HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


class Session:
    """dlrm's only graph."""

    def __init__(self, suite: Suite) -> None:
        weights = suite.weights()
        self.weights: dict[str, Any] = {}
        for name in weights.names():
            self.weights[name] = np.empty([int(size) for size in weights.spec(name).shape], np.float32)
            weights.read(name, self.weights[name])
        assert suite.graphs()["rank"].onnx()  # a vendor would compile it

    def put(self, array: Array) -> Any:
        return array

    def state(self, graph: str) -> Any:
        return None

    def get(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def run(self, graph: str, *inputs: Any, state: Any = None) -> Sequence[Any]:
        dense, indices = inputs
        bags = np.split(indices, np.cumsum(HOTNESS)[:-1])
        parts = [self._mlp("dense_arch.model", dense, 3)]
        for number, bag in enumerate(bags):
            table = self.weights[f"model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{number}.weight"]
            parts.append(table[bag].sum(axis=0))
        x = x0 = np.concatenate(parts, axis=1)
        for layer in range(3):
            w, v, bias = (self.weights[f"model.inter_arch.crossnet.{k}.{layer}"] for k in NAMES)
            x = x0 * (x @ v.T @ w.T + bias.ravel()) + x
        x = self._mlp("over_arch.model.0", x, 4)
        last = "model.over_arch.model.1"
        return ((x @ self.weights[f"{last}.weight"].T + self.weights[f"{last}.bias"]).ravel(),)

    def _mlp(self, where: str, x: Array, layers: int) -> Array:
        for layer in range(layers):
            name = f"model.{where}._mlp.{layer}._linear"
            x = relu(x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"])
        return x


def runtime() -> Any:
    return importlib.import_module("acme_runtime")  # only a vendor's environment has it


def relu(x: Array) -> Array:
    found = runtime()
    done: Array = found.relu(x) if found.VERSION < (2,) else found.activate("relu", x)
    return done


def version() -> str:
    return ".".join(map(str, runtime().VERSION))


class Acme:
    name = "acme"

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_options("adapter acme", options, ["broken", "device"])
        self.broken = options.get("broken") == "true"
        self.device = options.get("device", "npu:acme0")

    def discover(self) -> Iterable[Device]:
        if self.broken:
            print("libacme: cannot open /dev/acme0")
            sys.stdout.flush()
            os._exit(3)
        pool = self.device
        yield Device(id=pool, kind="npu", name="Acme", memory_pool=pool, memory_bytes=8 << 30, precisions=("fp32",))

    def disclose(self) -> Mapping[str, str]:
        return {"Acme driver": "4.2\x1b[31m", "Acme firmware": "7", "Acme runtime": version()}

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        if suite.name != "dlrm":
            raise Unsupported(f"acme has no kernels for {suite.name}")
        yield GraphRunner(suite, Session(suite), concurrency=1, facts={"engine": f"acme {version()}"})
