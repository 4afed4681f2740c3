"""The one form in which the files of an entry are written, so that nothing in them goes unnoticed.

A name that is unknown, missing or repeated, NaN, a number that another program would round, or text that is nested too
deeply makes a file that differs from what Mixmark writes of the same facts, and such a file is refused.
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
    """The facts of a file are valid, and its bytes are not those that Mixmark writes of them."""


def written(fact: Fact) -> bytes:
    """The bytes of a declaration, a claim or a manifest."""
    return (json.dumps(fact.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(kind: type[AFact], content: bytes) -> AFact:
    """The facts that a file holds. Raises ValueError where they are not valid, and OtherForm where the bytes are not
    what `written` makes of them."""
    try:
        found = kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if written(found) != content:
        raise OtherForm("it is not in the form in which Mixmark writes it: its layout, its order or a number differs")
    return found


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
    """(file, what) of each file of a result folder that holds something else than the store writes of this result.

    content: the result as parsed JSON. sha256: the hash of each file in raw/, by its name.
    """
    if json.dumps(json.loads((folder / "result.json").read_bytes())) != json.dumps(content):
        yield "result.json", "it holds something that is no fact of the result, or a number in another form"
    names = set(store.raw_names(result))
    raw = {name: sha256[name] for name in names & sha256.keys()}
    if (folder / store.SUMS).read_bytes() != store.checksums(sha256_of(folder / store.SUMMARY), raw):
        yield store.SUMS, "it does not hold the hashes that Mixmark writes of this result"
    strange = {each.name for each in (folder / "raw").iterdir()} - names
    for name in sorted(strange):
        yield f"raw/{name}", "no record and no metering refers to it"
