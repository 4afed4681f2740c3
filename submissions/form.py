"""Writes and reads the files of an entry in one canonical form, so that a file cannot hide anything.

A file is refused if it differs from the bytes that Mixmark writes of the same facts. So a name cannot be unknown,
missing or repeated, a number cannot be NaN or rounded by another program, and text cannot be nested too deeply.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mixmark.harness.contracts.schema import Fact, Result
from mixmark.harness.record import store
from mixmark.submissions.entry import File

AFact = TypeVar("AFact", bound=Fact)


class OtherForm(ValueError):
    """The facts of a file are valid, but its bytes are not those that Mixmark writes of them."""


def written(fact: Fact) -> bytes:
    """The bytes of a declaration, a claim or a manifest."""
    return (json.dumps(fact.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(kind: type[AFact], content: bytes) -> AFact:
    """The facts that a file holds. Raises ValueError if they are not valid, and OtherForm if the bytes are not
    those of `written`."""
    try:
        fact = kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if written(fact) != content:
        raise OtherForm("it is not in the form in which Mixmark writes it: its layout, its order or a number differs")
    return fact


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed(folder: Path, name: str) -> File:
    """A file as a manifest lists it."""
    path = folder / name
    return File(path=name, size_bytes=path.stat().st_size, sha256=sha256_of(path))


def differs(
    result: Result, content: dict[str, Any], folder: Path, sha256: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """(file, difference) of each file of a result folder that is not as the store writes this result.

    content: the result as parsed JSON. sha256: the hash of each file in raw/, by its name.
    """
    if json.dumps(json.loads((folder / "result.json").read_bytes())) != json.dumps(content):
        yield "result.json", "it holds something that is no fact of the result, or a number in another form"
    names = set(store.raw_names(result))
    raw = {name: sha256[name] for name in names & sha256.keys()}
    if (folder / store.SUMS).read_bytes() != store.checksums(sha256_of(folder / store.SUMMARY), raw):
        yield store.SUMS, "it does not hold the hashes that Mixmark writes of this result"
    unknown = {path.name for path in (folder / "raw").iterdir()} - names
    for name in sorted(unknown):
        yield f"raw/{name}", "no record and no metering refers to it"
