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

from mixmark.harness.contracts.schema import Fact, Record, Result

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


def differs(
    result: Result, content: dict[str, Any], folder: Path, sha256: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """(file, what) of each file of a result folder that holds something else than the store writes of this result.

    content: the result as parsed JSON. sha256: the hash of each file in raw/, by its name. The journal has a line for
    each record and each metering.
    """
    if json.dumps(json.loads((folder / "result.json").read_bytes())) != json.dumps(content):
        yield "result.json", "it holds something that is no fact of the result, or a number in another form"
    if (folder / "journal.jsonl").read_bytes() != b"".join(_journal(result, content, sha256)):
        yield "journal.jsonl", "it is not the journal that Mixmark writes of this result"
    strange = {each.name for each in (folder / "raw").iterdir()} - set(raw_names(result))
    for name in sorted(strange):
        yield f"raw/{name}", "no record and no metering refers to it"


def raw_names(result: Result) -> Iterator[str]:
    """The names of the files in raw/ that belong to a result."""
    for record in result.records:
        yield from _raw_names(record)
    yield from (f"{metering.phase}.energy.npz" for metering in result.meterings)


def _raw_names(record: Record) -> Iterator[str]:
    if record.completions is not None:
        yield f"{record.key}.npz"
        if record.audit is not None and record.audit.feeds:
            yield f"{record.key}.outputs.npz"


def _journal(result: Result, content: dict[str, Any], sha256: Mapping[str, str]) -> Iterator[bytes]:
    """The lines that the store writes of a whole result: its head, its records, its meterings, and its resumptions."""
    begun = content | {"records": [], "meterings": [], "finished": False, "resumed": []}
    yield _line(begun)
    raw: dict[str, list[tuple[str, ...]]] = {
        "records": [tuple(_raw_names(record)) for record in result.records],
        "meterings": [(f"{metering.phase}.energy.npz",) for metering in result.meterings],
    }
    for name, files in raw.items():
        for names, one in zip(files, content[name], strict=True):
            sums = {each: sha256[each] for each in names if each in sha256}
            yield _line({name: [one]} | ({"sha256": sums} if sums else {}))
    for count in result.resumed:
        yield _line({"resumed": [count]})


def _line(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"
