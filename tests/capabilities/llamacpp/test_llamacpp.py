"""GGUF files of the llm suite, which need the package gguf only, and decoding by llama.cpp where it is installed."""

from __future__ import annotations

import ctypes
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import gguf as reader
import numpy as np
import pytest

from mixmark.harness.adapters.torch import Torch
from mixmark.harness.capabilities.llamacpp import Bench, LlamaCpp, gguf, offloading, used
from mixmark.harness.capabilities.llamacpp import devices as ggml_devices
from mixmark.harness.capabilities.llamacpp.devices import Properties, described
from mixmark.harness.capabilities.llamacpp.gguf import TYPES
from mixmark.harness.contracts.errors import PluginError, Unsupported
from mixmark.harness.contracts.protocols import Array, Runner, Use
from mixmark.harness.contracts.schema import Device, WeightClass, weight_class
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.plugins import model_cache
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.llm import Llm

ALONE = Use.of("single-stream")


@pytest.fixture(autouse=True)
def no_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(model_cache.FOLDER, str(tmp_path / "cache"))


def plain_order(rows: Array, heads: int) -> Array:
    """The rows of a query or key projection in the order of the public checkpoint, one row at a time."""
    size = len(rows) // heads
    half = size // 2
    places = [head * size + pair + shift for head in range(heads) for pair in range(half) for shift in (0, half)]
    back = np.empty_like(rows)
    back[places] = rows
    return back


CLASSES: dict[str, WeightClass] = {gguf.TYPES[precision]: weight_class(precision) for precision in gguf.TYPES}


@pytest.mark.parametrize("type", gguf.BYTES_PER_GROUP)
def test_every_type_holds_the_drawn_weights_of_its_class_bit_for_bit(type: str, tmp_path: Path) -> None:
    suite = Llm("smoke", {}, CLASSES[type])
    gguf.write(suite, type, tmp_path)
    path = tmp_path / gguf.FILE
    assert path.stat().st_size <= gguf.size_bytes(suite, type) < path.stat().st_size + 2 * gguf.HEAD_BYTES
    found = {each.name: each for each in reader.GGUFReader(path).tensors}
    weights = suite.weights()
    assert set(found) == {gguf.tensor_name(name) for name in weights.names()} | {"rope_freqs.weight"}
    for name in weights.names():
        stored, wanted = found[gguf.tensor_name(name)], read_weight(weights, name)
        assert stored.tensor_type.name == (type if wanted.ndim > 1 else "F32")
        values = reader.quants.dequantize(stored.data, stored.tensor_type).reshape(wanted.shape)
        if "q_proj" in name or "k_proj" in name:
            values = plain_order(values, 8 if "q_proj" in name else 2)
        assert (values == wanted).all(), name


def test_weights_without_steps_are_rounded_to_the_nearest_the_types_have() -> None:
    matrix = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    for type, bound in (("F16", 2**-11), ("BF16", 2**-8), ("Q8_0", 1 / 127), ("Q4_0", 1 / 7)):
        kind = reader.GGMLQuantizationType[type]
        data = gguf.encoded(matrix, type)
        values = reader.quants.dequantize(data.view(np.float16) if type == "F16" else data, kind).reshape(3, 2, 32)
        largest = np.abs(matrix.reshape(3, 2, 32)).max(2, keepdims=True)
        assert (np.abs(values - matrix.reshape(3, 2, 32)) <= bound * largest).all(), type
    ties = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20]], np.float32)
    assert gguf._bf16(ties).tolist() == [[0x3F80, 0x3F82, 0xBF80, 0x3F81]]


def test_rope_factors_are_those_of_the_suite() -> None:
    """By hand for head_dim 32, theta 500,000, factor 8 between 1 and 4 turns of 8,192 tokens."""
    factors = gguf.rope_factors(Llm("smoke", {}).config)
    assert factors.shape == (16,)
    for i, factor in enumerate(factors):
        turns = 8192 * 500_000 ** (-i / 16) / (2 * math.pi)
        blend = min(max((turns - 1) / 3, 0), 1)
        assert factor == pytest.approx(1 / (blend + (1 - blend) / 8), rel=1e-6)
    assert factors[0] == 1 and factors[-1] == 8 and 1 < factors[8] < 8


def test_any_text_becomes_tokens_and_those_of_numbers_come_back(tmp_path: Path) -> None:
    """llama.cpp's tokenizer of RWKV never ends on a text that begins like a word where no word ends."""
    gguf.write(Llm("smoke", {}), "Q4_0", tmp_path)
    path = str(tmp_path / gguf.FILE)
    words = set(reader.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents())
    assert len(words) == 4096 and all(word[:-1] in words for word in words if len(word) > 1)
    llama = pytest.importorskip(
        "llama_cpp", reason="no llama_cpp: pip install 'mixmark[llamacpp]' (compiles for ten minutes)"
    )
    model = llama.Llama(path, vocab_only=True, verbose=False)
    assert model.tokenize(b" 17 4 2", add_bos=False) == [17, 4, 2]
    assert model.tokenize(b" tea 40", add_bos=False) == [0, -1, -1, -1, 40]
    tokens = [0, 17, 0, 0, 4095, 1]
    assert model.tokenize(model.detokenize(tokens), add_bos=False) == tokens


def test_instruction_sets_that_a_build_uses_are_named() -> None:
    assert used("CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | LLAMAFILE = 1 | ") == ["SSE3", "AVX2", "LLAMAFILE"]


@pytest.fixture(scope="module")
def suite() -> Llm:
    pytest.importorskip("llama_cpp", reason="no llama_cpp: pip install 'mixmark[llamacpp]' (compiles for ten minutes)")
    return Llm("smoke", {}, 4)


def cpu() -> Device:
    return next(device for device in LlamaCpp({}).discover() if device.id == "cpu:0")


def output(runner: Runner, suite: Llm, nonce: int) -> Array:
    return np.concatenate(list(runner(suite.feeds(1, seed=1)(nonce))))


@pytest.mark.slow
@pytest.mark.parametrize("bits", get_args(WeightClass))
def test_every_precision_of_a_class_decodes_within_its_gate(bits: WeightClass) -> None:
    pytest.importorskip("llama_cpp", reason="no llama_cpp: pip install 'mixmark[llamacpp]' (compiles for ten minutes)")
    suite = Llm("smoke", {}, bits)
    by_torch = next(device for device in Torch({}).discover() if device.id == "cpu:0")
    with Torch({}).open(by_torch, suite.reference(), "fp32", ALONE) as reference:
        for precision in (each for each in TYPES if weight_class(each) == bits):
            with LlamaCpp({"threads": "1"}).open(cpu(), suite, precision, ALONE) as runner:
                told = output(runner, suite, 0)
                assert told.shape == (128, 257) and told.dtype == np.float32
                assert (output(runner, suite, 1)[:, 0] != told[:, 0]).any()
                assert (
                    output(runner, suite, 0)[:, 0] == told[:, 0]
                ).all()  # nothing of the feed before is left in the KV cache
                feed = {**suite.feeds(1, seed=1)(0), "output": told}
                (logits,) = reference(feed)
                gate = suite.gate(precision)
                assert gate is not None and suite.quality(told, logits) <= gate.at_most, precision
                assert runner.facts["matrices"] == TYPES[precision]


def test_a_file_of_the_users_own_is_run_as_by_llama_bench() -> None:
    """The prompt enters an empty context, and so does the first of the tokens that enter alone."""
    log: list[object] = []
    bench: Any = object.__new__(Bench)
    bench._library = SimpleNamespace(
        llama_memory_clear=lambda *_: log.append("emptied"),
        llama_batch_get_one=lambda tokens, count: tokens[:count],
        llama_decode=lambda context, entering: log.append(entering),
        llama_get_logits_ith=lambda *_: (ctypes.c_float * 4)(0, 1, 3, 2),
    )
    bench._tokens, bench._tokens_out, bench._vocabulary, bench._memory, bench.context = (ctypes.c_int * 8)(), 4, 4, 0, 0
    assert np.concatenate([*bench({"ids": np.arange(8)})]).tolist() == [2] * 4
    assert log == ["emptied", [0, 1, 2, 3, 4], "emptied", [5], [6], [7]]


def test_what_it_does_not_have_is_refused(suite: Llm) -> None:
    with pytest.raises(Unsupported, match="dlrm is not one"):
        LlamaCpp({}).open(cpu(), Dlrm("smoke", {}), "fp32", ALONE).__enter__()
    assert cpu().offers("dlrm") == () and cpu().offers("llm")[0] == "fp16"


def test_the_format_refuses_what_its_files_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="GGUF has no type for fp8"):
        gguf.prepare(Llm("smoke", {}), "fp8")
    with pytest.raises(Unsupported, match="GGUF files hold only Llama-type models; dlrm is not one"):
        gguf.prepare(Dlrm("smoke", {}), "fp32")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(PluginError, match="gguf is not installed"):
        gguf.prepare(Llm("smoke", {}), "bf16")


def properties(name: str, description: str, type: int, address: str = "", total: int = 0) -> Properties:
    """What ggml tells of a device."""
    return Properties(name.encode(), description.encode(), 0, total, type, address.encode() or None)


def test_ggmls_devices_are_named_by_what_the_driver_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"0000:01:00.0": "gpu:GPU-5d1cae40"}
    monkeypatch.setattr(ggml_devices, "gpu_id", lambda address, unknown: found.get(address, unknown))
    count: Counter[str] = Counter()
    cuda = described(properties("CUDA0", "NVIDIA H100", 1, "0000:01:00.0", 80 << 30), count)
    assert (cuda.id, cuda.kind, cuda.name, cuda.memory_bytes) == ("gpu:GPU-5d1cae40", "gpu", "NVIDIA H100", 80 << 30)
    assert cuda.offers("llm")[0] == "fp16" and cuda.offers("dlrm") == ()
    integrated = described(properties("Vulkan0", "AMD Radeon 890M", 2, "0000:65:00.0", 16 << 30), count)
    assert (integrated.id, integrated.memory_pool, integrated.memory_bytes) == ("gpu:ggml1", "host", None)
    software = described(properties("Vulkan1", "SwiftShader Device (LLVM 16.0.0)", 1), count)
    assert (software.id, software.kind) == ("simulated:ggml0", "simulated")
    assert described(properties("CANN0", "Ascend910B", 1), count).kind == "npu"


def test_layers_that_stay_on_the_cpu_are_told() -> None:
    assert "elsewhere" not in offloading("CUDA0", [(17, 17)])
    assert offloading("CUDA0", [(17, 17)])["layers on the device"] == "17 of 17"
    assert offloading("CUDA0", [(9, 17)])["elsewhere"] == "8 of 17 layers by the CPU"
    assert "unknown" in offloading("CUDA0", [])["layers on the device"]


def test_a_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(PluginError, match=r"^llama_cpp ") as absent:
        list(LlamaCpp({}).discover())
    assert "GGML_NATIVE=ON" in absent.value.hint
