"""The suite speech in the benchmarks of Mixmark itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.overhead import Bare, Loop
from bench.routes import RouteRow
from mixmark.harness.capabilities.speech import TOKENS
from mixmark.harness.contracts.protocols import Array, Feed

PEER = "bench.capabilities.speech.transformers"
ROWS = {
    "speech-torch": RouteRow("speech", "single-stream", "torch", "fp32", PEER, "fp32", 1.0),
    "speech-onnxruntime": RouteRow("speech", "single-stream", "onnxruntime", "fp32", PEER, "fp32", 1.0),
    "speech-openvino": RouteRow("speech", "single-stream", "openvino", "fp32", PEER, "fp32", 1.0),
}


def loop(suite: Any, bare: Bare) -> Loop:
    def transcribe(feed: Feed) -> Iterator[Array]:
        heard = bare.call("encode", (), bare.put(feed["features"]))
        state = bare.zeros("step")
        ids, position = bare.put(feed["ids"]), bare.put(np.zeros(1, np.int64))
        for _ in range(suite.units(1)):
            second = []
            for _ in range(TOKENS):
                ids, position, *_ = bare.call("step", state, ids, position, *heard)
                second.append(bare.get(ids))
            yield np.stack(second, axis=1)

    return transcribe
