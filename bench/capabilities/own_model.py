"""A model of your own by our routes beside the engines' own loops, one sample at a time.

Run: python -m bench.capabilities.own_model FILE.onnx SAMPLES.npz [ROUNDS]

Ours makes each feed, hashes its output and sends the digest to the parent; the engine's loop repeats one feed. Both
stay loaded and work in turn.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.routes import SCREENING, TIMEOUT_S, rate
from mixmark.harness.capabilities.own_model import OnnxFile
from mixmark.harness.contracts.protocols import Feed
from mixmark.harness.machine.suite_claims import models
from mixmark.harness.plugins import registry
from mixmark.harness.resources.cpus import cores
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, SuiteChoice
from mixmark.harness.worker.outputs import Commitments

GOAL = 0.97
ROUND_S = 4.0


@contextmanager
def ours(adapter: str, suite: str, precision: Any, options: Mapping[str, str]) -> Iterator[Callable[[], float]]:
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        out = Path(folder) / "out.npz"
        with Worker(registry.find("adapters")[adapter], {}, Path(folder), Path(folder) / "log") as worker:
            device = next(
                each for each in worker.call(AdapterCalls.discover, TIMEOUT_S)().devices if each.kind == "cpu"
            )
            choice = SuiteChoice(name=suite, spec=models()[suite].spec, tier="edge", options=dict(options))
            worker.call(AdapterCalls.open, TIMEOUT_S)(
                key="a", device=device, suite=choice, precision=precision, scenario="single-stream", free_bytes=None
            )
            prepare = worker.call(AdapterCalls.prepare, TIMEOUT_S)
            prepare(key="a", scenario="single-stream", batch=1, seed=0, limits=SCREENING)
            worker.call(AdapterCalls.begin, TIMEOUT_S)(key="a", pool=0)

            def window() -> float:
                measure = worker.call(AdapterCalls.measure, TIMEOUT_S, window=Commitments())
                measure(key="a", seed=0, limits=SCREENING, out=str(out))
                return rate(suite, worker.completions(out)[0])

            yield window


def by_onnxruntime(file: Path) -> Callable[[Feed], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, dict(feed))


def by_openvino(file: Path) -> Callable[[Feed], object]:
    import openvino

    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(file), "CPU", config).create_infer_request()
    return lambda feed: request.infer(dict(feed))


def repeated(run: Callable[[Feed], object], feed: Feed) -> float:
    """Inferences per second."""
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < ROUND_S:
        run(feed)
        done += 1
    return done / (time.monotonic() - begin)


def compare(name: str, window: Callable[[], float], peer: Callable[[], float], goal: float, rounds: int) -> None:
    """Prints both rates and their ratio, which is measured in turns after one of the peer's."""
    peer()
    pairs = [(window(), peer()) for _ in range(rounds)]
    ratios = [mine / theirs for mine, theirs in pairs]
    middle = [statistics.median(each) for each in zip(*pairs, strict=True)]
    print(
        f"{name:28} {middle[0]:9.1f} /s, its own loop {middle[1]:9.1f} /s, "
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), goal {goal}",
        flush=True,
    )


def main(file: str, inputs: str, rounds: str = "5") -> None:
    given = {"file": str(Path(file).absolute()), "inputs": str(Path(inputs).absolute())}
    suite = OnnxFile("edge", given)
    options, feed = {**suite.measured().options, **given}, suite.feeds(1, 0)(0)
    for adapter, engine in (("onnxruntime", by_onnxruntime), ("openvino", by_openvino)):
        with ours(adapter, "onnx-file", "fp32", options) as window:
            compare(
                f"{Path(file).stem} {adapter}", window, partial(repeated, engine(Path(file)), feed), GOAL, int(rounds)
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
