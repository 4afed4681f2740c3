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

from mixmark.harness.capabilities.export import safetensors
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Array, Spec, Suite, Use
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.measure.audit import CPU
from mixmark.harness.plugins import registry
from mixmark.suites.checkpoints import checkpoint
from mixmark.suites.llm import Llm

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
    safetensors._write_file(path, Counting(a=(3, 1), b=(1,)), precision)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    width = len(bytes.fromhex(data)) // 4
    assert length % 8 == 0 and content[8 + length :] == bytes.fromhex(data)
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": type, "shape": [3, 1], "data_offsets": [0, 3 * width]},
        "b": {"dtype": type, "shape": [1], "data_offsets": [3 * width, 4 * width]},
    }


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
    folder.mkdir()
    safetensors.prepare(suite, "bf16")(folder)
    scope: dict[str, Any] = {}
    exec(example("llama.py"), scope)
    feed, output = reference(suite)
    tokens = scope["model"].generate(torch.from_numpy(feed["ids"])[None])[0, len(feed["ids"]) :]
    assert tokens.tolist() == output[:, 0].tolist() and len(tokens) == 128
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert words("17 4 4095").input_ids == [17, 4, 4095] and words.decode([17, 4, 4095]) == "17 4 4095"
    with pytest.raises(Exception, match="UNK"):
        words("17 x")
