"""Bare loops of engines on the accelerator: python -m bench.accelerator.peers PEER SUITE TIER

PEER is eager or compile, by torch in bf16, or an execution provider of ONNX Runtime, in fp32; the feed stays the same.
`file PATH` writes PATH.onnx, a small network, and PATH.npz, samples of its input, for a run of one's own model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.accelerator import absent
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.plugins import registry

BATCHES = {"resnet50": 64, "dlrm": 8192}
SECONDS = 3.0


def by_torch(suite: Suite, feed: Any, compiled: bool) -> Callable[[], object]:
    import torch

    device = torch.accelerator.current_accelerator()
    if device is None:
        absent("torch finds no accelerator")
    weights, (graph,) = suite.weights(), suite.graphs().values()
    module = graph.module().requires_grad_(False)
    state = {name: torch.empty([int(size) for size in weights.spec(name).shape]) for name in module.state_dict()}
    for name, tensor in state.items():
        weights.read(name, tensor.numpy())
    module.load_state_dict(state, assign=True)
    module = module.to(device, torch.bfloat16)
    call = torch.compile(module) if compiled else module
    given = [torch.from_numpy(each).to(device) for each in feed.values()]
    given = [each.bfloat16() if each.is_floating_point() else each for each in given]

    @torch.inference_mode()
    def work() -> None:
        call(*given)
        torch.get_device_module(device).synchronize()

    return work


def by_onnxruntime(suite: Suite, feed: Any, provider: str) -> Callable[[], object]:
    import onnx
    import onnxruntime

    from mixmark.harness.adapters.onnxruntime import from_file

    if provider not in onnxruntime.get_available_providers():
        absent(f"this build of onnxruntime has no {provider}")
    (graph,) = suite.graphs().values()
    model = onnx.load_from_string(graph.onnx())
    session = from_file(model, suite.weights(), onnxruntime.SessionOptions(), [provider])
    return lambda: session.run(None, dict(feed))


def write(path: str) -> None:
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    weights = {"w": (64, 3, 7, 7), "v": (128, 64, 3, 3), "u": (128, 10)}
    made = {name: random.standard_normal(shape, np.float32) * 0.05 for name, shape in weights.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "u"], ["y"]),
    ]
    images = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 96, 96])
    labels = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 10])
    tensors = [numpy_helper.from_array(value, name) for name, value in made.items()]
    graph = helper.make_graph(nodes, "small", [images], [labels], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, f"{path}.onnx")
    np.savez(f"{path}.npz", x=random.standard_normal((32, 3, 96, 96), np.float32))
    print(f"{path}.onnx")


def main() -> None:
    peer, name, *tier = sys.argv[1:]
    if peer == "file":
        write(name)
        return
    suite = registry.find("suites")[name].load()(*tier, {})
    batch = BATCHES[name]
    feed = suite.feeds(batch, 0)(0)
    torch = peer in ("eager", "compile")
    work = by_torch(suite, feed, peer == "compile") if torch else by_onnxruntime(suite, feed, peer)
    for _ in range(3):
        work()
    begin_s, count = time.perf_counter(), 0
    while (took_s := time.perf_counter() - begin_s) < SECONDS:
        work()
        count += 1
    print(f"{peer} {name} {' '.join(tier)}, batch {batch}: {count * batch / took_s:,.0f} a second")


if __name__ == "__main__":
    main()
