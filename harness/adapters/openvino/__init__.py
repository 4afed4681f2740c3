"""OpenVINO: runs graphs on the CPU, and on Intel's GPUs and NPUs if its plugins find them.

The authors have run only the CPU; the code for GPUs and NPUs is written from the documentation and was never run.

A suite whose native scenario is single-stream is always opened for latency with concurrency 1, because concurrent feeds
are not faster. Other suites are opened for throughput, with the concurrency that OpenVINO recommends. A graph without
state is compiled for each shape of its inputs, because OpenVINO is faster with static shapes. Only the last few shapes
stay compiled, because each compiled model has a packed copy of its weights. A graph with state is compiled once for all
shapes, and its state is in an infer request.

Under int8, resnet50 and the U-Net of diffusion multiply integers by integers. The inputs of their layers are rounded as
well, so loading begins with a few feeds that show the ranges of these inputs. Other networks multiply integer weights
by activations of 16 or 32 bits.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np

from mixmark.harness.adapters.devices import Place, cores, cpu, reached, threads_option
from mixmark.harness.adapters.onnx_weights import fold, lift
from mixmark.harness.adapters.openvino.models import StoredWeights, network, reshaped, uses
from mixmark.harness.adapters.openvino.quantised import Rounding
from mixmark.harness.contracts.errors import MixmarkError, PluginError
from mixmark.harness.contracts.protocols import Array, Graph, GraphRunner, Runner, Suite, Use
from mixmark.harness.contracts.schema import HOST_POOL, Device, Precision
from mixmark.harness.plugins import install

LOW: tuple[Precision, ...] = ("int8", "int4")
SCALING_SEED = 8
KEPT = 4  # shapes that stay compiled: the search for the best batch alternates between four shapes
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
MATRICES = {"Convolution", "Deconvolution", "FullyConnected", "MatMul", "ScaledDotProductAttention"}


@dataclass(frozen=True)
class IntegerProducts:
    """How a suite multiplies 8 bits by 8. feeds: the number of one-sample feeds that show the activations' ranges."""

    graphs: tuple[str, ...]
    feeds: int
    throughout: bool
    """See `Rounding`. Diffusion would lose too much accuracy (docs/separation.md)."""


INTEGER_PRODUCTS = {
    "resnet50": IntegerProducts(("classify",), 16, throughout=True),
    "diffusion": IntegerProducts(("denoise",), 1, False),
}
"""The suites that multiply 8 bits by 8 under int8."""


class OpenVino:
    """Graphs by OpenVINO. options: `threads`, the number of threads on the CPU; by default one a core."""

    name = "openvino"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._threads = threads_option("openvino", options) or cores()

    def discover(self) -> Iterable[Device]:
        return [place.device for place in _devices()]

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        openvino = _import()
        place = reached(_devices(), device, f"openvino {openvino.__version__}", suite, precision)
        alone = use.in_flight == 1 or suite.scenarios[0] != "offline"
        with tempfile.TemporaryDirectory(prefix="mixmark-", ignore_cleanup_errors=True) as folder:
            session = _OpenVinoSession(suite, place, precision, self._threads, alone, Path(folder))
        session.facts |= {"openvino": openvino.__version__, "device": device.name}
        try:
            yield GraphRunner(suite, session, concurrency=session.concurrency, facts=session.facts)
        finally:
            session.close()


class _OpenVinoSession:
    """The suite's graphs on one device. The handle of a tensor is a numpy array that is never written to again."""

    def __init__(self, suite: Suite, place: Place, precision: str, threads: int, alone: bool, folder: Path) -> None:
        import onnx

        self._place = place
        self._graphs: dict[str, Graph] = dict(suite.graphs())
        self._core = _import().Core()
        protos = {name: onnx.load_from_string(graph.onnx()) for name, graph in self._graphs.items()}
        weights = fold([*protos.values()], suite.weights())
        names = {name: lift(proto) for name, proto in protos.items()}
        used = {use for name, proto in protos.items() for use in uses(proto) if use[0] in names[name]}
        self._stored = StoredWeights(weights, precision, used, folder / "weights.bin")
        self._networks = {}
        for name, graph in self._graphs.items():
            with _in_a_sentence(f"read {name}"):
                self._networks[name] = network(self._core, graph, protos[name], names[name], self._stored)
        self._compiled: dict[str, list[_Compiled]] = {name: [] for name in self._graphs}
        """Each graph's compiled shapes, in the order of their last use."""
        self._watched: dict[str, Rounding] = {}
        """The graphs whose inner tensors are noted."""
        self._compiling = Lock()
        self._config: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[precision if precision in HINTS else place.device.precisions[0]],
            "PERFORMANCE_HINT": "LATENCY" if alone else "THROUGHPUT",
        }
        if place.name == "CPU":
            self._config["INFERENCE_NUM_THREADS"] = threads
            # Pinned streams of two networks could share a core while another core is idle.
            self._config["ENABLE_CPU_PINNING"] = False
        self.facts: dict[str, str] = {"dtype": precision, "hint": self._config["PERFORMANCE_HINT"].lower()}
        if precision == "int8" and suite.name in INTEGER_PRODUCTS:
            self._round(suite, INTEGER_PRODUCTS[suite.name])
        self.concurrency = 1 if alone else self._recommended_concurrency()

    def _round(self, suite: Suite, how: IntegerProducts) -> None:
        """Makes networks multiply in 8 bits, at scales that are measured here."""
        networks, config, feeds = self._networks, self._config, suite.feeds(1, SCALING_SEED)
        self._watched = {name: Rounding(networks[name].model, how.throughout) for name in how.graphs}
        self._networks = networks | {
            name: replace(networks[name], model=rounding.watched()) for name, rounding in self._watched.items()
        }
        self._config = config | {"PERFORMANCE_HINT": "LATENCY"}  # with several streams the inner tensors would differ
        for nonce in range(how.feeds):
            for _ in suite.infer(self, feeds(nonce)):
                pass
        self._config = config
        self._forget()
        self._networks = networks | {
            name: replace(networks[name], model=rounding.rounded()) for name, rounding in self._watched.items()
        }
        self._watched = {}
        if how.throughout:
            self._config["SNIPPETS_MODE"] = (
                "DISABLE"  # else many sums become separate kernels instead of parts of convolutions
            )
        self.facts["products"] = f"of 8 bits in {', '.join(how.graphs)}, scaled by {how.feeds} feeds"

    def _recommended_concurrency(self) -> int:
        """The concurrency that OpenVINO recommends for the first graph at batch 1."""
        name, graph = next(iter(self._graphs.items()))
        shapes = [tuple(1 if isinstance(axis, str) else axis for axis in spec.shape) for spec in graph.inputs.values()]
        return min(64, int(self._ready(name, shapes).model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))

    def _ready(self, name: str, shapes: Sequence[tuple[int, ...]]) -> _Compiled:
        """The compiled graph for these shapes of its inputs."""
        graph = self._graphs[name]
        key = None if graph.state else tuple(shapes)
        with self._compiling:
            kept = self._compiled[name]
            found = next((compiled for compiled in kept if compiled.key == key), None)
            if found:
                kept.remove(found)
            else:
                del kept[: 1 - KEPT]
                found = self._compile(name, key)
            kept.append(found)
        return found

    def _compile(self, name: str, key: tuple[tuple[int, ...], ...] | None) -> _Compiled:
        network = self._networks[name]
        model, angles = network.model, network.angles
        shapes = None if key is None else dict(zip(self._graphs[name].inputs, map(list, key), strict=True))
        compiled_angles = None
        with _in_a_sentence(f"compile {name} for {self._place.name}"):
            if angles is not None:
                angles = reshaped(angles, shapes)
                shapes = shapes and shapes | {output.get_any_name(): [*output.get_shape()] for output in angles.outputs}
                config = self._config | {"INFERENCE_PRECISION_HINT": "f32"}
                compiled_angles = self._core.compile_model(angles, self._place.name, config)
            with self._stored.shrinking():
                compiled = self._core.compile_model(reshaped(model, shapes), self._place.name, self._config)
        self.facts |= _configured(compiled)
        self.facts[f"nodes of {name}"] = _kernels(compiled)
        return _Compiled(key, compiled, compiled_angles, self._stored)

    def _forget(self) -> None:
        for kept in self._compiled.values():
            kept.clear()

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        self._forget()
        self._networks.clear()
        self._stored.close()

    def put(self, array: Array) -> Array:
        """The array itself, since an infer request reads it in place; a copy if the array is read-only."""
        return np.require(array, requirements=["C", "W"])

    def state(self, graph: str) -> _Request:
        """An infer request, whose variables are the state."""
        return self._ready(graph, []).request()

    def run(self, graph: str, *inputs: Array, state: _Request | None = None) -> Sequence[Array]:
        named = dict(zip(self._graphs[graph].inputs, inputs, strict=True))
        ready = self._ready(graph, [array.shape for array in inputs])
        if rounding := self._watched.get(graph):
            outputs = ready.run(named, [*self._graphs[graph].outputs, *rounding.outputs], state)
            rounding.note(outputs[-len(rounding.outputs) :])
            return outputs[: -len(rounding.outputs)]
        return ready.run(named, self._graphs[graph].outputs, state)

    def get(self, tensor: Array) -> Array:
        return tensor.copy()


@contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """Turns OpenVINO's error of many lines into one. what: what OpenVINO is about to do."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise MixmarkError(f"openvino does not {what}: {lines[-1] if lines else 'no reason given'}") from error


class _Compiled:
    """A compiled graph and its idle requests. key: the shapes of its inputs."""

    def __init__(
        self, key: tuple[tuple[int, ...], ...] | None, model: Any, angles: Any | None, stored: StoredWeights
    ) -> None:
        self.key, self.model = key, model
        self._angles = angles
        self._stored: StoredWeights | None = stored
        self._idle: list[_Request] = []

    def request(self) -> _Request:
        return _Request(self.model.create_infer_request(), self._angles and self._angles.create_infer_request())

    def run(self, inputs: Mapping[str, Array], outputs: Iterable[str], state: _Request | None) -> Sequence[Array]:
        """Runs the graph in the state's request, or else in an idle request."""
        if self._stored is not None:  # the first run packs the weights that compiling has not packed
            stored, self._stored = self._stored, None
            with stored.shrinking():
                return self.run(inputs, outputs, state)
        if state is not None:
            return state.run(inputs, outputs)
        request = self._idle.pop() if self._idle else self.request()
        try:
            return request.run(inputs, outputs)
        finally:
            self._idle.append(request)


class _Request:
    """An infer request, which runs one feed. Its variables, initially zeros, are the graph's state."""

    def __init__(self, main: Any, angles: Any | None) -> None:
        self._main, self._angles = main, angles

    def run(self, inputs: Mapping[str, Array], outputs: Iterable[str]) -> Sequence[Array]:
        openvino = _import()
        tensors = {name: openvino.Tensor(array, shared_memory=True) for name, array in inputs.items()}
        for name, tensor in tensors.items():
            self._main.set_tensor(name, tensor)
        if self._angles is not None:
            for port in self._angles.model_inputs:
                self._angles.set_tensor(port, tensors[port.get_any_name()])
            self._angles.infer()
            for port in self._angles.model_outputs:
                self._main.set_tensor(port.get_any_name(), self._angles.get_tensor(port))
        self._main.infer()
        return [np.array(self._main.get_tensor(name).data) for name in outputs]


def _configured(compiled: Any) -> dict[str, str]:
    """The settings that OpenVINO chose from the hints."""
    known = compiled.get_property("SUPPORTED_PROPERTIES")
    properties = {
        "streams": "NUM_STREAMS",
        "threads": "INFERENCE_NUM_THREADS",
        "computes in": "INFERENCE_PRECISION_HINT",
    }
    found = {what: compiled.get_property(name) for what, name in properties.items() if name in known}
    return {what: getattr(value, "get_type_name", lambda value=value: str(value))() for what, value in found.items()}


def _kernels(compiled: Any) -> str:
    """The kernels that multiply matrices, with the number of their nodes."""
    count: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        kind, kernel = (str(info[key].value) if key in info else "" for key in ("layerType", "primitiveType"))
        if kind in MATRICES:
            count[f"{kind} {kernel}".strip()] += 1
    return ", ".join(f"{what} {number}" for what, number in count.most_common()) or "none that multiplies matrices"


def _import() -> Any:
    """Imports OpenVINO without the package that reports every import to its makers."""
    if "openvino" not in sys.modules:
        sys.modules["openvino_telemetry"] = cast(Any, None)  # OpenVINO then uses its own stub, which sends nothing
    try:
        importlib.import_module("onnx")  # reports a missing package here instead of in the middle of a run
        import openvino
    except ImportError as error:
        raise PluginError(f"{error.name} is not installed", install.command("openvino")) from error
    return openvino


def _devices() -> Iterator[Place]:
    core = _import().Core()
    for name in core.available_devices:
        if name == "CPU":
            computes_bf16 = "BF16" in core.get_property(name, "OPTIMIZATION_CAPABILITIES")
            floats: tuple[Precision, ...] = ("bf16", "fp32") if computes_bf16 else ("fp32",)
            offered = {"llm": (*floats, *LOW), **dict.fromkeys(INTEGER_PRODUCTS, (*floats, "int8"))}
            yield Place(cpu(floats).model_copy(update={"precisions_by_suite": offered}), name)
        elif name.startswith(("GPU", "NPU")):
            yield Place(_accelerator(core, name), name)


def _accelerator(core: Any, name: str) -> Device:
    """A GPU or NPU. Its id is the driver's, which torch and Level Zero use too."""
    known = core.get_property(name, "SUPPORTED_PROPERTIES")

    def value_of(what: str) -> Any:
        return core.get_property(name, what) if what in known else None

    kind = "gpu" if name.startswith("GPU") else "npu"
    digits = str(value_of("DEVICE_UUID") or "")
    groups = "-".join(digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    id = f"{kind}:{kind.upper()}-{groups}" if len(digits) == 32 else f"{kind}:{name.lower().replace('.', '')}"
    integrated = "INTEGRATED" in str(value_of("DEVICE_TYPE")).upper()
    precisions: tuple[Precision, ...] = ("fp16",) if kind == "npu" else ("fp16", "fp32")
    return Device(
        id=id,
        kind="gpu" if kind == "gpu" else "npu",
        name=str(value_of("FULL_DEVICE_NAME") or name),
        memory_pool=HOST_POOL if integrated or kind == "npu" else id,
        memory_bytes=value_of("GPU_DEVICE_TOTAL_MEM_SIZE"),
        precisions=precisions,
    )
