"""The cost of the harness: throughput of its loop over a bare loop's, in one process and runtime.

Run: python -m bench.overhead [TIER [BATCH [SUITE|ADAPTER …]]]   (smoke, 1, and every suite by every adapter)

The bare loops below are written by hand for each engine: torch's modules, onnxruntime's sessions, OpenVINO's requests,
llama.cpp's context. Their feeds are made before the block, nothing is timed or checked, and they use neither a suite's
loop nor an adapter's session; they share only the weights that the adapter has loaded. Blocks alternate, so that drift
of the machine's speed affects both alike. Since the bare loops duplicate the suites' loops, each run first compares the
outputs of both for one feed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from bench.capabilities import parts
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Array, Feed, Graph, Use
from mixmark.harness.contracts.schema import Limits
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.plugins import registry
from mixmark.harness.worker.load_generator import closed_loop

GOAL = 0.98
PAIRS = 21  # pairs of blocks; fewer where a feed is longer than a block
FEWEST_PAIRS = 5
BLOCK_NS = 200_000_000  # short, so that a disturbance affects both blocks of a pair
MOST_FEEDS = 128  # in a block, since all of them are in memory
Loop = Callable[[Feed], Iterator[Array]]


class Bare(NamedTuple):
    """A runtime without the harness. Values are objects of the runtime."""

    put: Callable[[Array], Any]
    zeros: Callable[[str], Any]
    """(graph) -> the graph's state, all zeros."""
    call: Callable[..., Sequence[Any]]
    """(graph, state, *inputs) -> the outputs"""
    get: Callable[[Any], Array]
    around: Callable[[], AbstractContextManager[Any]]
    """A context that is entered once a block."""


def over_torch(runner: Any, graphs: Mapping[str, Graph]) -> Bare:
    import torch

    modules = runner.session._modules

    def zeros(graph: str) -> Any:
        return [torch.zeros([int(size) for size in spec.shape]) for spec in graphs[graph].state.values()]

    def call(graph: str, state: Any, *inputs: Any) -> Sequence[Any]:
        outputs: Sequence[Any] = modules[graph](*inputs, *state)
        return outputs

    return Bare(torch.from_numpy, zeros, call, lambda tensor: tensor.numpy(), torch.inference_mode)


def over_onnxruntime(runner: Any, graphs: Mapping[str, Graph]) -> Bare:
    """Binds the state once a feed; the adapter binds it at each call."""
    from onnxruntime import OrtValue

    session = runner.session
    sessions, bindings = session._sessions, {}
    for graph, each in sessions.items():
        bindings[graph] = each.io_binding()
        for node in each.get_inputs():
            if node.name in session._bound:
                bindings[graph].bind_ortvalue_input(node.name, session._bound[node.name])
        for name in graphs[graph].outputs:  # bound before any state, since get_outputs keeps the order
            bindings[graph].bind_output(name)

    def zeros(graph: str) -> Any:
        for name, spec in graphs[graph].state.items():
            value = OrtValue.ortvalue_from_numpy(np.zeros([int(size) for size in spec.shape], np.float32))
            bindings[graph].bind_ortvalue_input(name, value)
            bindings[graph].bind_ortvalue_output(f"{name}.out", value)
        return ()

    def call(graph: str, state: Any, *inputs: Any) -> Sequence[Any]:
        binding = bindings[graph]
        for name, value in zip(graphs[graph].inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in graphs[graph].outputs:
            binding.bind_output(name)
        sessions[graph].run_with_iobinding(binding)
        outputs: Sequence[Any] = binding.get_outputs()
        return outputs

    return Bare(OrtValue.ortvalue_from_numpy, zeros, call, lambda value: value.numpy(), nullcontext)


def over_openvino(runner: Any, graphs: Mapping[str, Graph]) -> Bare:
    """One request for each graph, whose state is set back at each feed; the adapter makes a request for each feed."""
    requests: dict[str, tuple[Any, Any]] = {}

    def request(graph: str, shapes: Sequence[Any]) -> tuple[Any, Any]:
        if graph not in requests:
            ready = runner.session._ready(graph, shapes)
            requests[graph] = ready.model.create_infer_request(), ready._angles and ready._angles.create_infer_request()
        return requests[graph]

    def zeros(graph: str) -> Any:
        main, _ = request(graph, ())
        main.reset_state()
        return ()

    def call(graph: str, state: Any, *inputs: Any) -> Sequence[Any]:
        named = dict(zip(graphs[graph].inputs, inputs, strict=True))
        main, angles = request(graph, [each.shape for each in inputs])
        if angles:
            turned = angles.infer([named[each.get_any_name()] for each in angles.model_inputs])
            named |= {each.get_any_name(): turned[each] for each in angles.model_outputs}
        outputs = main.infer(named, share_inputs=True)
        return [outputs[name] for name in graphs[graph].outputs]

    return Bare(lambda array: np.require(array, requirements="W"), zeros, call, lambda array: array, nullcontext)


BARE = {"torch": over_torch, "onnxruntime": over_onnxruntime, "openvino": over_openvino}


# --- the suites' loops, written by hand --------------------------------------------------------------------------


def llm(suite: Any, bare: Bare) -> Loop:
    def loop(feed: Feed) -> Iterator[Array]:
        state = bare.zeros("step")
        ids, position = bare.put(feed["ids"]), bare.put(np.zeros(1, np.int64))
        for _ in range(suite.shape.tokens_out):
            ids, position, *_ = bare.call("step", state, ids, position)
            yield bare.get(ids)

    return loop


def diffusion(suite: Any, bare: Bare) -> Loop:
    def loop(feed: Feed) -> Iterator[Array]:
        encoded = bare.call("encode", (), bare.put(feed["ids"]))
        latent, step = bare.put(feed["noise"]), bare.put(np.zeros(1, np.int64))
        for _ in range(suite.shape.steps):
            latent, step = bare.call("denoise", (), latent, step, *encoded)
        yield bare.get(bare.call("decode", (), latent)[0])

    return loop


def dlrm(suite: Any, bare: Bare) -> Loop:
    def loop(feed: Feed) -> Iterator[Array]:
        yield bare.get(bare.call("rank", (), bare.put(feed["dense"]), bare.put(feed["indices"]))[0])

    return loop


def resnet50(suite: Any, bare: Bare) -> Loop:
    def loop(feed: Feed) -> Iterator[Array]:
        yield bare.get(bare.call("classify", (), bare.put(feed["images"]))[0])

    return loop


def probe(suite: Any, bare: Bare) -> Loop:
    names = list(suite.graphs())

    def loop(feed: Feed) -> Iterator[Array]:
        nonce = bare.put(feed["nonce"])
        for name in names:
            yield bare.get(bare.call(name, (), nonce)[0])

    return loop


LOOPS = {"llm": llm, "diffusion": diffusion, "dlrm": dlrm, "resnet50": resnet50, "probe": probe}


# --- the measurement --------------------------------------------------------------------------------------------


class OverheadRow(NamedTuple):
    """Median throughputs in units per second."""

    counted: float
    """By the harness's count, without the time of making feeds."""
    wall: float
    """The harness, including the time of making feeds."""
    bare: float
    ratios: list[float]
    """`counted` over `bare` for each pair of blocks."""


def measure(suite_name: str, adapter_name: str, tier: str, batch: int) -> OverheadRow | None:
    """Measures a suite; to be run in a fresh process, since the thread pools of two runtimes disturb each other.

    Returns None if the adapter does not run the suite."""
    suite: Any = registry.find("suites")[suite_name].load()(tier, {})
    adapter: Any = registry.find("adapters")[adapter_name].load()({})
    device = next(each for each in adapter.discover() if each.kind == "cpu")
    if "fp32" not in device.offers(suite_name):
        return None
    with adapter.open(device, suite, "fp32", Use.of("single-stream")) as runner:
        bare = (BARE | parts("bare"))[adapter_name](runner, suite.graphs())
        loop = (LOOPS | parts("loop"))[suite_name](suite, bare)
        feeds = map(suite.feeds(batch, 0), itertools.count())
        first = next(feeds)
        expected = [np.array(out) for out in runner(first)]  # this also warms up
        with bare.around():
            begin = time.monotonic_ns()
            ours = [np.array(out) for out in loop(first)]
            feed_ns = time.monotonic_ns() - begin
        for one, other in zip(expected, ours, strict=True):
            if one.ndim > other.ndim:  # the bare loop yields tokens alone, so hidden states have their cost
                one = one[..., 0]
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * float(np.abs(one).max()))
        count = min(MOST_FEEDS, max(1, BLOCK_NS // feed_ns))
        limits = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=10**15, min_feeds=count)

        def harness_block() -> tuple[float, float]:
            begin = time.monotonic_ns()
            done = closed_loop(runner, lambda *_: next(feeds), limits)
            wall = timestamps.units(done) * 1e9 / (time.monotonic_ns() - begin)
            return timestamps.throughput_per_s(done) or 0.0, wall

        def bare_block() -> float:
            made = list(itertools.islice(feeds, count))
            units = 0
            with bare.around():
                begin = time.monotonic_ns()
                for feed in made:
                    for out in loop(feed):
                        units += len(out)
                return units * 1e9 / (time.monotonic_ns() - begin)

        through, alone = [], []
        for pair in range(max(FEWEST_PAIRS, min(PAIRS, PAIRS * BLOCK_NS // feed_ns))):
            if pair % 2:
                through.append(harness_block())
                alone.append(bare_block())
            else:
                alone.append(bare_block())
                through.append(harness_block())
    ratios = [counted / bare for (counted, _), bare in zip(through, alone, strict=True)]
    counted, wall = (statistics.median(column) for column in zip(*through, strict=True))
    return OverheadRow(counted, wall, statistics.median(alone), ratios)


def main() -> None:
    tier, batch, *chosen = [*sys.argv[1:], *("smoke", "1")[len(sys.argv) - 1 :]]
    loops, bares = LOOPS | parts("loop"), BARE | parts("bare")
    suites = [each for each in loops if each in chosen] or loops
    adapters = [each for each in bares if each in chosen] or bares
    print(f"{tier}, alternating blocks, medians in units/s; goal: a ratio of at least {GOAL}")
    print(f"{'suite':10} {'adapter':12} {'batch':>5} {'harness':>10} {'bare':>10} {'ratio':>6} {'of pairs':>13}  goal")
    for suite, adapter in itertools.product(suites, adapters):
        size = int(batch) if "offline" in registry.find("suites")[suite].load().scenarios else 1
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            try:
                row = process.submit(measure, suite, adapter, tier, size).result()
            except MixmarkError as error:
                print(f"{suite:10} {adapter:12} {error}")
                continue
        if row is None:
            continue
        ratio = row.counted / row.bare
        pairs = f"{min(row.ratios):.3f}–{max(row.ratios):.3f}"
        verdict = "ok" if ratio >= GOAL else "missed"
        print(
            f"{suite:10} {adapter:12} {size:5} {row.counted:10.2f} {row.bare:10.2f} {ratio:6.3f} {pairs:>13}  {verdict}"
            f"  ({row.wall / row.bare:.3f} with the making of feeds)",
            flush=True,
        )


if __name__ == "__main__":
    main()
