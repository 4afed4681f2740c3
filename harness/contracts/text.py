"""Cleans text of vendors' libraries, drivers and files, bounds the texts of facts, and names the facts that differ
between two mappings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

Reason = str
"""Why a check failed, in a sentence. `Reason | None` is the type of a check's result: None if it passed."""

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?")


MOST_MARKS = 3
"""The combining marks that a letter keeps: what is piled higher is printed over the rows beside it."""
BLANKS = dict.fromkeys(map(ord, "\u115f\u1160\u2800\u3164\uffa0"), " ")
"""Letters that nobody sees."""


def plain(text: str, most: int | None = None) -> str:
    """Returns the text on one line in Unicode's form NFC, with at most `most` characters. Control characters, escape
    sequences, marks that change the direction of text, piles of combining marks, and unpaired surrogates, which cannot
    be written to a file, are removed."""
    if not text.isprintable():  # most texts are printable, and reports have many
        text = "".join(letter if letter.isprintable() else " " for letter in ESCAPES.sub("", text))
    if not text.isascii():
        text, pile = unicodedata.normalize("NFC", text.translate(BLANKS)), 0
        marks = [pile := pile + 1 if unicodedata.category(letter)[0] == "M" else 0 for letter in text]
        text = "".join(letter for letter, height in zip(text, marks, strict=True) if height <= MOST_MARKS)
    return " ".join(text.split())[:most]


Label = Annotated[str, AfterValidator(partial(plain, most=200))]
"""A name of anything, cut to what fits into a table: one line of 200 characters."""
Sentence = Annotated[str, AfterValidator(lambda text: text[:5000])]
"""A message, a command or an option, cut to 5,000 characters."""
Key = Annotated[str, Field(pattern=r"^[a-z0-9.-]{1,500}$")]
"""The name of a phase or a record."""


class Unknown:
    """A fact that is not known: it is like no other, and like itself only."""

    def __str__(self) -> str:
        return "unknown"


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> tuple[str, ...]:
    """The facts that differ, with their names and both values: `tier: edge and smoke`. A missing or empty fact is
    `none`."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return tuple(f"{name}: {_fact(first.get(name))} and {_fact(second.get(name))}" for name in names)


def _fact(value: object) -> str:
    return "none" if value is None or value == "" else str(value)


def unnamed(label: str) -> str:
    """The label of weights without the name of their file or folder. Weights are the same if these are equal."""
    return label[max(0, label.rfind("sha256:")) :]
