"""A language model's folder: four shapes equal to transformers', gates that a skipped layer does not pass, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.language_model import LanguageModel
from mixmark.harness.capabilities.language_model.folder import SIZES, section
from mixmark.harness.capabilities.own_model import options
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.request import RunRequest
from mixmark.harness.measure.run import prepare
from mixmark.harness.resources import memory

torch = pytest.importorskip("torch")

from tests.suites.decoders import Eager  # noqa: E402

BASE = {**dict(zip(SIZES, (3, 64, 4, 2, 96, 128), strict=True)), "max_position_embeddings": 512}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "qwen2": {},
    "llama": {"tie_word_embeddings": True, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, **LLAMA3}},
    "mistral": {"rope_scaling": {"type": "linear", "factor": 4.0}, "sliding_window": 256},
}


def written(folder: Path, kind: str = "qwen3", **more: Any) -> Path:
    """A folder with a config of version 4 of transformers, and without weights."""
    folder.mkdir(exist_ok=True)
    words = json.dumps({"model_type": kind, **BASE, "rope_theta": 100.0, **SHAPES[kind], **more})
    (folder / "config.json").write_text(words)
    return folder


def suite_of(folder: Path) -> LanguageModel:
    given = section(folder)
    return LanguageModel("smoke", {name: text for name, text in given.items() if name != "plugin"})


def saved(folder: Path, kind: str) -> Any:
    """The network of transformers with random weights, saved in two shards by its own code."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**json.loads((written(folder, kind) / "config.json").read_text()))
    torch.manual_seed(0)
    peer = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in peer.named_parameters():
        parameter.data.uniform_(0.5, 1.5) if "norm" in name else parameter.data.normal_(std=0.2)
    peer.save_pretrained(folder, max_shard_size="100KB")
    return peer


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
def test_logits_are_those_of_transformers_in_prompt_and_decode(tmp_path: Path, kind: str) -> None:
    """Whatever the config says has an effect here: the rope of theta 100 turns often within 160 tokens."""
    with torch.inference_mode():
        peer, suite = saved(tmp_path, kind), suite_of(tmp_path)
        network = Eager(suite).module
        caches = [torch.zeros(*spec.shape) for spec in suite.graphs()["step"].state.values()]
        ids = torch.randint(128, (suite.shape.context,))
        expected = peer(ids[None]).logits[0]
        for begin, end in ((0, 32), *((at, at + 1) for at in range(32, suite.shape.context))):
            got = network.logits(network.model(ids[begin:end], torch.tensor([begin]), *caches))
            assert float((got - expected[end - 1]).norm() / expected[end - 1].norm()) < suite.fp32


@pytest.mark.slow
def test_the_gate_is_measured_and_is_a_fact_without_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 passes it on a feed of the run, a network without its last layer does not. There is none without memory."""
    found = suite_of(written(tmp_path)).measured()
    judged = LanguageModel("smoke", found.options)
    assert judged.unit_names.work == "LLM tokens"
    assert str(tmp_path) not in str(found) and found.weights == "synthetic"
    assert judged.gate("bf16") == judged.gate("fp16") and judged.gate("int8") is None
    at_most = {name: judged.gate(name).at_most for name in ("bf16", "fp32")}  # type: ignore[union-attr]
    assert 0.003 < at_most["bf16"] < 0.1 and at_most["fp32"] == max(1e-4, at_most["bf16"] / 64)
    with torch.inference_mode():
        teacher, feed = Eager(judged.reference()), judged.feeds(1, 5)(0)
        error = {}
        for skipped in (False, True):
            network = Eager(judged, torch.bfloat16)
            if skipped:
                network.module.model.layers[-1].forward = lambda x, *rest: x
            output = network(feed)
            error[skipped] = judged.quality(output, teacher({**feed, "output": output}))
    assert at_most["fp32"] < error[False] < at_most["bf16"] < error[True]
    monkeypatch.setattr(memory, "available_bytes", lambda: 300_000)
    assert "does not fit" in suite_of(tmp_path).measured().options["no gate"]


def test_each_shape_has_graphs_weights_and_engines_of_its_own(tmp_path: Path) -> None:
    suites = {kind: suite_of(written(tmp_path, kind)) for kind in SHAPES}
    assert len({suite.variant for suite in suites.values()}) == 4, "an export is found again by its shape"
    shapes = [suite.shape for suite in suites.values()]
    assert [shape.biases for shape in shapes] == [False, True, False, False]
    assert [shape.head_norms for shape in shapes] == [shape.head_dim == 32 for shape in shapes]
    assert [suites[kind].config["model_type"] for kind in SHAPES] == ["qwen3", "qwen2", "llama", "llama"]
    assert section(written(tmp_path, "mistral"))["longest"] == "256", "its window, beyond which it does not attend"
    version5: dict[str, Any] = {"rope_theta": None, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
    assert section(written(tmp_path, **version5)) == section(written(tmp_path))


def config(**more: Any) -> Callable[[Path], object]:
    return lambda folder: written(folder, **more)


def without_a_shard(folder: Path) -> None:
    saved(folder, "qwen3")
    next(folder.glob("model-00002-*.safetensors")).unlink()


BAD: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "tokenizer only": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "has no config.json"),
    "no json": (lambda folder: (folder / "config.json").write_text("{"), "is no JSON"),
    "deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "is no JSON"),
    "no number": (config(rms_norm_eps=float("inf"), rope_theta=-1), "epsilon inf, rope_theta -1.0"),
    "text for yes": (config(tie_word_embeddings="false", num_hidden_layers=2.7), "layers 2.7, tie_word_embeddings 'f"),
    "architecture": (config(model_type="gemma3"), "of the type gemma3"),
    "unknown key": (config(quantization_config={"bits": 4}), "has quantization_config"),
    "no size": (config(num_key_value_heads=None), "lacks num_key_value_heads"),
    "bias": (config(attention_bias=True), "attention_bias = True"),
    "rope": (config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope of the type yarn"),
    "rope's key": (config(rope_scaling={"type": "linear", "factor": 4.0, "beta": 1}), "with factor, beta"),
    "text": (config(hidden_size="wide"), "value of a wrong type"),
    "heads": (config(num_attention_heads=3), "heads 3, kv_heads 2"),
    "short": (config(max_position_embeddings=100), "takes 100 tokens, and the tier smoke has 160"),
    "memory": (config(num_hidden_layers=10**9), "of weights in 16 bits"),
    "shard": (without_a_shard, "model-00002-of-"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_measured_is_a_sentence(tmp_path: Path, case: str) -> None:
    spoil, words = BAD[case]
    spoil(tmp_path)
    with pytest.raises(UsageError, match=words) as raised:
        suite_of(tmp_path).measured()
    assert raised.value.hint


def test_a_folder_is_an_option_as_a_file_is(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": written(tmp_path / "Qwen3-1.7B"), "inputs": None, "dims": (), "ranges": ()}
    (made,) = options.sections(given, {}, tmp_path).items()
    assert made == ("Qwen3-1.7B", section(tmp_path / "Qwen3-1.7B"))
    file = tmp_path / "Qwen3-1.7B" / "Qwen3-1.7B.gguf"
    file.touch()
    beside = {"plugin": "gguf-file", "file": str(file)}
    assert [*options.sections(given, {}, tmp_path).items()] == [("Qwen3-1.7B.gguf", beside), made]
    mix = options.sections({**given, "model": None}, {"own": {"file": "Qwen3-1.7B"}}, tmp_path)
    assert mix == {"own": made[1]}, "so it is in the file of a mix"
    with pytest.raises(UsageError, match="folder is not known"):
        LanguageModel("smoke", {}).measured()
    with pytest.raises(UsageError, match="an ONNX file"):
        options.sections({**given, "dims": ("x=3",)}, {}, tmp_path)


def test_the_model_is_measured_and_nothing_else_or_the_run_is_refused(tmp_path: Path) -> None:
    asked = RunRequest(tier="smoke", out=tmp_path / "out", sections={"mine": section(written(tmp_path))})
    for mix in (None, "none"):
        assert [each.name for each in prepare(replace(asked, mix=mix)).workloads] == ["mine"]
    for other in ({"suites": ("llm",)}, {"mix": "smoke-1"}):
        with pytest.raises(UsageError, match="does not measure the model mine"):
            prepare(replace(asked, **other))
