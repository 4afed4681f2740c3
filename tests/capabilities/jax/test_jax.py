"""The adapter jax: its operators beside ONNX's reference, the suites on the CPU, and how a worker chooses its chip."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mixmark.harness.adapters.torch import Torch
from mixmark.harness.capabilities.jax import Jax, devices
from mixmark.harness.contracts.errors import MixmarkError, PluginError, Unsupported, UsageError
from mixmark.harness.contracts.protocols import Array, Use
from mixmark.harness.contracts.schema import Device
from mixmark.harness.plugins import model_cache, registry
from tests.fakes.toys import Toy
from tests.marks import sweep

jax = pytest.importorskip("jax", reason="jax is not installed: pip install -e '.[jax]'")
from mixmark.harness.capabilities.jax.operators import IN_FP32, KEEP_BITS, PRODUCTS, Program  # noqa: E402
from mixmark.harness.capabilities.jax.session import JaxSession  # noqa: E402

pytestmark = pytest.mark.slow

ALONE = Use.of("single-stream")
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a claim changes for its process is undone."""
    monkeypatch.setenv(model_cache.FOLDER, str(tmp_path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    yield
    jax.config.update("jax_enable_x64", True)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def scalar(value: float) -> Array:
    return np.full((), value, np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def model(kind: str, inputs: list[Array], attributes: dict[str, Any], outputs: int = 1) -> onnx.ModelProto:
    """A graph of one node, with the inputs that are `known` as constants."""
    names = [f"in{number}" for number in range(len(inputs))]
    constants = [numpy_helper.from_array(each, name) for name, each in zip(names, inputs, strict=True) if known(each)]
    free = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(names, inputs, strict=True)
        if not known(each)
    ]
    results = [f"out{number}" for number in range(outputs)]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([helper.make_node(kind, names, results, **attributes)], "one", free, made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def known(values: Array) -> bool:
    """Shapes, axes and scales, and no indices of several axes."""
    return values.ndim < 2 and values.dtype in (np.int64, np.float16)


IMAGE, ROWS = floats(2, 4, 6, 5), floats(3, 8)
NODES: list[tuple[str, list[Array], dict[str, Any]]] = [
    *((kind, [np.abs(ROWS) + 0.1], {}) for kind in ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Relu")),
    *((kind, [ROWS], {}) for kind in ("Reciprocal", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Tanh", "IsNaN")),
    *((kind, [ROWS, floats(3, 1)], {}) for kind in ("Add", "Div", "Equal", "Greater", "LessOrEqual", "Mul", "Sub")),
    *((kind, [ROWS, floats(8), floats(3, 1)], {}) for kind in ("Max", "Min", "Sum")),
    *((f"Reduce{kind}", [IMAGE, ints(1, -1)], {"keepdims": keep}) for kind, keep in (("Mean", 0), ("Sum", 1))),
    ("ReduceMax", [ROWS], {}),
    ("ReduceMean", [ROWS], {"noop_with_empty_axes": 1}),
    ("ArgMax", [ROWS], {"axis": -1, "keepdims": 0}),
    ("BatchNormalization", [IMAGE, floats(4), floats(4), floats(4), np.abs(floats(4))], {"epsilon": 1e-3}),
    ("Cast", [ROWS], {"to": TensorProto.INT64}),
    ("Clip", [ROWS, scalar(-0.5), scalar(0.5)], {}),
    ("Concat", [ROWS, floats(2, 8)], {"axis": 0}),
    ("ConstantOfShape", [ints(2, 3)], {"value": numpy_helper.from_array(np.ones(1, np.float32) * 3)}),
    ("Conv", [IMAGE, floats(6, 2, 3, 3), floats(6)], {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", [floats(1, 3, 9), floats(4, 3, 3)], {"dilations": [2], "auto_pad": "SAME_UPPER"}),
    *(("CumSum", [ROWS, ints(1)[0]], {"reverse": back, "exclusive": out}) for back in (0, 1) for out in (0, 1)),
    ("Div", [np.array([[-7, 7, 9]]), np.array([[2, -2, 3]])], {}),
    ("Expand", [floats(3, 1), ints(2, 1, 4)], {}),
    ("Flatten", [IMAGE], {"axis": 2}),
    ("Gather", [ROWS, np.array([[0, -1], [2, 1]])], {"axis": 1}),
    ("GatherND", [IMAGE, np.array([[0, 3], [1, -1]])], {}),
    ("Gemm", [floats(5, 3), floats(4, 5), floats(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("GlobalAveragePool", [IMAGE], {}),
    ("InstanceNormalization", [IMAGE, floats(4), floats(4)], {"epsilon": 1e-6}),
    ("LayerNormalization", [IMAGE, floats(6, 5), floats(6, 5)], {"axis": -2}),
    ("MatMul", [floats(2, 1, 3, 4), floats(5, 4, 2)], {}),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("Mod", [np.array([[-7, 7]]), np.array([[3, -3]])], {}),
    ("Pow", [np.abs(ROWS), scalar(2.5)], {}),
    ("Range", [ints(2)[0], ints(9)[0], ints(3)[0]], {}),
    ("Reshape", [IMAGE, ints(0, -1, 5)], {}),
    (
        "Resize",
        [IMAGE, np.zeros(0, np.float16), np.array([1, 1, 2, 3], np.float16)],
        {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    ),
    ("ScatterElements", [ROWS, np.array([[1, 0], [7, 2], [3, 3]]), floats(3, 2)], {"axis": 1}),
    ("Slice", [ROWS, ints(1, 6), ints(99, -99), ints(0, 1), ints(1, -2)], {}),
    ("Slice", [ROWS, ints(1), ints(3)], {}),
    ("Shape", [IMAGE], {"start": 1, "end": -1}),
    ("Softmax", [ROWS], {"axis": 0}),
    ("Squeeze", [floats(1, 3, 1), ints(0)], {}),
    ("Squeeze", [floats(1, 3, 1)], {}),
    ("Tile", [ROWS, ints(2, 1)], {}),
    ("Transpose", [IMAGE], {"perm": [0, 2, 1, 3]}),
    ("Transpose", [ROWS], {}),
    ("Trilu", [floats(4, 4), ints(1)[0]], {"upper": 0}),
    ("Unsqueeze", [ROWS, ints(0, -1)], {}),
    ("Where", [ROWS > 0, ROWS, floats(1)], {}),
]


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"), NODES, ids=[f"{number}-{node[0]}" for number, node in enumerate(NODES)]
)
def test_an_operator_does_what_onnx_says(kind: str, inputs: list[Array], attributes: dict[str, Any]) -> None:
    node = model(kind, inputs, attributes)
    free = [each for each in inputs if not known(each)]
    (found,), state = jax.jit(Program(node, 0, np.float32))({}, [], *free)
    wanted: Any
    [wanted] = ReferenceEvaluator(node).run(None, {f"in{n}": each for n, each in enumerate(inputs) if not known(each)})
    assert (found.shape, state) == (wanted.shape, [])
    assert np.asarray(found).dtype.kind == np.asarray(wanted).dtype.kind
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("split", "attributes", "sizes"),
    [([ints(3, 5)], {"axis": 1}, [3, 5]), ([], {"axis": 1, "num_outputs": 3}, [3, 3, 2])],
)
def test_a_split_has_several_outputs(split: list[Array], attributes: dict[str, int], sizes: list[int]) -> None:
    outputs, _ = Program(model("Split", [ROWS, *split], attributes, len(sizes)), 0, np.float32)({}, [], ROWS)
    assert [each.shape[1] for each in outputs] == sizes and np.array_equal(np.concatenate(outputs, axis=1), ROWS)


def test_an_operator_or_an_attribute_that_jax_lacks_is_named() -> None:
    assert len({*KEEP_BITS, *IN_FP32, *PRODUCTS}) > 60
    for kind, attributes, inputs in (("Det", {}, [ROWS]), ("GatherND", {"batch_dims": 1}, [IMAGE, ints(1)])):
        with pytest.raises(Unsupported, match=f"jax has no operator for {kind}"):
            Program(model(kind, inputs, attributes), 0, np.float32)


def test_a_shape_that_depends_on_data_is_unsupported() -> None:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["n"], to=TensorProto.INT64), helper.make_node("Reshape", ["x", "n"], ["y"])],
        "shaped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    session = object.__new__(JaxSession)
    program = Program(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), 0, np.float32
    )
    session.__dict__.update(_compiled={"shaped": jax.jit(program)}, _weights={"shaped": {}})
    with pytest.raises(Unsupported, match="jax cannot trace shaped"):
        session.run("shaped", np.ones(2, np.float32))


SUITES = {
    "llm": 1,
    "dlrm": 256,
    "resnet50": 8,
    "speech": 1,
    "ssm": 1,
    "llm-prefill": 1,
    "llm-decode": 1,
    "diffusion": 1,
}


@pytest.mark.parametrize(
    ("name", "precision"), sweep(("llm", "bf16"), *((name, bits) for bits in ("fp32", "bf16") for name in SUITES))
)
def test_a_suite_passes_its_gate(name: str, precision: Any) -> None:
    """Each alone: an absent capability has no suite."""
    suite = registry.find("suites")[name].load()("smoke", {}, 16) if name in registry.find("suites") else None
    if suite is None:
        pytest.skip(f"there is no suite {name}")
    device = next(iter(Jax({"cpu": "yes"}).discover())).model_copy(update={"precisions": ("bf16", "fp32")})
    with Jax({"cpu": "yes"}).open(device, suite, precision, ALONE) as runner:
        feed = suite.feeds(SUITES[name], 0)(0)
        output = np.concatenate(list(runner(feed)))
    by_torch = next(iter(Torch({}).discover()))
    with Torch({}).open(by_torch, suite.reference(), "fp32", ALONE) as referee:
        reference = np.concatenate(list(referee({**feed, "output": output})))
    assert suite.quality(output, reference) <= suite.gate(precision).at_most


def test_a_state_lives_on_in_its_memory_and_one_that_a_failed_call_lost_ends_the_record() -> None:
    """Two states, in turns: one of a text of eight tokens, and one of the last four of them alone."""
    before, now = np.arange(8, 12), np.arange(1, 5)
    adapter = Jax({"cpu": "yes", "threads": "1"})
    device = next(iter(adapter.discover()))
    with adapter.open(device, Toy(), "fp32", ALONE) as runner:
        session: Any = runner.session  # type: ignore[attr-defined]

        def decoded(state: Any, tokens: Array, position: int) -> Any:
            token, _ = session.run("step", session.put(tokens), session.put(np.array([position])), state=state)
            return session.get(token).tolist()

        whole, alone = session.state("step"), session.state("step")
        first, taken = decoded(whole, before, 0), list(whole)
        assert (decoded(alone, now, 0), decoded(whole, now, 4)) == ([7], [22])
        assert decoded(alone, before, 4) not in ([7], first) and all(each.is_deleted() for each in taken)
        with pytest.raises(MixmarkError, match="a call of step failed and lost the state"):
            decoded(taken, now, 4)
        assert runner.facts["threads"] == "1" == os.environ["PJRT_NPROC"]


def test_the_cpu_and_virtual_devices_come_by_option_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_plugin", lambda: False)
    with pytest.raises(PluginError) as none:
        Jax({}).discover()
    assert none.value.hint == 'cpu = "yes" takes the processor'
    virtual = list(Jax({"cpu": "8"}).discover())
    assert [each.id for each in virtual] == [f"simulated:jax{number}" for number in range(8)]
    for wrong in ("many", "0", "65"):
        with pytest.raises(UsageError, match="cpu"):
            Jax({"cpu": wrong})
    gpu = Device(id="gpu:GPU-0", kind="gpu", memory_pool="gpu:GPU-0", precisions=("fp32",))
    for precision, told in (("bf16", "in fp32 only"), ("fp32", "does not reach gpu:GPU-0")):
        with pytest.raises(Unsupported, match=told), Jax({}).open(gpu, Toy(), precision, ALONE):
            pass


def test_a_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"jax is not installed"):
        list(Jax({}).discover())


def test_devices_are_listed_in_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here that is the CPU, which is none of them; a broken plug-in is an error with its last line."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert list(devices.accelerators()) == []
    monkeypatch.setenv("JAX_PLATFORMS", "quartz")
    with pytest.raises(PluginError, match=r"jax fails: .*quartz"):
        list(devices.accelerators())


H100 = ["gpu", "PJRT C API\ncuda 13000", "NVIDIA H100 80GB HBM3", 60e9, ["bf16", "fp16", "fp32"]]
"""As an H100 was listed, but for the bytes."""


def test_gpus_of_nvidia_have_the_ids_of_their_meter_and_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Device(
        id="gpu:GPU-5d1c", kind="gpu", name="H100", memory_pool="gpu:GPU-5d1c", memory_bytes=85, precisions=()
    )
    monkeypatch.setattr(devices, "nvidia_gpus", lambda precisions: iter([known]))
    [found] = devices.described([H100])
    assert found == known.model_copy(update={"precisions": ("bf16", "fp16", "fp32")})
    tpus = list(
        devices.described([["tpu", "libtpu", "TPU v6e", 32e9, ["bf16"]], ["tpu", "libtpu", "TPU v6e", None, []]])
    )
    assert [(each.id, each.kind, each.memory_bytes) for each in tpus] == [
        ("npu:tpu0", "npu", 32_000_000_000),
        ("npu:tpu1", "npu", None),
    ]
    assert next(devices.described([["METAL", "", "Apple M4", None, ["fp32"]]])).id == "gpu:metal0"


@pytest.mark.parametrize(
    ("id", "variables"),
    [
        ("gpu:GPU-5d1c", {"CUDA_VISIBLE_DEVICES": "GPU-5d1c"}),
        ("gpu:rocm1", {"HIP_VISIBLE_DEVICES": "1"}),
        ("npu:tpu3", {"TPU_VISIBLE_CHIPS": "3", "TPU_PROCESS_BOUNDS": "1,1,1"}),
        ("npu:neuron2", {"NEURON_RT_VISIBLE_CORES": "2"}),
        ("npu:qnn0", {}),
    ],
)
def test_a_worker_sees_its_chip_alone_and_takes_no_memory_ahead(
    monkeypatch: pytest.MonkeyPatch, id: str, variables: dict[str, str]
) -> None:
    """Integers have 32 bits on a chip that has no more."""
    chip = SimpleNamespace(platform=id[4:])
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(platform="cpu"), chip])
    kind: Any = id[:3]
    assert devices.claim(Device(id=id, kind=kind, memory_pool=id, precisions=()), 2, 0, False) is chip
    assert variables.items() <= os.environ.items() and os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert not jax.config.jax_enable_x64


def test_a_plug_in_is_found_by_its_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    before = devices.has_plugin()
    (tmp_path / "jax_plugins" / "quartz").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "quartz" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax_plugins", raising=False)
    assert (before, devices.has_plugin()) == (False, True)
