"""Exported files, read by the tools of each model's ecosystem, and by --weights."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mixmark.harness.capabilities.export import folder as export
from mixmark.harness.capabilities.export import onnx, safetensors
from mixmark.harness.capabilities.export.layouts import layout
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Spec, Suite, Use
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.measure.audit import CPU
from mixmark.harness.plugins import registry
from mixmark.suites.checkpoints import checkpoint
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.llm import Llm
from mixmark.suites.resnet50 import ResNet50

PAGE = Path(__file__).parents[3] / "docs/capabilities/export.md"

# the public libraries warn about themselves and about each other on import and on use
pytestmark = pytest.mark.filterwarnings("ignore:::diffusers", "ignore:::transformers", "ignore:::torch.jit")


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    """Slow to import; told to look nothing up on the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found: ModuleType = pytest.importorskip("transformers")
    return found


def reference(suite: Suite, **added: Array) -> tuple[dict[str, Array], Array]:
    """A feed of batch 1, with what is added to it, and the output that torch computes in fp32."""
    feed = {**suite.feeds(1, 0)(0), **added}
    adapter = registry.find("adapters")["torch"].load()({})
    with adapter.open(CPU, suite, "fp32", Use.of("single-stream")) as runner:
        return feed, np.concatenate(list(runner(feed)))


class Counting:
    """Weights that count upwards, over tensors of these shapes."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.shapes = shapes

    def names(self) -> Sequence[str]:
        return list(self.shapes)

    def spec(self, name: str) -> Spec:
        return Spec(self.shapes[name])

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        into[...] = np.arange(math.prod(into.shape)).reshape(into.shape) + 1


# safetensors


@pytest.mark.parametrize(
    ("precision", "type", "data"),
    [
        ("fp32", "F32", "0000803f 00000040 00004040 0000803f"),
        ("bf16", "BF16", "803f 0040 4040 803f"),
        ("fp16", "F16", "003c 0040 0042 003c"),
    ],
)
def test_a_file_is_a_length_a_header_and_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, type: str, data: str
) -> None:
    """By hand: the values 1, 2, 3 of one tensor, written in two parts, and 1 of another."""
    monkeypatch.setattr(safetensors, "CHUNK", 2)
    path = tmp_path / "model.safetensors"
    safetensors._write_file(path, {"a": "one", "b": "two"}, Counting(one=(3, 1), two=(1,)), precision)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    width = len(bytes.fromhex(data)) // 4
    assert length % 8 == 0 and content[8 + length :] == bytes.fromhex(data)
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": type, "shape": [3, 1], "data_offsets": [0, 3 * width]},
        "b": {"dtype": type, "shape": [1], "data_offsets": [3 * width, 4 * width]},
    }


def test_a_large_model_is_split_and_an_index_says_where_each_tensor_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "SHARD_BYTES", 24)
    weights = Counting(a=(2,), b=(4,), c=(1,), d=(5,), e=(9,))
    safetensors._write_model(tmp_path / "unet/model", {name: name for name in weights.names()}, weights, "fp32")
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert json.loads((tmp_path / "unet/model.safetensors.index.json").read_text()) == {
        "metadata": {"total_size": 84},
        "weight_map": {"a": files[0], "b": files[0], "c": files[1], "d": files[1], "e": files[2]},
    }
    read = checkpoint(tmp_path / "unet", {name: weights.spec(name) for name in weights.names()})
    assert [read_weight(read, name).tolist() for name in "acd"] == [[1, 2], [1], [1, 2, 3, 4, 5]]


def test_what_fp16_cannot_hold_is_refused() -> None:
    assert safetensors.rounded(np.array([65504, -65504], np.float32), "fp16").tolist() == [65504, -65504]
    with pytest.raises(Unsupported, match="beyond the range of fp16"):
        safetensors.rounded(np.array([1, 65536], np.float32), "fp16")


@pytest.mark.parametrize("name", registry.BUILT_IN["suites"])
def test_what_was_exported_is_read_again_bit_for_bit(tmp_path: Path, name: str) -> None:
    """By the reader of --weights. Synthetic weights are exact in 16 bits, except the statistics of resnet50's norms."""
    suite: Suite = registry.find("suites")[name].load()("smoke", {})
    precision = {"resnet50": "fp32", "diffusion": "fp16", "probe": "fp16"}.get(name, "bf16")
    safetensors.prepare(suite, precision)(tmp_path)
    weights = suite.weights()
    read = checkpoint(tmp_path, {each: weights.spec(each) for each in weights.names()})
    for each in weights.names():
        assert (read_weight(read, each) == read_weight(weights, each)).all(), each


def example(name: str) -> str:
    """The code of docs/capabilities/export.md behind the comment with this file's name."""
    found = re.search(rf"<!-- file: {name} -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found, name
    return found[1]


@pytest.mark.slow
def test_transformers_decodes_the_same_tokens(
    transformers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite, folder = Llm("smoke", {}), Path("llama")
    safetensors.prepare(suite, "bf16")(folder)
    export.write_samples(suite, folder / "samples", 1)
    scope: dict[str, Any] = {}
    exec(example("llama.py"), scope)
    assert scope["tokens"].shape == (128,)
    assert (scope["tokens"] == scope["sample"]["output"][:, 0]).all()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert words("17 4 4095").input_ids == [17, 4, 4095] and words.decode([17, 4, 4095]) == "17 4 4095"
    with pytest.raises(Exception, match="UNK"):
        words("17 x")


@pytest.mark.slow
def test_diffusers_draws_the_same_picture(transformers: ModuleType, tmp_path: Path) -> None:
    """The suite's first latent is the noise itself; diffusers scales that by σ, and not by √(σ² + 1)."""
    diffusers = pytest.importorskip("diffusers")
    suite: Any = Diffusion("smoke", {})
    safetensors.prepare(suite, "bf16")(tmp_path)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(tmp_path, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    call = json.loads((tmp_path / "call.json").read_text())
    feed, output = reference(suite)
    ids = torch.from_numpy(feed["ids"][0])
    with torch.no_grad():
        first = pipeline.text_encoder(ids, output_hidden_states=True).hidden_states[-2]
        second = pipeline.text_encoder_2(ids, output_hidden_states=True)
        context = torch.cat((first, second.hidden_states[-2]), -1)
        pipeline.scheduler.set_timesteps(call["num_inference_steps"])
        sigma = pipeline.scheduler.sigmas[0]
        (image,) = pipeline(
            negative_prompt_embeds=context[:1],
            prompt_embeds=context[1:],
            negative_pooled_prompt_embeds=second.text_embeds[:1],
            pooled_prompt_embeds=second.text_embeds[1:],
            latents=torch.from_numpy(feed["noise"]) * torch.sqrt(1 + 1 / sigma**2),
            output_type="pt",
            **call,
        ).images
    np.testing.assert_allclose(image, np.clip(output[0] / 2 + 0.5, 0, 1), rtol=0, atol=1e-4)


def torchvision_name(name: str) -> str:
    """The name that torchvision and timm give a tensor of transformers' ResNet."""
    name = name.removeprefix("resnet.").replace("classifier.1", "fc").replace("shortcut", "downsample")
    name = name.replace("embedder.embedder.convolution", "conv1").replace("embedder.embedder.normalization", "bn1")
    name = name.replace("downsample.convolution", "downsample.0").replace("downsample.normalization", "downsample.1")
    for stage in range(4):
        name = name.replace(f"encoder.stages.{stage}.layers", f"layer{stage + 1}")
    for layer in range(3):
        name = name.replace(f".layer.{layer}.convolution", f".conv{layer + 1}")
        name = name.replace(f".layer.{layer}.normalization", f".bn{layer + 1}")
    return name


@pytest.mark.slow
def test_resnet50_has_the_names_of_torchvision_and_the_network_of_transformers(
    transformers: ModuleType, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    suite = ResNet50("smoke", {})
    safetensors.prepare(suite, "fp32")(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**suite.config)).eval()
    model.load_state_dict(
        {name: stored.get(torchvision_name(name), value) for name, value in model.state_dict().items()}
    )
    assert {torchvision_name(name) for name in model.state_dict() if "num_batches" not in name} == {*stored}
    feed, output = reference(suite)
    told = json.loads((tmp_path / "config.json").read_text())["pretrained_cfg"]
    mean, deviation = (torch.tensor(told[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        logits = model((torch.from_numpy(feed["images"]) / 255 - mean) / deviation).logits
    np.testing.assert_allclose(logits, output, rtol=0, atol=1e-4)


def test_the_recommender_says_its_sizes(tmp_path: Path) -> None:
    suite = registry.find("suites")["dlrm"].load()("smoke", {})
    files = layout(suite.config, suite.weights().names(), "fp32")
    assert files.documents["config.json"]["multi_hot_sizes"] == suite.config["multi_hot_sizes"]
    assert [*files.weights["model"]] == [*suite.weights().names()]


# ONNX


class Engine:
    """A session of ONNX Runtime on exported files, as an engine without a converter of its own would have it."""

    def __init__(self, suite: Suite, folder: Path) -> None:
        import onnxruntime

        self.graphs = suite.graphs()
        self.sessions = {name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in self.graphs}

    def put(self, array: Array) -> Array:
        return array

    def state(self, graph: str) -> list[Array]:
        return [np.zeros([*map(int, spec.shape)], np.float16) for spec in self.graphs[graph].state.values()]

    def run(self, graph: str, *inputs: Array, state: Sequence[Array] = ()) -> Sequence[Array]:
        session, count = self.sessions[graph], len(self.graphs[graph].outputs)
        names = [each.name for each in session.get_inputs()]
        outputs: list[Array] = session.run(None, dict(zip(names, (*inputs, *state), strict=True)))
        for old, new in zip(state, outputs[count:], strict=True):
            old[...] = new
        return outputs[:count]

    def get(self, tensor: Array) -> Array:
        return tensor


@pytest.mark.slow
def test_onnx_runtime_decodes_in_fp16_what_was_exported(tmp_path: Path) -> None:
    """In one node each: attention and the RMS norm."""
    import onnx as library

    suite = Llm("smoke", {})
    onnx.prepare(suite, "fp16")(tmp_path)
    library.checker.check_model(tmp_path / "step.onnx")
    model = library.load(tmp_path / "step.onnx", load_external_data=False)
    nodes = [node.op_type for node in model.graph.node]
    assert (nodes.count("Attention"), nodes.count("RMSNormalization"), "Softmax" in nodes) == (4, 9, False)
    assert model.opset_import[0].version == 23
    stored = {each.name: each for each in model.graph.initializer if each.external_data}
    assert {*stored} == {*suite.weights().names()}
    assert {each.data_type for each in stored.values()} == {library.TensorProto.FLOAT16}
    session: Any = Engine(suite, tmp_path)
    feed, gate = suite.feeds(1, 0)(0), suite.gate("fp16")
    output = np.concatenate(list(suite.infer(session, feed)))
    _, logits = reference(suite.reference(), output=output)
    assert gate is not None and suite.quality(output, logits) <= gate.at_most
