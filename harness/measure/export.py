"""A suite written to a folder in a format that other programs read, with feeds and the reference's outputs for them.

    FOLDER
    ├── config.json, …     what the format writes
    ├── samples/0.npz, …   a feed's arrays by their names, and the `output`
    └── mixmark.json       what the folder holds, with the size and the SHA-256 of each file

A process of its own writes into the folder FOLDER.part, which gets its name once all of it is on the disk. So neither a
full disk nor a kill nor Ctrl-C leaves a folder that looks whole, and no library that a format or the reference needs is
loaded into this process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from mixmark.harness import VERSION
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.protocols import Adapter, Suite, Use
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT
from mixmark.harness.measure.audit import CPU, REFERENCE
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import load_generator
from mixmark.harness.worker.child import needed_bytes
from mixmark.harness.worker.process import memory

Manifest = dict[str, Any]
"""What the folder holds, as its file `mixmark.json` says it."""

PART = ".part"
MANIFEST = "mixmark.json"
SAMPLES = "samples"
SEED = 0
"""The seed of the feeds, whose nonces are 0, 1, …"""


@dataclass(frozen=True)
class Asked:
    """What is exported."""

    suite: Plugin
    tier: str
    options: Mapping[str, str]
    weights: str
    """`drawn`, or what names a checkpoint."""
    format: Plugin
    precision: str
    samples: int
    """How many feeds are written with their outputs."""


@dataclass(frozen=True)
class File:
    """A file of the folder."""

    path: str
    bytes: int
    sha256: str


def export(asked: Asked, folder: Path, on_stage: Callable[[str], None]) -> Manifest:
    """Writes the folder and returns its manifest. Raises MixmarkError, and leaves nothing behind then."""
    folder = folder.absolute()
    part = _claimed(folder)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(asked, part, theirs), daemon=True)
    try:
        _start(process)
        theirs.close()
        try:
            while isinstance(told := ours.recv(), str):
                on_stage(told)
        except EOFError:
            process.join()
            raise MixmarkError(
                f"the process that wrote {folder} ended with exit code {process.exitcode}",
                "-9 means that it was killed, for example because memory was full" if process.exitcode == -9 else "",
            ) from None
        if isinstance(told, MixmarkError):
            raise told
        try:
            part.rename(folder)
            _sync(folder.parent)
        except OSError as error:
            raise _not_written(folder, error) from error
    except BaseException:
        if process.pid:
            process.kill()
            process.join()
        shutil.rmtree(part, ignore_errors=True)
        raise
    manifest: Manifest = told
    return manifest


def _start(process: BaseProcess) -> None:
    """Starts a process that ignores Ctrl-C: this one ends it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def _claimed(folder: Path) -> Path:
    """The new folder that is written to."""
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists already", "give a new folder, or remove this one first")
    part = folder.with_name(folder.name + PART)
    try:
        part.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(
            f"{part} exists: another export writes to it, or one was killed",
            "remove it if no other export is at work, or give another folder",
        ) from error
    except OSError as error:
        raise _not_written(folder, error) from error
    return part


def _not_written(folder: Path, error: OSError) -> MixmarkError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, None)  # numpy gives no number where it wrote less than asked
    hint = "free disk space, or give a folder on another disk" if full else "give a folder that can be written"
    return UsageError(f"{folder} cannot be written: {error.strerror or error}", hint)


def _work(asked: Asked, part: Path, parent: Connection) -> None:
    """What the process does: it sends stages as texts, then the manifest, or the error that ended it."""
    os.dup2(2, 1)  # what libraries print is no part of our output
    try:
        parent.send(_written(asked, part, parent.send))
    except MixmarkError as error:
        parent.send(error)
    except OSError as error:
        parent.send(_not_written(part.with_name(part.name.removesuffix(PART)), error))
    except MemoryError:
        parent.send(MixmarkError("memory is full", "take a smaller --tier, or --samples 0"))
    except Exception as error:
        parent.send(MixmarkError(f"{asked.format.name} of {asked.suite.name}: {type(error).__name__}: {error}"))


def _written(asked: Asked, part: Path, on_stage: Callable[[str], None]) -> Manifest:
    suite: Suite = asked.suite.load()(asked.tier, asked.options)
    if asked.samples:
        _refuse_without_memory(suite)
        list(_reference().discover())  # raises PluginError where torch is not installed
    weights = suite.weights()
    values = sum(math.prod(map(int, weights.spec(name).shape)) for name in weights.names())
    size_bytes = values * BITS_PER_WEIGHT[asked.precision] // 8
    free_bytes = shutil.disk_usage(part).free
    if size_bytes > free_bytes:
        raise UsageError(
            f"{suite.name} at the tier {suite.tier} takes {_gb(size_bytes)} in {asked.precision}, and the disk of"
            f" {part.parent} has {_gb(free_bytes)} free",
            "free disk space, give a folder on another disk, or take another --precision",
        )
    on_stage(f"writing {_gb(size_bytes)} of weights in {asked.precision}")
    asked.format.load()(suite, asked.precision, part)
    if asked.samples:
        on_stage(f"computing {asked.samples} reference outputs")
        write_samples(suite, part / SAMPLES, asked.samples)
    on_stage("hashing the files")
    gate = suite.gate(asked.precision)
    manifest = {
        "mixmark": VERSION,
        "suite": suite.name,
        "suite_version": suite.version,
        "tier": suite.tier,
        "weights": asked.weights,
        "format": asked.format.name,
        "precision": asked.precision,
        "samples": {"count": asked.samples, "seed": SEED, "batch": 1, "computed_by": f"{REFERENCE} in fp32"},
        "gate": None if gate is None else {"metric": gate.metric, "at_most": gate.at_most},
        "files": [asdict(_file(path, part)) for path in sorted(part.rglob("*")) if path.is_file()],
    }
    (part / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for path in (*part.rglob("*"), part):
        _sync(path)
    return manifest


def _refuse_without_memory(suite: Suite) -> None:
    needed, free = needed_bytes(suite, "fp32"), memory.available_bytes()
    if needed > free:
        raise UsageError(
            f"the reference outputs of {suite.name} at the tier {suite.tier} take {_gb(needed)} of memory, and"
            f" {_gb(free)} are free",
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
                "output": np.concatenate([load_generator.plain(out) for out in runner(feed)]),
            }
            np.savez(folder / f"{nonce}.npz", **sample)


def _reference() -> Adapter:
    adapter: Adapter = registry.find("adapters")[REFERENCE].load()({})
    return adapter


def _file(path: Path, folder: Path) -> File:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return File(path.relative_to(folder).as_posix(), path.stat().st_size, digest)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB"
