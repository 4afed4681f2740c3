"""The names of silicon: a physical part such as `gpu:GPU-1`, or a piece of one such as `gpu:GPU-1/2-of-7`."""

from __future__ import annotations

import re
from collections.abc import Collection

PIECE = re.compile(r"(.+)/(\d{1,4})-of-([1-9]\d{0,3})")


def piece(name: str) -> tuple[str, int, int]:
    """`cpu:0/1-of-2` is (cpu:0, 1, 2), `cpu:0` is (cpu:0, 1, 1)."""
    found = PIECE.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else (name, 1, 1)


def part_of(name: str) -> str:
    """The part that a piece was cut from; a part is its own."""
    return piece(name)[0]


def meet(one: str, other: str) -> bool:
    """Whether both are the same thing, or a piece and its part; `cpu:0/1-of-2` and `cpu:0/2-of-2` do not meet.

    Pieces of two divisions of one part count as meeting, since nothing tells where the cuts are.
    """
    (its_whole, its_number, its_of), (other_whole, other_number, other_of) = piece(one), piece(other)
    return its_whole == other_whole and (its_number == other_number or its_of != other_of)


def is_covered(name: str, names: Collection[str]) -> bool:
    """Whether silicon is among those names: by itself, by the part that it is a piece of, or by all pieces of a
    division of it."""
    if name in names or part_of(name) in names:
        return True
    divisions = {of for each in names for its_whole, _, of in (piece(each),) if its_whole == part_of(name)}
    return any(all(f"{part_of(name)}/{at}-of-{of}" in names for at in range(1, of + 1)) for of in divisions)
