"""ONNX Runtime: runs graphs on the CPU and through the execution providers of the installed build and of plug-ins.

The authors have run only the CPU provider, OpenVINO's plug-in on the CPU, and WebGPU's on a software driver; all other
providers are written from the documentation. docs/vendors/coverage.md describes how to load each provider.

Weights reach a session on one of three paths, without a copy:

    floats: decoders, the probe, tables    initialisers become inputs, which are bound once to the one copy in memory
    floats: all other weights              a file in TMPDIR while loading, so that batch norms are folded into the
                                           convolutions, and layers choose the layout of their weights
    int8, int4, and llm on accelerators    a converted model in the cache (see convert.py), mapped while loading

A decoder, whose graph keeps state, multiplies few rows: when its layers chose their layout, llm at edge took 14 s
longer to load and was no faster. The probe's matrices may have gigabytes, which would first be written to a disk.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.adapters.devices import cores, reached, threads_option
from mixmark.harness.adapters.onnx_weights import lift
from mixmark.harness.adapters.onnxruntime import convert, devices
from mixmark.harness.adapters.onnxruntime.decoder import describes_llama
from mixmark.harness.adapters.onnxruntime.files import ACCURACY_LEVEL
from mixmark.harness.contracts.errors import MixmarkError, refuse_options
from mixmark.harness.contracts.protocols import Array, Graph, GraphRunner, Runner, Suite, Use, Weights
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Device
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.plugins.model_cache import converted, engines

if TYPE_CHECKING:
    from onnx import ModelProto

COMPUTES = re.compile("Conv|MatMul|Gemm|Attention|Einsum|Normalization|Softmax")  # also within names of fused operators
BOUND = "inputs, bound once"
MOST_PARTS = 4  # the parts of a Split that WebGPU can compute: it guarantees only eight buffers to a shader


class OnnxRuntime:
    """Graphs by ONNX Runtime.

    options: `threads`, the size of the CPU's thread pool; by default one thread a core. `library`, a
    plug-in provider: its Python package, e.g. onnxruntime_ep_openvino, or the path of its library; WebGPU's needs no
    option. `provider.NAME`, an option NAME of the provider, e.g. `provider.backend_path`.

    The adapter always sets the number of threads: by default ONNX Runtime pins a thread to every core of the machine,
    including cores that taskset or a cpuset excludes.
    """

    name = "onnxruntime"

    def __init__(self, options: Mapping[str, str]) -> None:
        own = {name: value for name, value in options.items() if not name.startswith("provider.")}
        refuse_options("adapter onnxruntime", own, ["threads", "library", "provider.NAME"])
        self._library = options.get("library", "")
        self._provider = {name.removeprefix("provider."): options[name] for name in options.keys() - own.keys()}
        self._threads = threads_option("onnxruntime", {k: v for k, v in options.items() if k == "threads"}) or cores()

    def discover(self) -> Iterable[Device]:
        return [place.device for place in devices.provider_devices(self._library)]

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        runtime = devices.import_runtime()
        place = reached(
            devices.provider_devices(self._library), device, f"onnxruntime {runtime.__version__}", suite, precision
        )
        if place.name == devices.CUDA:
            # The UUID identifies the device, because CUDA and NVML order devices differently.
            os.environ["CUDA_VISIBLE_DEVICES"] = device.id.removeprefix("gpu:")
        facts = {"onnxruntime": runtime.__version__, "device": device.name, "dtype": precision}
        half = precision == "fp16" or (
            place.accelerated and "fp16" in place.device.offers(suite.name) and precision != "fp32"
        )
        name, engine = f"{precision}{'-half' if half else ''}", f"onnxruntime-{runtime.__version__}"
        bits = BITS_PER_WEIGHT[precision]
        size_bytes = convert.size_bytes(suite, bits)
        if bits < 16:
            facts |= {"accuracy level": str(ACCURACY_LEVEL), "activations": "fp16" if half else "fp32"}
        # The attention of WebGPU's provider is wrong for subgroups of four, which a software driver has.
        fused = place.accelerated and place.device.kind != "simulated" and describes_llama(suite.config)
        with ExitStack() as stack:
            folder = kept = None
            if bits < 16 or fused:
                write = convert.writer(suite, bits, half)
                folder = stack.enter_context(converted(suite, name, engine, size_bytes, write))
            if devices.keeps_engines(place.name):
                own = f"{engine}-{place.name}-{device.id}"
                kept = stack.enter_context(engines(suite, name, own, size_bytes))
            session = OnnxSession(suite, place, self._threads, folder, self._provider, half, kept)
            stack.callback(session.close)
            yield GraphRunner(suite, session, concurrency=1, facts=facts | session.facts)


class OnnxSession:
    """The suite's graphs on one device.

    folder: the converted models. None if models are made from the suite's graphs. provider: the provider's options.
    half: whether floats are fp16 on the device. engines: the folder of the provider's compiled engines.
    """

    def __init__(
        self,
        suite: Suite,
        place: devices.ProviderDevice,
        threads: int,
        folder: Path | None,
        provider: Mapping[str, str],
        half: bool = False,
        engines: Path | None = None,
    ) -> None:
        self._runtime = devices.import_runtime()
        self._value = self._runtime.OrtValue
        self._place = place
        self._float: type[np.floating[Any]] = np.float16 if half else np.float32
        self._threads, self._provider, self._engines = threads, provider, engines
        self._graphs: dict[str, Graph] = dict(suite.graphs())
        self._sessions: dict[str, Any] = {}
        self._bindings: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}
        self.facts: dict[str, str] = {"threads": str(threads)}
        weights = suite.weights()
        for name, graph in self._graphs.items():
            self._load(name, graph, weights, folder)

    def _target(self, graph: str, angles: str) -> tuple[Any, Sequence[Any] | None]:
        """The options and the providers of a graph's session. The providers are None if the options name a plug-in's
        device. angles: the names of the nodes that compute sines, one a line."""
        options, folder = session_options(self._threads), None
        if self._engines is not None:
            self.facts["engines"] = "in the model cache"
            folder = self._engines / graph
            folder.mkdir(exist_ok=True)
        given = devices.provider_options(self._place, self._provider, self._float == np.float16, folder)
        if self._place.name == devices.WEBGPU and angles:  # WGSL lets sines err by 2**-11, and more beyond one turn
            given = {"forceCpuNodeNames": angles, **given}
        if self._place.plugin is not None:
            options.add_provider_for_devices([self._place.plugin], given)
            return options, None
        return options, [devices.CPU] if self._place.name == devices.CPU else [(self._place.name, given), devices.CPU]

    def _load(self, name: str, graph: Graph, weights: Weights, folder: Path | None) -> None:
        import onnx

        model = onnx.load_from_string(graph.onnx())
        angles = "\n".join(node.name for node in model.graph.node if node.op_type in ("Sin", "Cos") and node.name)
        options, providers = self._target(name, angles)
        names: list[str] = []
        if folder is not None:
            try:
                session = self._runtime.InferenceSession(folder / f"{name}.onnx", options, providers)
            except Exception as error:  # onnxruntime's errors have no common class
                raise MixmarkError(
                    f"onnxruntime could not load {folder / name}.onnx: {str(error)[:300]}",
                    f"remove {folder}, if the file is damaged: it is then written again",
                ) from error
            exactness = session.get_modelmeta().custom_metadata_map["weights"]
            self.facts[f"weights of {name}"] = f"{exactness}, in a converted model"
        else:
            if self._place.name == devices.WEBGPU:
                convert.sliced(model, MOST_PARTS)
            if self._float == np.float16:
                model = convert.halved(model)
            inputs_only = bool(graph.state) or not any(node.op_type in ("Conv", "Gather") for node in model.graph.node)
            names = lift(model, tables_only=not inputs_only)
            if inputs_only:
                self.facts[f"weights of {name}"] = BOUND
                session = self._runtime.InferenceSession(model.SerializeToString(), options, providers)
            else:
                self.facts[f"weights of {name}"] = "file, mapped while loading"
                if names:
                    self.facts[f"tables of {name}"] = BOUND
                session = from_file(model, weights, options, providers)
        binding = session.io_binding()
        for weight in names:
            if weight not in self._bound:
                self._bound[weight] = self.put(read_weight(weights, weight))
            binding.bind_ortvalue_input(weight, self._bound[weight])
        self._sessions[name], self._bindings[name] = session, binding
        self.facts[f"nodes of {name}"] = _placement(session)
        if nodes := elsewhere(_parts(session), self._place.name):
            self.facts["elsewhere"] = "; ".join(filter(None, (self.facts.get("elsewhere"), f"{name}: {nodes}")))

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        self._bindings.clear()
        self._sessions.clear()
        self._bound.clear()

    def put(self, array: Array) -> Any:
        """Copies the array to the device. On the CPU the handle is the array itself, without a copy."""
        memory = "cpu"
        if array.dtype.kind == "f":
            array, memory = array.astype(self._float, copy=False), self._place.memory
        return self._value.ortvalue_from_numpy(np.ascontiguousarray(array), memory, 0)

    def state(self, graph: str) -> Sequence[Any]:
        """Zeros in the shapes of the loaded model, which may have one more first axis than the suite's graph."""
        shapes = {value.name: value.shape for value in self._sessions[graph].get_inputs()}
        return [
            self.put(np.zeros(shapes[name], np.float32 if spec.dtype == "float" else spec.dtype))
            for name, spec in self._graphs[graph].state.items()
        ]

    def run(self, graph: str, *inputs: Any, state: Sequence[Any] | None = None) -> Sequence[Any]:
        """Runs a graph. Each state tensor is bound as input and as output to one buffer, so it is written in place."""
        spec, binding = self._graphs[graph], self._bindings[graph]
        for name, value in zip(spec.inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name, output in spec.outputs.items():
            # Each run needs a new buffer, because the suite may still use the last one.
            binding.bind_output(name, self._place.memory if output.dtype == "float" else "cpu", 0)
        for name, value in zip(spec.state, state or (), strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"{name}.out", value)
        self._sessions[graph].run_with_iobinding(binding)
        outputs: Sequence[Any] = binding.get_outputs()[: len(spec.outputs)]
        return outputs

    def get(self, tensor: Any) -> Array:
        if self._place.plugin is not None and tensor.device_name() != "cpu":
            host = self._value.ortvalue_from_shape_and_type(tensor.shape(), tensor.element_type())
            self._runtime.copy_tensors([tensor], [host])
            tensor = host
        array: Array = tensor.numpy()  # may be a view of the tensor's memory
        return array.astype(np.float32) if array.dtype == np.float16 else array.copy()


def session_options(threads: int) -> Any:
    """The options of a session. Its threads spin only during a run, which is as fast and causes no load at rest."""
    options = devices.import_runtime().SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only; warnings report nodes left on the CPU, which `facts` counts
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def from_file(model: ModelProto, weights: Weights, options: Any, providers: Sequence[Any] | None) -> Any:
    """A session of the model with its weights, which are on disk only until the session is built."""
    from onnx import TensorProto, helper

    with tempfile.TemporaryDirectory(prefix="mixmark-", ignore_cleanup_errors=True) as folder:
        with (Path(folder) / "weights.bin").open("wb") as file:
            for tensor in model.graph.initializer:
                if tensor.data_location == TensorProto.EXTERNAL:
                    file.seek(next(int(entry.value) for entry in tensor.external_data if entry.key == "offset"))
                    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
                    file.write(read_weight(weights, tensor.name).astype(dtype, copy=False).data)
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return devices.import_runtime().InferenceSession(path, options, providers)


def _parts(session: Any) -> Sequence[Any] | None:
    """The parts of a graph, each with its `ep_name` and nodes. None if this version does not list them."""
    assignment = getattr(session, "get_provider_graph_assignment_info", None)  # since 1.24
    return None if assignment is None else list(assignment())


def _placement(session: Any) -> str:
    """The number of nodes that each provider runs. It discloses nodes that silently fell back to the CPU."""
    if (parts := _parts(session)) is None:
        return f"unknown, offered to {', '.join(session.get_providers())}"
    count: Counter[str] = Counter()
    for part in parts:
        count[part.ep_name] += len(part.get_nodes())
    return ", ".join(f"{provider} {nodes}" for provider, nodes in count.items())


def elsewhere(parts: Sequence[Any] | None, provider: str) -> str:
    """The compute nodes that run on another provider, e.g. `2 Conv by CPUExecutionProvider`.

    Other nodes are not reported, because every provider leaves the arithmetic of shapes to the CPU.
    """
    count: Counter[str] = Counter()
    for part in parts or ():
        if part.ep_name != provider:
            kinds = (node.op_type for node in part.get_nodes())
            count.update(f"{kind} by {part.ep_name}" for kind in kinds if COMPUTES.search(kind))
    return ", ".join(f"{nodes} {what}" for what, nodes in count.items())
