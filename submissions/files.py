"""Reads and writes the JSON files of an entry in one form, and lists files with their hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mixmark.harness.contracts.schema import Fact
from mixmark.harness.record.files import sha256_of
from mixmark.submissions.entry import MANIFEST, SIGNATURE, File, Manifest

AFact = TypeVar("AFact", bound=Fact)


def written(fact: Fact) -> bytes:
    """The bytes of a declaration, a manifest or a report of the conformance kit."""
    return (json.dumps(fact.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(kind: type[AFact], content: bytes) -> AFact:
    """The facts that a file holds. Raises ValueError if they are not valid, or if the bytes differ from what `written`
    makes: a repeated name could show a reader another value than a check."""
    try:
        fact = kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if written(fact) != content:
        raise ValueError("its layout, the order of its names or a number is not as Mixmark writes it")
    return fact


def listed(folder: Path, name: str) -> File:
    """A file as a manifest lists it."""
    path = folder / name
    return File(path=name, size_bytes=path.stat().st_size, sha256=sha256_of(path))


def write_manifest(folder: Path) -> Manifest:
    """Writes the manifest of the files in an entry's folder, and returns it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    manifest = Manifest(files=tuple(listed(folder, name) for name in names if name not in (MANIFEST, SIGNATURE)))
    (folder / MANIFEST).write_bytes(written(manifest))
    return manifest
