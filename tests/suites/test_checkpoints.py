"""Checkpoints in every usual packing, and files that are none."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Spec
from mixmark.harness.contracts.text import unnamed
from mixmark.harness.contracts.weights import checked
from mixmark.harness.contracts.weights import read_weight as read
from mixmark.suites.checkpoints import checkpoint

Floats = npt.NDArray[np.float32]
A = np.arange(6, dtype=np.float32).reshape(2, 3) / np.float32(4)
B = np.array([1.5, -2.0], np.float32)


FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def save(path: Path, tensors: Mapping[str, Floats], dtype: torch.dtype = torch.float32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: torch.from_numpy(tensor).to(dtype, copy=True) for name, tensor in tensors.items()}
    save_file(stored, path, metadata={"format": "pt"})
    return path


SPECS = {"a": Spec((2, 3)), "b": Spec((2,))}


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_safetensors_in_any_float_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = checkpoint(save(tmp_path / "m.safetensors", {"b": B, "a": A, "more": B}, dtype), SPECS)
    assert list(weights.names()) == ["a", "b"]
    assert (read(weights, "a") == A).all() and (read(weights, "b") == B).all()


def test_shards_come_together_by_their_index(tmp_path: Path) -> None:
    save(tmp_path / "model-00001-of-00002.safetensors", {"a": A})
    save(tmp_path / "model-00002-of-00002.safetensors", {"b": B})
    save(tmp_path / "old.safetensors", {"a": A + 1})
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = checkpoint(tmp_path, SPECS)
    assert (read(weights, "a") == A).all() and (read(weights, "b") == B).all()

    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UsageError, match="00002-of-00002"):
        checkpoint(tmp_path, SPECS)


@pytest.mark.parametrize(
    ("suffix", "nested", "zipped"), [(".pt", False, True), (".pth", True, True), (".bin", False, False)]
)
def test_torch_files_are_read_as_data(tmp_path: Path, suffix: str, nested: bool, zipped: bool) -> None:
    state = {"a": torch.from_numpy(A).bfloat16(), "b": torch.from_numpy(B)}
    path = tmp_path / f"m{suffix}"
    torch.save({"state_dict": state} if nested else state, path, _use_new_zipfile_serialization=zipped)
    weights = checkpoint(path, SPECS)
    assert (read(weights, "a") == A).all() and (read(weights, "b") == B).all()


def refused(path: Path, specs: Mapping[str, Spec] = SPECS) -> str:
    """What is said of a checkpoint, in one line."""
    with pytest.raises(UsageError) as refusal:
        checked(checkpoint(path, specs), str(path))
    assert "\n" not in f"{refusal.value}{refusal.value.hint}" and refusal.value.hint
    return f"{refusal.value}; {refusal.value.hint}"


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", {"a": A})
    assert "has no tensor 'b'; it has 1 tensors, such as a" in refused(path)
    assert "has shape (2, 3), but the suite needs (3, 2)" in refused(path, {"a": Spec((3, 2))})
    assert "2 of 2 tensors" in refused(path, {"c": Spec((1,)), "d": Spec((1,))})
    assert "there is no checkpoint at" in refused(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "no file of weights (.safetensors, .bin, .pt, .pth); give the file" in refused(tmp_path / "empty")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 2471645608\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"
FOREIGN = {
    "lfs": (LFS, "git lfs pull"),
    "page": (PAGE, "a web page"),
    "empty": (b"", "is empty"),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(64), "a GGUF or GGML file"),
}
UNSAVED = {
    "ctranslate2": b"\x06\0\0\0\x0c\0WhisperSpec\0\x01\0\0\0",
    "onnx": b"\x08\x07\x12\x07pytorch\x1a\x051.9.0",
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(64),
    "msgpack": b"\x81\xa6params\x82" + bytes(64),
}


@pytest.mark.parametrize("content", UNSAVED.values(), ids=UNSAVED)
def test_a_file_that_torch_did_not_save_is_not_called_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.bin").write_bytes(content)
    assert "is no file that torch saved: it begins with " in refused(tmp_path)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize(("content", "said"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_kind_is_named(tmp_path: Path, suffix: str, content: bytes, said: str) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(content)
    assert said in refused(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    path.rename(folder / path.name)
    assert said in refused(folder)


def test_a_public_repository_that_is_cloned_whole_is_read_in_its_folders(tmp_path: Path) -> None:
    """With the weights of other software at its root, which has them under other names, or as pointers only."""
    specs = {"unet.a": Spec((2, 3)), "vae.b": Spec((2,))}
    save(tmp_path / "unet" / "model.safetensors", {"a": A})
    save(tmp_path / "unet" / "model.fp16.safetensors", {"a": A + 1})
    save(tmp_path / "vae" / "model.safetensors", {"b": B})
    save(tmp_path / "safety_checker" / "model.safetensors", {"c": B})
    root = save(tmp_path / "v1-5-pruned.safetensors", {"model.diffusion_model.a": A})
    assert (read(checkpoint(tmp_path, specs), "unet.a") == A).all()
    root.write_bytes(LFS)
    assert (read(checkpoint(tmp_path, specs), "vae.b") == B).all()
    (tmp_path / "vae" / "model.safetensors").write_bytes(LFS)
    assert "vae/model.safetensors is a pointer of git-lfs" in refused(tmp_path, specs)
    save(root, {"unet.a": A + 1, "vae.b": B})
    assert (read(checkpoint(tmp_path, specs), "unet.a") == A + 1).all(), "the files that have everything"


class Arguments:
    """What a trainer saves beside weights."""


@pytest.mark.parametrize("beside", [Arguments(), {"state": {0: {"step": 3}}, "param_groups": []}, 3, LFS])
def test_what_a_trainer_leaves_beside_the_weights_is_not_read(tmp_path: Path, beside: Any) -> None:
    torch.save({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}, tmp_path / "pytorch_model.bin")
    left = tmp_path / "optimizer.bin"
    torch.save(beside, left) if beside is not LFS else left.write_bytes(LFS)
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all()
    said = refused(tmp_path, {**SPECS, "c": Spec((1,))})
    assert f"{tmp_path} has no tensor 'c', and {left} " in said, "the tensor may be in it"
    assert "it has 2 tensors, such as a; give the checkpoint of" in said


def test_a_format_that_lacks_tensors_does_not_hide_one_that_has_them(tmp_path: Path) -> None:
    save(tmp_path / "adapter.safetensors", {"lora": A})
    torch.save({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}, tmp_path / "pytorch_model.bin")
    assert list(checkpoint(tmp_path, SPECS).names()) == ["a", "b"]


def test_two_files_with_the_same_tensor_are_refused(tmp_path: Path) -> None:
    for version in (1, 2):
        save(tmp_path / f"resnet50-v{version}.safetensors", {"a": A + version, "b": B})
    assert "resnet50-v1.safetensors and resnet50-v2.safetensors" in refused(tmp_path)
    assert (read(checkpoint(tmp_path / "resnet50-v2.safetensors", SPECS), "a") == A + 2).all()


def header(entries: object, data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


WHOLE = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
DAMAGED = {
    "a header cut": header(WHOLE, bytes(24))[:20],
    "data cut": header(WHOLE, bytes(16)),
    "data left": header(WHOLE, bytes(32)),
    "text": b"Access to this model is restricted." * 20,
    "another size than the shape's": header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 24]}}, bytes(24)),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    assert "not a whole safetensors file" in refused(path, {"a": Spec((2, 3))})


INDICES = {
    "cut": b'{"weight_map": {"a": "m.saf',
    "no map": b'{"metadata": {}}',
    "a list": b'["m.safetensors"]',
    "numbers": b'{"weight_map": {"a": 1}}',
    "lists": b'{"weight_map": {"a": ["m.safetensors"]}}',
    "another folder": b'{"weight_map": {"a": "../../etc/passwd"}}',
    "no name of a file": b'{"weight_map": {"a": "m\\u0000.safetensors"}}',
    "deep": b"[" * 100_000,
}


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "is not a regular file" in refused(tmp_path)


@pytest.mark.parametrize("content", INDICES.values(), ids=INDICES)
def test_a_bad_index_is_refused(tmp_path: Path, content: bytes) -> None:
    save(tmp_path / "m.safetensors", {"a": A})
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    assert "is no index of shards" in refused(tmp_path)
    save(tmp_path / "m.safetensors", {"a": A, "b": B})
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all(), "it hides no whole file"


def indexed(folder: Path, name: str, tensors: Mapping[str, Floats], stem: str = "shard") -> None:
    """An index of two shards, one tensor in each."""
    files = {tensor: f"{stem}-{at}-of-2.safetensors" for at, tensor in enumerate(tensors)}
    for tensor, file in files.items():
        save(folder / file, {tensor: tensors[tensor]})
    (folder / name).write_text(json.dumps({"weight_map": files}))


MAIN: Mapping[str, Floats] = {"a": A, "b": B}
FP16: Mapping[str, Floats] = {"a": A / np.float32(2), "b": B}


@pytest.mark.parametrize("variant", ["model.fp16.safetensors.index.json", "model.safetensors.index.fp16.json"])
def test_the_index_of_a_variant_is_the_last_that_is_taken(tmp_path: Path, variant: str) -> None:
    indexed(tmp_path, variant, FP16, "model.fp16")
    assert (read(checkpoint(tmp_path, SPECS), "a") == A / 2).all(), "there is nothing else"
    indexed(tmp_path, "model.safetensors.index.json", MAIN)
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all()
    (tmp_path / "shard-0-of-2.safetensors").unlink()
    torch.save({name: torch.from_numpy(tensor) for name, tensor in MAIN.items()}, tmp_path / "pytorch_model.bin")
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all(), "another format before a variant"


def test_an_index_hides_no_whole_set(tmp_path: Path) -> None:
    indexed(tmp_path, "adapter.safetensors.index.json", {"lora": A}, "adapter")
    indexed(tmp_path, "model.safetensors.index.json", MAIN)
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all()
    (tmp_path / "shard-1-of-2.safetensors").unlink()
    save(tmp_path / "consolidated.safetensors", MAIN)
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all(), "half of the shards are left"
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "consolidated.safetensors"}}')
    assert (read(checkpoint(tmp_path, SPECS), "b") == B).all()


@pytest.mark.parametrize("stem", ["llama-3.2-1b", "model-v1.5"])
def test_a_version_in_a_name_is_no_variant(tmp_path: Path, stem: str) -> None:
    indexed(tmp_path, "old.json", MAIN, stem)
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all(), "shards without an index"
    save(tmp_path / "model-v1.safetensors", FP16)
    assert "both have a tensor 'a'" in refused(tmp_path)


def test_two_sets_that_have_all_tensors_must_be_equal(tmp_path: Path) -> None:
    indexed(tmp_path, "model.safetensors.index.json", MAIN)
    save(tmp_path / "consolidated.safetensors", MAIN)
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all()
    indexed(tmp_path, "ema.safetensors.index.json", FP16, "ema")
    said = refused(tmp_path)
    assert "ema.safetensors.index.json and model.safetensors.index.json in " in said and " 'a', and it differs" in said
    assert (read(checkpoint(tmp_path / "ema.safetensors.index.json", SPECS), "a") == A / 2).all()
    for file in tmp_path.glob("ema*"):
        file.unlink()
    torch.save({name: torch.from_numpy(tensor) for name, tensor in MAIN.items()}, tmp_path / "a.pth")
    torch.save({name: torch.from_numpy(tensor) for name, tensor in FP16.items()}, tmp_path / "b.bin")
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all(), "safetensors before torch's files"
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    assert "a.pth and b.bin in " in refused(tmp_path), "whatever their suffix"


@pytest.mark.parametrize(
    "saved", [[A], {"state_dict": [A]}, {"a": 3}, {"a": A, "b": object}], ids=["list", "nested", "number", "class"]
)
def test_a_torch_file_without_named_tensors_is_refused_without_torchs_advice(tmp_path: Path, saved: Any) -> None:
    torch.save(saved, tmp_path / "m.pth")
    said = refused(tmp_path / "m.pth")
    assert "weights_only" not in said and ("state_dict()" in said)


def test_what_a_checkpoint_holds_in_place_of_tensors_is_said(tmp_path: Path) -> None:
    torch.save({"dims": {}, "model_state_dict": {"a": torch.from_numpy(A)}}, tmp_path / "base.PT")
    assert "holds no tensors by name, but dims, model_state_dict; save" in refused(tmp_path / "base.PT")
    save(tmp_path / "hub/snapshots/0a1b/model.safetensors", {"a": A})
    assert "has no file of weights" in (said := refused(tmp_path / "hub")) and "such as snapshots/0a1b" in said
    (tmp_path / "best.ckpt").write_bytes(b"PK\x03\x04")
    assert "files in .ckpt are not read" in refused(tmp_path / "best.ckpt")
    save(tmp_path / "bnb.SAFETENSORS", {"a": A.reshape(6, 1)}, torch.uint8)
    assert "is stored as U8" in refused(tmp_path / "bnb.SAFETENSORS", {"a": Spec((2, 3))})


def test_a_damaged_torch_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}, path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], pickle.dumps({"a": A}), b"text" * 99):
        path.write_bytes(content)
        assert "weights_only" not in refused(path)


def test_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    damaged = A.copy()
    damaged[1, 1:] = np.nan, np.inf
    path = save(tmp_path / "m.safetensors", {"a": damaged, "b": B}, torch.bfloat16)
    assert refused(path).startswith("a has 2 values that are NaN or infinite")


def test_a_float64_beyond_float32_is_not_finite(tmp_path: Path) -> None:
    content = header({"b": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}, struct.pack("<2d", 1e300, 1))
    (tmp_path / "m.safetensors").write_bytes(content)
    assert refused(tmp_path, {"b": Spec((2,))}).startswith("b has 1 value ")


def test_the_label_is_of_what_is_read_alone(tmp_path: Path) -> None:
    def label(name: str, dtype: torch.dtype = torch.float32, **tensors: Floats) -> str:
        save(tmp_path / name / "m.safetensors", tensors, dtype)
        return checked(checkpoint(tmp_path / name, SPECS), str(tmp_path / name))

    first = label("first", a=A, b=B)
    assert first == "first sha256:230b1c420cb239a7"
    (tmp_path / "first" / "README.md").write_text("changed")
    same = [label("first", a=A, b=B), label("renamed", a=A, b=B, more=B), label("half", torch.bfloat16, a=A, b=B)]
    assert {unnamed(each) for each in same} == {unnamed(first)} == {"sha256:230b1c420cb239a7"}
    other = A.copy()
    other[1, 1] += 1
    assert unnamed(label("other", a=other, b=B)) != unnamed(first)
    assert [unnamed(each) for each in ("synthetic", "hosted: model 1")] == ["synthetic", "hosted: model 1"]


def test_tensors_of_the_files_that_the_network_lacks_are_known(tmp_path: Path) -> None:
    save(tmp_path / "m.safetensors", {"a": A, "b": B, "lm_head.weight": A})
    save(tmp_path / "other.safetensors", {"adapter": A})
    read_only: Any = checkpoint(tmp_path, SPECS)
    assert read_only.unused == ["lm_head.weight"], "the other file is not read"


def test_a_file_that_may_not_be_read_is_named_if_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.safetensors").symlink_to(tmp_path / "gone.safetensors")
    assert "m.safetensors cannot be read: No such file" in refused(tmp_path)
    save(tmp_path / "n.safetensors", {"a": A, "b": B})
    assert (read(checkpoint(tmp_path, SPECS), "a") == A).all()
    monkeypatch.setattr(Path, "iterdir", lambda folder: (_ for _ in ()).throw(PermissionError(13, "denied", folder)))
    assert f"{tmp_path} cannot be read: denied" in refused(tmp_path)
