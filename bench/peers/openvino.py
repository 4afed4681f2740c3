"""OpenVINO as in its benchmark_app: the unchanged ONNX file, the throughput hint, and a queue of requests.

Diffusion is single-stream, so its graphs run one after the other under the latency hint. In int8, NNCF, OpenVINO's
quantiser, converts the file with its defaults (`pip install nncf`, which no extra of Mixmark installs).
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mixmark.harness.adapters.openvino import HINTS, _import
from mixmark.harness.adapters.openvino.models import reshaped
from mixmark.harness.contracts.protocols import Feed
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.resnet50 import ResNet50

BATCHES = {"resnet50": (1, 8, 16), "dlrm": (64, 256, 1024)}
ROUND_S = 4.0
CALIBRATING_FEEDS = 64


@contextmanager
def models(suite: Any) -> Iterator[Mapping[str, Any]]:
    """The suite's graphs as OpenVINO reads them from files with fp32 weights, which an exporter would write."""
    import onnx

    core, weights, found = _import().Core(), suite.weights(), {}
    with TemporaryDirectory(prefix="mixmark-") as folder:
        for name, graph in suite.graphs().items():
            home = Path(folder) / name
            home.mkdir()
            proto = onnx.load_from_string(graph.onnx())
            with (home / "weights.bin").open("wb") as file:
                for each in proto.graph.initializer:
                    if each.data_location == onnx.TensorProto.EXTERNAL:
                        file.seek(next(int(entry.value) for entry in each.external_data if entry.key == "offset"))
                        values = np.empty(tuple(each.dims), np.float32)
                        weights.read(each.name, values)
                        file.write(values.data)
            (home / "model.onnx").write_bytes(proto.SerializeToString())
            found[name] = core.read_model(home / "model.onnx")
        yield found


def quantised(suite: Any, model: Any) -> Any:
    """The model in int8, with scales that NNCF measures on feeds of one sample."""
    feeds = suite.feeds(1, 0)
    samples = [dict(feeds(nonce)) for nonce in range(CALIBRATING_FEEDS)]
    with redirect_stdout(sys.stderr):  # NNCF prints its progress, but a peer's output is its rates
        try:
            nncf = importlib.import_module("nncf")
        except ImportError as error:
            raise SystemExit(f"{error.name} is not installed: pip install nncf") from error
        return nncf.quantize(model, nncf.Dataset(samples), subset_size=len(samples))


def compiled(suite: Any, name: str, model: Any, batch: int, precision: str, hint: str) -> Any:
    shapes = {
        each: [batch if isinstance(axis, str) else axis for axis in spec.shape]
        for each, spec in suite.graphs()[name].inputs.items()
    }
    config = {"PERFORMANCE_HINT": hint}
    if precision in HINTS:
        config["INFERENCE_PRECISION_HINT"] = HINTS[precision]
    return _import().Core().compile_model(reshaped(model, shapes), "CPU", config)


def queued(model: Any, feed: Feed, batch: int, seconds: float) -> float:
    """Samples per second with a full queue."""
    queue = _import().AsyncInferQueue(model)
    inputs = dict(feed)
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        queue.start_async(inputs, share_inputs=True)
        done += batch
    queue.wait_all()
    return done / (time.monotonic() - begin)


@contextmanager
def _offline(suite: Any, precision: str) -> Iterator[Callable[[], float]]:
    """The best of a few batches."""
    with models(suite) as read:
        ((name, model),) = read.items()
        if precision == "int8":
            model = quantised(suite, model)
        best: tuple[float, int, Any, Feed] | None = None
        for batch in BATCHES[suite.name]:
            network = compiled(suite, name, model, batch, precision, "THROUGHPUT")
            feed: Feed = {each: np.array(array) for each, array in suite.feeds(batch, 0)(0).items()}
            queued(network, feed, batch, 0.5)
            rate = queued(network, feed, batch, 1.5)
            if best is None or rate > best[0]:
                best = rate, batch, network, feed
        assert best is not None
        _, batch, network, feed = best
        yield lambda: queued(network, feed, batch, ROUND_S)


@contextmanager
def resnet50(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    with _offline(ResNet50(tier, {}), precision) as work:
        yield work


@contextmanager
def dlrm(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    with _offline(Dlrm(tier, {}), precision) as work:
        yield work


@contextmanager
def diffusion(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    suite = Diffusion(tier, {})
    with models(suite) as read:
        networks = [compiled(suite, name, model, 1, precision, "LATENCY") for name, model in read.items()]
    encode, denoise, decode = (each.create_infer_request() for each in networks)
    feed = suite.feeds(1, 0)(0)

    def work() -> float:
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < ROUND_S:
            context = encode.infer({"ids": feed["ids"]})["context"]
            latent, step = feed["noise"], np.zeros(1, np.int64)
            for _ in range(suite.shape.steps):
                inputs = {"latent": latent, "step": step, "context": context}
                out = denoise.infer(inputs)
                latent, step = out["next_latent"], out["next_step"]
            decode.infer({"latent": latent})
            done += 1
        return done / (time.monotonic() - begin)

    yield work
