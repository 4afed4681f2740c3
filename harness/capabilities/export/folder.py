"""Writes a suite to a folder in a format that other programs read, with feeds and the reference's outputs for them.

    FOLDER
    ├── config.json, …     the files of the format
    ├── samples/0.npz, …   a feed's arrays by their names, and the `output`
    └── mixmark.json       what the folder holds, with the size and the SHA-256 of each file

The files are written to a temporary folder beside FOLDER, which gets its name at the end, so an error or Ctrl-C leaves
nothing behind.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixmark.harness import VERSION
from mixmark.harness.contracts.errors import MixmarkError, UsageError, explained
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Adapter, Suite, Use
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, WeightClass, weight_class
from mixmark.harness.contracts.weights import checked
from mixmark.harness.measure.audit import CPU, REFERENCE
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.record.files import sha256_of
from mixmark.harness.resources import memory
from mixmark.harness.worker import load_generator
from mixmark.harness.worker.child import needed_bytes

Manifest = dict[str, Any]
"""The content of mixmark.json."""

MANIFEST = "mixmark.json"
SAMPLES = "samples"
SEED = 0
"""The seed of the feeds, whose nonces are 0, 1, …"""


@dataclass(frozen=True)
class ExportRequest:
    """The suite that is exported, and how."""

    suite: Plugin
    tier: str
    options: Mapping[str, str]
    format: Plugin
    precision: str
    """What the weights are held in."""
    weight_class: WeightClass
    """The class of the weights, at most the precision's: an engine in int4 that reads files in bf16 needs class 4."""
    samples: int
    """The number of feeds that are written with their outputs."""


def export(request: ExportRequest, folder: Path, on_stage: Callable[[str], None]) -> Manifest:
    """Writes the folder and returns its manifest. on_stage: gets each step in words. Raises MixmarkError."""
    folder = folder.absolute()
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists already", "give a new folder, or remove this one first")
    try:
        with explained(f"cannot write {folder}", "give --out another folder"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
                part = Path(scratch) / folder.name  # with the rights of a new folder, not of one user's temporary one
                part.mkdir()
                manifest = write(request, part, on_stage)
                os.replace(part, folder)
    except MixmarkError:
        raise
    except MemoryError as error:
        raise MixmarkError("memory is full", "take a smaller --tier, or --samples 0") from error
    except Exception as error:  # a format or a suite may raise anything
        message = f"{request.format.name} of {request.suite.name}: {type(error).__name__}: {error}"
        raise MixmarkError(message) from error
    return manifest


def write(request: ExportRequest, folder: Path, on_stage: Callable[[str], None]) -> Manifest:
    """Writes everything to an empty folder and returns the manifest."""
    suite: Suite = request.suite.load()(request.tier, request.options, request.weight_class)
    if request.samples:
        _refuse_without_memory(suite)
        list(_reference().discover())  # raises PluginError where torch is not installed
    weights = suite.weights()
    checkpoint = request.options.get("weights")
    label = checked(weights, checkpoint) if checkpoint else "synthetic"
    values = sum(math.prod(map(int, weights.spec(name).shape)) for name in weights.names())
    size_bytes = values * BITS_PER_WEIGHT[request.precision] // 8
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise UsageError(
            f"{suite.name} at the tier {suite.tier} takes {filesize(size_bytes)} in {request.precision}, and the disk "
            f"has {filesize(free_bytes)} free",
            "free disk space, give a folder on another disk, or take another --precision",
        )
    on_stage(f"preparing the files of {request.format.name}")
    write_files: Callable[[Path], None] = request.format.load()(suite, request.precision)
    on_stage(f"writing {filesize(size_bytes)} of weights in {request.precision}")
    write_files(folder)
    if request.samples:
        on_stage(f"computing {request.samples} reference outputs")
        write_samples(suite, folder / SAMPLES, request.samples)
    on_stage("hashing the files")
    held = request.weight_class == weight_class(request.precision)
    gate = suite.gate(request.precision if held else f"int{request.weight_class}")
    manifest = {
        "mixmark": VERSION,
        "suite": suite.name,
        "suite_version": suite.version,
        "tier": suite.tier,
        "weights": label,
        "weight_class": request.weight_class,
        "format": request.format.name,
        "precision": request.precision,
        "samples": {"count": request.samples, "seed": SEED, "batch": 1, "computed_by": f"{REFERENCE} in fp32"},
        "gate": None if gate is None else {"metric": gate.metric, "at_most": gate.at_most},
        "files": [_file(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def _refuse_without_memory(suite: Suite) -> None:
    needed, free = needed_bytes(suite, "fp32"), memory.available_bytes()
    if needed > free:
        raise UsageError(
            f"the reference outputs of {suite.name} at the tier {suite.tier} take {filesize(needed)} of memory, and"
            f" {filesize(free)} are free",
            "--samples 0 exports without them",
        )


def write_samples(suite: Suite, folder: Path, count: int) -> None:
    """Writes feeds with their outputs into a new folder."""
    folder.mkdir()
    feeds = suite.feeds(1, SEED)
    with _reference().open(CPU, suite, "fp32", Use.of("single-stream")) as runner:
        for nonce in range(count):
            feed = feeds(nonce)
            sample: dict[str, Any] = {
                **feed,
                "output": np.concatenate([load_generator.host_array(out) for out in runner(feed)]),
            }
            np.savez(folder / f"{nonce}.npz", **sample)


def _reference() -> Adapter:
    adapter: Adapter = registry.find("adapters")[REFERENCE].load()({})
    return adapter


def _file(path: Path, folder: Path) -> dict[str, Any]:
    """What the manifest says of a file of the folder."""
    name = path.relative_to(folder).as_posix()
    return {"path": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
