"""A model of one's own: tiny ONNX files, their inputs, gates, costs and references, with exact values."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.capabilities.own_model import OnnxFile, options
from mixmark.harness.capabilities.own_model.gguf_file import GgufFile
from mixmark.harness.contracts.errors import UsageError, WrongOutput
from mixmark.harness.plugins import registry
from mixmark.harness.resources import memory
from mixmark.harness.worker.messages import Measured

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from mixmark.harness.capabilities.own_model import measuring, model  # noqa: E402

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal((8, 4)).astype(np.float32)
SAMPLES = RANDOM.standard_normal((20, 8)).astype(np.float32)


def written(
    path: Path, nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Sequence[str] = ("y",), **how: Any
) -> Path:
    """A file. inputs: shape and, if it is not float, the type of each."""
    given = [
        helper.make_tensor_value_info(name, *((TensorProto.FLOAT, shape) if isinstance(shape, list) else shape))
        for name, shape in inputs.items()
    ]
    made = [helper.make_tensor_value_info(name, how.get("kind", TensorProto.FLOAT), None) for name in outputs]
    weights = [numpy_helper.from_array(each, name) for name, each in how.get("weights", {"w": WEIGHT}).items()]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(proto, path, **how.get("save", {}))
    return path


MATMUL = [helper.make_node("MatMul", ["x", "w"], ["y"])]


@pytest.fixture
def linear(tmp_path: Path) -> dict[str, str]:
    """y = x · w with samples of x."""
    np.savez(tmp_path / "s.npz", x=SAMPLES)
    file = written(tmp_path / "linear.onnx", MATMUL, {"x": ["n", 8]})
    return {"file": str(file), "inputs": str(tmp_path / "s.npz")}


def measured(given: Mapping[str, str]) -> Measured:
    return OnnxFile("smoke", given).measured()


def test_what_is_measured_says_all_that_a_judge_needs_without_a_path(linear: dict[str, str], tmp_path: Path) -> None:
    found = measured(linear)
    assert found.scenarios == ("offline", "single-stream", "server") and found.weights.startswith("linear.onnx sha256:")
    assert not any(str(tmp_path) in each for each in (*found.options.values(), found.weights))
    judged = registry.build_suite(
        "linear", f"{OnnxFile.__module__}:OnnxFile", "smoke", {**found.options, "weights": found.weights}
    )
    (cost,) = judged.costs("bf16", 3)
    assert (judged.units(3), cost.flops, cost.streamed_bytes, cost.bytes) == (
        3,
        3 * 2 * 8 * 4,
        8 * 4 * 2,
        8 * 4 * 2 + 32,
    )
    assert 1e-3 < judged.gate("bf16").at_most < 0.05 and 1e-5 <= judged.gate("fp32").at_most < 1e-3
    assert judged.gate("fp16") == judged.gate("bf16") and judged.gate("int8") is None


def test_feeds_are_combined_from_the_samples_and_every_unit_is_compared(linear: dict[str, str]) -> None:
    suite = OnnxFile("smoke", {**linear, **measured(linear).options})
    make = suite.feeds(3, 7)
    feed = make(1)
    assert np.array_equal(feed["x"], make(1)["x"]) and not np.array_equal(feed["x"], make(2)["x"])
    assert all((row == SAMPLES).all(1).any() for row in feed["x"])
    with suite.open_reference() as reference:
        (right,) = reference(feed)
    np.testing.assert_allclose(right, feed["x"] @ WEIGHT, rtol=1e-5)
    assert suite.quality(right, right) == 0
    assert suite.quality(np.stack([right[0], right[1], right[0]]), right) > 0.3, "the last unit is another's output"
    with pytest.raises(WrongOutput):
        suite.quality(right[:, :3], right)


def test_rounding_is_that_of_bf16_and_the_graph_rounds_alike() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = SAMPLES.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(measuring.round_to(SAMPLES, 8), expected)
    assert np.isneginf(measuring.round_to(np.array([-np.inf], np.float32), 8))


def body(name: str, *nodes: Any) -> Any:
    return helper.make_graph(
        list(nodes), name, [], [helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, None)]
    )


def test_bodies_are_rounded_and_their_work_is_not_known(tmp_path: Path) -> None:
    branches = {each: body(each, helper.make_node("MatMul", ["x", "w"], [f"{each}.y"])) for each in ("a", "b")}
    how = {"then_branch": branches["a"], "else_branch": branches["b"]}
    file = written(
        tmp_path / "if.onnx", [helper.make_node("If", ["c"], ["y"], **how)], {"x": [1, 8], "c": (TensorProto.BOOL, [])}
    )
    found = measured({"file": str(file), "range.x": "-1:1", "range.c": "0:2"})
    assert found.options["not counted"] == "1 If" and not OnnxFile("smoke", found.options).costs("fp32", 1)
    assert found.scenarios == ("single-stream", "server")
    plain = onnx.load(file)
    rounded = measuring.rounded(plain, 8)
    feed = {"x": measuring.round_to(SAMPLES[:1], 8), "c": np.array(True)}
    (exact,), (coarse,) = (measuring.outputs_of(model.session(each), feed) for each in (plain, rounded))
    by_hand = measuring.round_to(feed["x"] @ measuring.round_to(WEIGHT, 8), 8)
    assert np.array_equal(coarse, by_hand) and not np.array_equal(coarse, exact)


@pytest.mark.parametrize(
    ("nodes", "given", "why"),
    [
        (MATMUL, {}, "neither samples nor ranges describe its inputs"),
        (
            [helper.make_node("Mul", ["x", "zero"], ["y"])],
            {"range.x": "0:1"},
            "its outputs do not depend on the inputs",
        ),
        (MATMUL, {"range.x": "0:1"}, None),
    ],
)
def test_without_a_gate_the_reason_is_a_fact(
    tmp_path: Path, nodes: Any, given: dict[str, str], why: str | None
) -> None:
    weights = {"w": WEIGHT, "zero": np.zeros(8, np.float32)}
    file = written(tmp_path / "a.onnx", nodes, {"x": ["n", 8]}, weights=weights)
    facts = measured({"file": str(file), **given}).options
    assert facts.get("no gate") == why
    assert ("gate for 16 bits" in facts) == (OnnxFile("smoke", facts).gate("bf16") is not None) == (why is None)


def test_a_gate_is_never_so_wide_that_a_quarter_of_other_feeds_pass(linear: dict[str, str]) -> None:
    """Most of the samples are nearly one input; their outputs differ less than 16 bits move them."""
    np.savez(linear["inputs"], x=np.where(np.arange(20)[:, None] < 14, SAMPLES[0] + SAMPLES / 1e4, SAMPLES))
    facts = measured(linear).options
    assert "gate for fp32" in facts and facts["no gate for 16 bits"].startswith("rounding moves outputs by 0.0")


def test_a_model_whose_batch_does_not_run_takes_one_sample_at_a_time(linear: dict[str, str]) -> None:
    nodes = [helper.make_node("Reshape", ["x", "one"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    weights = {"w": WEIGHT, "one": np.array([1, 8])}
    written(Path(linear["file"]), nodes, {"x": ["n", 8]}, weights=weights)
    assert measured(linear).scenarios == ("single-stream", "server")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8, np.uint8, np.bool_, np.float16])
def test_every_type_of_input_is_taken(tmp_path: Path, kind: type) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=1), helper.make_node("MatMul", ["f", "w"], ["y"])]
    file = written(tmp_path / "a.onnx", nodes, {"x": (helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["n", 8])})
    suite = OnnxFile("smoke", {"file": str(file), "range.x": "0:2"})
    assert suite.feeds(2, 0)(0)["x"].dtype == (np.float32 if kind is np.float16 else kind)
    assert "gate for fp32" in suite.measured().options


def test_sizes_come_from_samples_and_from_options(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.onnx", [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], {"x": ["n", "h", "w"]}
    )
    shape = model.load(file, {"h": 5}, {"x": (9, 4, 3)}).inputs["x"].shape
    assert shape == ("batch", 5, 3)
    assert model.load(file, {"n": 2, "h": 5, "x.2": 6}, {}).inputs["x"].shape == (2, 5, 6)
    external = written(
        tmp_path / "b.onnx",
        MATMUL,
        {"x": [1, 8]},
        save={"save_as_external_data": True, "size_threshold": 0, "location": "w.bin"},
    )
    (weight,) = model.load(external, {}, {}).proto.graph.initializer
    assert np.array_equal(numpy_helper.to_array(weight), WEIGHT) and not weight.external_data
    (tmp_path / "w.bin").unlink()
    with pytest.raises(UsageError, match=r"w\.bin|No such file"):
        model.load(external, {}, {})


def piped(given: dict[str, str]) -> None:
    Path(given["file"]).unlink()
    os.mkfifo(given["file"])


BAD: Mapping[str, tuple[Callable[[dict[str, str]], object], str]] = {
    "no file": (lambda given: given.update(file=f"{given['file']}.no"), "cannot be read"),
    "no onnx": (lambda given: Path(given["file"]).write_bytes(b"not a model"), "cannot be read as ONNX"),
    "pipe": (piped, "not a regular file"),
    "device": (lambda given: given.update(inputs="/dev/zero"), "not a regular file"),
    "empty": (lambda given: Path(given["file"]).write_bytes(b""), "cannot be read as ONNX"),
    "operator": (
        lambda given: written(Path(given["file"]), [helper.make_node("Acme", ["x", "w"], ["y"])], {"x": [1, 8]}),
        "does not load",
    ),
    "axis": (
        lambda given: given.pop("inputs") and written(Path(given["file"]), MATMUL, {"x": ["n", "k"]}),
        "axis 1 of the input x",
    ),
    "dim": (lambda given: given.update({"dim.z": "3"}), "no symbolic axis z"),
    "size": (lambda given: given.update({"dim.n": "many"}), "no whole number"),
    "range": (lambda given: given.update({"range.x": "1:0"}), "no range"),
    "name": (lambda given: np.savez(given["inputs"], other=SAMPLES), "no input of the model"),
    "shape": (lambda given: np.savez(given["inputs"], x=SAMPLES[:, :5]), r"has the shape \(20, 5\)"),
    "type": (lambda given: np.savez(given["inputs"], x=SAMPLES.astype(int)), "is of int64"),
    "archive": (lambda given: Path(given["inputs"]).write_bytes(b"PK"), "cannot be read"),
    "string": (lambda given: written(Path(given["file"]), MATMUL, {"x": (TensorProto.STRING, [1, 8])}), "is of object"),
}


def gguf_file(path: Path, tensor: str = "token_embd.weight", parts: int = 0) -> bytes:
    """Writes a GGUF file of two tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    if parts:
        writer.add_uint16("split.count", parts)
    writer.add_tensor(tensor, np.zeros((40, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()
    return path.read_bytes()


def test_a_gguf_file_says_what_it_holds_and_is_unaudited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"file": str(tmp_path / "sha256-3d0b")}
    gguf_file(tmp_path / "sha256-3d0b")
    assert options.section(given) == {"plugin": "gguf-file", **given}
    found = GgufFile("edge", given).measured()
    suite = GgufFile("edge", found.options)
    assert (suite.options["types"], found.precisions) == ("Q4_K_M, 1 Q8_0, 1 F32", ("as-file",))
    (ids,) = suite.feeds(1, 0)(0).values()
    assert (len(ids), max(ids), suite.units(1)) == (640, 39, 129)
    assert suite.gate("as-file") is None and not suite.costs("as-file", 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(UsageError, match="1 kB of memory are free"):
        GgufFile("edge", given).measured()


BAD_GGUF: Mapping[str, Callable[[Path], object]] = {
    "regular": os.mkfifo,
    "does not begin": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1"),
    "cannot reshape": lambda path: path.write_bytes(gguf_file(path)[:-64]),
    "cannot be read as GGUF": lambda path: path.write_bytes(b"GGUF"),
    "token_embd": lambda path: gguf_file(path, "blk.0.ffn_up.weight"),
    "a part of a split": lambda path: gguf_file(path, parts=2),
}


@pytest.mark.parametrize("words", BAD_GGUF)
def test_a_gguf_file_that_cannot_run_is_a_sentence(tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of what is no GGUF file is its own, with or without the package that reads one."""
    if words in ("regular", "does not begin"):
        monkeypatch.setitem(sys.modules, "gguf", None)
    BAD_GGUF[words](tmp_path / "Qwen3-Q4_K_M.GGUF")
    with pytest.raises(UsageError, match=words):
        GgufFile("edge", options.section({"file": str(tmp_path / "Qwen3-Q4_K_M.GGUF")})).measured()


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence(linear: dict[str, str], case: str) -> None:
    spoil, words = BAD[case]
    spoil(linear)
    with pytest.raises(UsageError, match=words) as raised:
        measured(linear)
    assert raised.value.hint


def test_the_options_are_a_section_named_after_the_file() -> None:
    given = {"model": Path("/a/llm.onnx"), "inputs": None, "dims": ("x=3",), "ranges": ("y=0:9",)}
    assert options.sections(given, {}, Path()) == {
        "my-llm": {"plugin": "onnx-file", "file": "/a/llm.onnx", "dim.x": "3", "range.y": "0:9"}
    }
    tables: Any = {"ocr": {"file": "d.onnx", "dim": {"n": 2}}, "small": {"plugin": "dlrm", "rows": 9}}
    assert options.sections(dict.fromkeys(given), tables, Path("/b")) == {
        "ocr": {"plugin": "onnx-file", "file": "/b/d.onnx", "dim.n": "2"},
        "small": {"plugin": "dlrm", "rows": "9"},
    }
    for wrong in ({"model": None}, {"dims": ("x",)}):
        with pytest.raises(UsageError):
            options.sections(given | wrong, {}, Path())
