"""Reads the JSON of a result folder, which may come from anyone, strictly and within limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.record.files import explained

MAX_JSON_BYTES = 64 << 20  # of result.json, and of the journal
MAX_JSON_OBJECTS = 250_000  # in each of the two; a block of conditions is one, and takes a kB of memory
MAX_JSON_VALUES = 6_000_000  # in each of the two; a block of conditions has 22


def read(path: Path) -> bytes:
    """The bytes of a JSON file or a list of hashes. Raises ResultError if it holds more than a result can."""
    with explained(f"cannot read {path}"):
        if not path.is_file():
            raise ResultError(f"{path} is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ResultError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB, so it is not a Mixmark result")
    if content.count(b"{") + content.count(b"[") > MAX_JSON_OBJECTS or content.count(b",") > MAX_JSON_VALUES:
        raise ResultError(f"{path} holds more than {MAX_JSON_OBJECTS} objects or {MAX_JSON_VALUES} values")
    return content


def parse(path: Path, text: bytes, line: int | None = None) -> dict[str, Any]:
    """The JSON object in a text. path, line: named in the ResultError."""
    where = path if line is None else f"line {line} of {path}"
    try:
        content = json.loads(
            text.decode(), parse_constant=_refused, parse_int=_whole, parse_float=_real, object_pairs_hook=_object
        )
        if b"\\ud" in text.lower():  # half of a pair is no text, and no file or terminal takes it
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{where} is not valid JSON: {error}", "it is truncated or damaged; run again") from error
    if not isinstance(content, dict):
        raise ResultError(f"{where} is not a Mixmark result")
    return content


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _whole(text: str) -> int:
    if abs(number := int(text)) >= 1 << 63:
        raise ValueError(f"{text[:20]}… is larger than any number of a run")
    return number


def _real(text: str) -> float:
    """Limits a number so far that no product or quotient of two numbers is infinite."""
    number = float(text)
    if number and not 1e-100 < abs(number) < 1e100:
        raise ValueError(f"{text[:20]} is larger or smaller than any number of a run")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses an object with a repeated name, because programs differ in which of the values they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is repeated in an object")
    return found
