"""Writes a suite to a folder in a format that other programs read.

    FOLDER
    ├── config.json, …     the files of the format
    └── mixmark.json       what the folder holds, with the size and the SHA-256 of each file

The files are written to a temporary folder beside FOLDER, which gets its name at the end, so an error or Ctrl-C leaves
nothing behind.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixmark.harness import VERSION
from mixmark.harness.contracts.errors import MixmarkError, UsageError, explained
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Format, Suite
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, WeightClass, weight_class
from mixmark.harness.contracts.weights import checked
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.record.files import sha256_of

Manifest = dict[str, Any]
"""The content of mixmark.json."""

MANIFEST = "mixmark.json"


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
        raise MixmarkError("memory is full", "take a smaller --tier") from error
    except Exception as error:  # a format or a suite may raise anything
        message = f"{request.format.name} of {request.suite.name}: {type(error).__name__}: {error}"
        raise MixmarkError(message) from error
    return manifest


def write(request: ExportRequest, folder: Path, on_stage: Callable[[str], None]) -> Manifest:
    """Writes everything to an empty folder and returns the manifest."""
    suite: Suite = request.suite.load()(request.tier, request.options, request.weight_class)
    weights = suite.weights()
    checkpoint = request.options.get("weights")
    label = checked(weights, checkpoint) if checkpoint else "synthetic"
    values = sum(math.prod(map(int, weights.spec(name).shape)) for name in weights.names())
    size_bytes = values * BITS_PER_WEIGHT[request.precision] // 8
    on_stage(f"preparing the files of {request.format.name}")
    prepare: Format = request.format.load()
    write_files = prepare(suite, request.precision)
    on_stage(f"writing {filesize(size_bytes)} of weights in {request.precision}")
    write_files(folder)
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
        "gate": None if gate is None else {"metric": gate.metric, "at_most": gate.at_most},
        "files": [_file(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def _file(path: Path, folder: Path) -> dict[str, Any]:
    """What the manifest says of a file of the folder."""
    name = path.relative_to(folder).as_posix()
    return {"path": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
