"""The onnxruntime adapter on the CPU, beside torch on the same toy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from mixmark.harness.adapters import devices as adapter_devices
from mixmark.harness.adapters.onnxruntime import OnnxRuntime, OnnxSession, convert, devices, elsewhere, session_options
from mixmark.harness.adapters.onnxruntime import devices as onnxruntime_devices
from mixmark.harness.adapters.onnxruntime.convert import replace
from mixmark.harness.adapters.onnxruntime.files import Files
from mixmark.harness.contracts.errors import MixmarkError, PluginError, UsageError
from mixmark.harness.contracts.protocols import Array, GraphRunner, Suite, Use
from mixmark.harness.contracts.schema import Device, weight_class
from mixmark.suites import onnx_graphs
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.llm import Llm
from mixmark.suites.probe import Probe
from mixmark.suites.resnet50 import ResNet50
from tests.fakes.audits import ALONE, at_most, cpu, judged
from tests.fakes.toys import HOME, Random, Toy, computes_as_torch
from tests.marks import sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
CPU_0 = cpu(OnnxRuntime({}))


@pytest.fixture(scope="module")
def runner() -> Iterator[GraphRunner]:
    with OnnxRuntime({"threads": "2"}).open(CPU_0, Toy(), "fp32", ALONE) as runner:
        assert isinstance(runner, GraphRunner)
        yield runner


def test_it_computes_what_torch_computes(runner: GraphRunner) -> None:
    computes_as_torch(runner, CPU_0)


def test_the_probe_writes_no_matrix_to_a_disk() -> None:
    with OnnxRuntime({}).open(CPU_0, Probe("smoke", {}), "fp32", ALONE) as runner:
        where = {what for name, what in runner.facts.items() if name.startswith("weights of ")}
    assert where == {"inputs, bound once"}


def test_layers_choose_the_layout_of_their_weights_and_tables_are_not_copied() -> None:
    with OnnxRuntime({}).open(CPU_0, Dlrm("smoke", {}), "fp32", Use.of("offline")) as runner:
        assert isinstance(runner, GraphRunner)
        session: Any = runner.session
        assert runner.facts["weights of rank"] == "file, mapped while loading"
        assert runner.facts["tables of rank"] == "inputs, bound once"
        assert runner.facts["nodes of rank"].startswith("CPUExecutionProvider ")
        bound = {each.name for each in session._sessions["rank"].get_inputs()}
        tables = {name for name in bound if "t_cat_" in name}
        assert len(tables) == 26 and bound == tables | set(session._graphs["rank"].inputs)


def test_graphs_share_one_copy_of_a_weight() -> None:
    reads: list[str] = []

    class Counted(Random):
        def read(self, name: str, into: Array) -> None:
            reads.append(name)
            super().read(name, into)

    class Counting(Toy):
        def weights(self) -> Random:
            return Counted(onnx_graphs.weight_specs(HOME, self.tier, self.graphs))

    with OnnxRuntime({}).open(CPU_0, Counting(), "fp32", ALONE):
        assert sorted(reads) == sorted(Toy().weights().names())


def test_a_damaged_converted_model_is_named_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXMARK_CACHE", str(tmp_path))
    with OnnxRuntime({"threads": "1"}).open(CPU_0, Probe("smoke", {}, 8), "int8", ALONE):
        pass
    for model in tmp_path.glob("*/*.onnx"):
        model.write_bytes(b"damaged")
    opening = OnnxRuntime({"threads": "1"}).open(CPU_0, Probe("smoke", {}, 8), "int8", ALONE)
    with pytest.raises(MixmarkError, match="could not load") as refused:
        opening.__enter__()
    assert refused.value.hint.startswith(f"remove {tmp_path}")


@pytest.mark.parametrize(
    ("suite", "precision"), sweep(("llm", "int4"), ("probe", "int8"), ("llm", "int8"), ("probe", "int4"), usual=2)
)
def test_low_bits_keep_the_gate(suite: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXMARK_CACHE", str(tmp_path))
    bits = weight_class(precision)
    made: Suite = Llm("smoke", {}, bits) if suite == "llm" else Probe("smoke", {}, bits)
    with OnnxRuntime({}).open(CPU_0, made, precision, ALONE) as runner:
        assert judged(runner, made, made.feeds(1, seed=1)(0)) < at_most(made, precision)
        assert next(fact for name, fact in runner.facts.items() if "gemm" in name or "step" in name).startswith("exact")
    assert len(list(tmp_path.iterdir())) == 1  # the converted model, which the next worker takes


@pytest.mark.parametrize("made", sweep(Llm, Probe, Diffusion, Dlrm, ResNet50, usual=2))
def test_the_graphs_of_accelerators_keep_the_gate_in_fp16(made: Callable[[Any, Any], Suite], tmp_path: Path) -> None:
    """On the CPU, which rounds to fp16 after each operator and computes some in fp32."""
    suite = made("smoke", {})
    folder = tmp_path if suite.name == "llm" else None  # as on accelerators
    if folder:
        convert.writer(suite, 16, half=True)(folder)
    session = OnnxSession(suite, devices.ProviderDevice(CPU_0, devices.CPU), 2, folder, {}, half=True)
    runner = GraphRunner(suite, session, concurrency=1, facts={})
    assert judged(runner, suite, suite.feeds(1, seed=1)(0)) < at_most(suite, "fp16")
    ports = [port for each in session._sessions.values() for port in (*each.get_inputs(), *each.get_outputs())]
    assert "tensor(float)" not in {port.type for port in ports} and "tensor(float16)" in {port.type for port in ports}


def test_a_split_into_many_parts_becomes_slices() -> None:
    sizes = [1, 2, 3]
    value, part = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    split = onnx.helper.make_node("Split", ["x", "sizes"], ["a", "b", "c"], axis=1)
    outputs = [value(name, part, [2, size]) for name, size in zip("abc", sizes, strict=True)]
    constant = onnx.numpy_helper.from_array(np.array(sizes), "sizes")
    graph = onnx.helper.make_graph([split], "", [value("x", part, [2, 6])], outputs, [constant])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    convert.sliced(model, 3)
    assert [node.op_type for node in model.graph.node] == ["Split"]
    convert.sliced(model, 2)
    assert [node.op_type for node in model.graph.node] == ["Slice"] * 3
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    parts = (
        devices.import_runtime()
        .InferenceSession(model.SerializeToString(), session_options(1), [devices.CPU])
        .run(None, {"x": x})
    )
    for part, expected in zip(parts, np.split(x, [1, 3], axis=1), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_linear_layers_are_replaced_and_other_uses_of_their_weights_stay(tmp_path: Path) -> None:
    toy = Toy()
    model = onnx.load_from_string(toy.graphs()["step"].onnx())
    replace(model, files := Files(tmp_path, "step", toy.weights(), 4))
    files.finish(model)
    written = onnx.load(tmp_path / "step.onnx", load_external_data=False).graph
    assert sum(node.op_type == "MatMulNBits" for node in written.node) == 2
    names = {each.name for each in written.initializer if each.data_location == onnx.TensorProto.EXTERNAL}
    layers = {f"{layer}.{part}" for layer in ("table.weight", "qkv.weight") for part in ("integers", "scales")}
    assert names == layers | {"table.weight"}  # whose rows are looked up too


def plugged(provider: str, kind: str, device: int, name: str = "", **metadata: str) -> SimpleNamespace:
    """A device as onnxruntime lists it for a plug-in provider."""
    named = {"FULL_DEVICE_NAME": name} if name else {}
    type = SimpleNamespace(name=kind)
    silicon = SimpleNamespace(type=type, vendor="Acme", vendor_id=7, device_id=device, metadata=metadata)
    return SimpleNamespace(ep_name=provider, ep_metadata=named, device=silicon)


Plug = Callable[..., tuple[OnnxRuntime, list[SimpleNamespace]]]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plug:
    """Returns an adapter with a plug-in of these devices, and the list of all that onnxruntime lists. No other plug-in
    is found by itself."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime_devices, "PLUGINS", ())
    library = tmp_path / "libacme.so"
    library.touch()

    def plug(*found: SimpleNamespace) -> tuple[OnnxRuntime, list[SimpleNamespace]]:
        known = [plugged("CPUExecutionProvider", "CPU", 0)]
        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: known)
        register = "register_execution_provider_library"
        monkeypatch.setattr(onnxruntime, register, lambda name, path: known.extend(found))
        return OnnxRuntime({"library": str(library)}), known

    return plug


def test_the_devices_of_a_plug_in_provider(plug: Plug) -> None:
    acme = [plugged("AcmeExecutionProvider", "NPU", 1, "Acme Topaz"), plugged("AcmeExecutionProvider", "GPU", 2)]
    adapter, known = plug(*acme, plugged("AcmeExecutionProvider.AUTO", "NPU", 1))
    for _ in range(2):  # a library registers once
        host, npu, gpu = adapter.discover()
        assert (host.id, host.offers("llm")) == ("cpu:0", ("fp32", "int8", "int4"))
        assert (npu.id, npu.name, npu.memory_pool) == ("npu:acme0", "Acme Topaz", "npu:acme0")
        assert (gpu.id, gpu.name, gpu.precisions) == ("gpu:acme0", "Acme GPU", ("fp16", "fp32"))
    known.append(plugged("AcmeExecutionProvider", "CPU", 0))
    assert [device.id for device in adapter.discover()] == ["npu:acme0", "gpu:acme0", "cpu:0"], "the CPU is its now"
    assert {each.id: each.offers("llm") for each in adapter.discover()}["cpu:0"] == ("fp32",)


def test_a_gpu_of_a_plug_in_has_the_id_that_torch_and_the_meters_give_it(
    plug: Plug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    amd = tmp_path / "0000:03:00.0"
    amd.mkdir()
    (amd / "vendor").write_text("0x1002\n")
    (amd / "unique_id").write_text("90abcdef12345678\n")
    monkeypatch.setattr(adapter_devices, "SYSFS", tmp_path)
    adapter, _ = plug(
        plugged("AcmeExecutionProvider", "GPU", 2, pci_bus_id="0000:03:00.0", Discrete="0"),
        plugged("AcmeExecutionProvider", "GPU", 3, pci_bus_id="0000:04:00.0"),
    )
    _, integrated, other = adapter.discover()
    assert integrated.id == "gpu:GPU-39306162-6364-6566-3132-333435363738" and integrated.memory_pool == "host"
    assert (other.id, other.memory_pool) == ("gpu:acme1", "gpu:acme1"), "nothing tells its UUID"


def test_a_plug_in_provider_that_does_not_load_says_why() -> None:
    for library, reason in ((__file__, "test_onnxruntime.py does not load"), ("no_such_ep", "No module named")):
        with pytest.raises(PluginError, match=reason):
            OnnxRuntime({"library": library}).discover()


@pytest.mark.parametrize(
    ("provider", "option"), [("MIGraphXExecutionProvider", "migraphx_model_cache_dir"), ("DmlExecutionProvider", None)]
)
def test_a_provider_keeps_its_engines_in_the_model_cache(
    provider: str, option: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder for each graph, which some providers would else take for each other."""
    import onnxruntime

    monkeypatch.setenv("MIXMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [provider, devices.CPU])
    given: list[dict[str, str]] = []
    real = onnxruntime.InferenceSession

    def session(model: object, options: object, providers: list[Any]) -> object:
        given.append(providers[0][1])
        return real(model, options, [devices.CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    adapter = OnnxRuntime({"provider.own": "1"})
    device = next(device for device in adapter.discover() if device.id != "cpu:0")
    for _ in range(2):
        with adapter.open(device, Toy(), "fp32", ALONE) as runner:
            assert runner.facts.get("engines") == ("in the model cache" if option else None)
    folders = [{key: Path(value) for key, value in options.items() if key == option} for options in given]
    graphs = len(Toy().graphs())
    assert len(given) == 2 * graphs and all(options["own"] == "1" for options in given)
    assert folders[:graphs] == folders[graphs:], "the next run finds them"
    if option:
        assert {folder[option].name for folder in folders} == set(Toy().graphs())
        assert all(folder[option].is_dir() and tmp_path in folder[option].parents for folder in folders)


def test_a_provider_computes_fp32_in_no_fewer_bits_and_an_npu_offers_what_it_computes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import onnxruntime

    named = ("QNNExecutionProvider", "VitisAIExecutionProvider", "DmlExecutionProvider")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*named, devices.CPU])
    offered = {device.id: device.precisions for device in OnnxRuntime({}).discover() if device.id != "cpu:0"}
    assert {"npu:qnn": ("fp16",), "npu:vitisai": ("bf16",), "gpu:dml": ("fp16", "fp32")}.items() <= offered.items()
    gpu = devices.ProviderDevice(Device(id="gpu:a", kind="gpu", memory_pool="a", precisions=("fp32",)), devices.CUDA)
    assert devices.provider_options(gpu, {}, False) == {"use_tf32": "0"}
    assert devices.provider_options(gpu, {"use_tf32": "1"}, False) == {"use_tf32": "1"}, "what its owner sets stays"


def test_settings_of_openvinos_plug_in_are_completed() -> None:
    npu = Device(id="npu:openvino0", kind="npu", memory_pool="a", precisions=("fp16",))
    place = devices.ProviderDevice(npu, devices.OPENVINO, SimpleNamespace(ep_metadata={"ov_device": "NPU"}))
    given = {"load_config": '{"NPU": {"PERFORMANCE_HINT": "LATENCY"}}'}
    settings = json.loads(devices.provider_options(place, given, True, Path("kept"))["load_config"])
    assert settings == {"NPU": {"INFERENCE_PRECISION_HINT": "f16", "CACHE_DIR": "kept", "PERFORMANCE_HINT": "LATENCY"}}
    for wrong in ("LATENCY", "[1]", '{"NPU": 1}'):
        with pytest.raises(UsageError, match="load_config"):
            devices.provider_options(place, {"load_config": wrong}, True)


def test_openvinos_plug_in_computes_what_the_cpu_computes_and_keeps_its_engines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real provider, which takes the processor; its own default is bf16 where the processor has it. Its first
    session writes its engines, and its second one reads them."""
    pytest.importorskip(
        "onnxruntime_ep_openvino", reason="no onnxruntime_ep_openvino: pip install onnxruntime-ep-openvino"
    )
    monkeypatch.setenv("MIXMARK_CACHE", str(tmp_path))
    adapter, seen = OnnxRuntime({"library": "onnxruntime_ep_openvino"}), []
    for _ in range(2):
        with adapter.open(cpu(adapter), Toy(), "fp32", ALONE) as runner:
            computes_as_torch(runner, CPU_0)
            assert runner.facts["nodes of see"].startswith("OpenVINOExecutionProvider ")
            assert "elsewhere" not in runner.facts
        seen.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.blob")})
    assert seen[0] and seen[0] == seen[1]


def test_what_computes_elsewhere_is_named_and_shape_arithmetic_is_not() -> None:
    def part(provider: str, *kinds: str) -> SimpleNamespace:
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: [SimpleNamespace(op_type=kind) for kind in kinds])

    cpu, cuda = "CPUExecutionProvider", "CUDAExecutionProvider"
    parts = [part(cuda, "Conv", "Gemm"), part(cpu, "Shape", "Gather", "Concat")]
    assert elsewhere(parts, cuda) == ""
    assert elsewhere([*parts, part(cpu, "FusedConv", "MatMul", "FusedConv")], cuda) == (
        "2 FusedConv by CPUExecutionProvider, 1 MatMul by CPUExecutionProvider"
    )
    assert elsewhere(None, cuda) == ""  # a version that does not list them
