"""The names of silicon: a physical part such as `gpu:GPU-1`, or a piece of one such as `gpu:GPU-1/2-of-7`; where a run
has several hosts, with the name of the host before it: `host1/gpu:GPU-1`."""

from __future__ import annotations

import re
from collections.abc import Collection

PIECE = re.compile(r"(.+)/(\d{1,4})-of-([1-9]\d{0,3})")


def host_of(name: str) -> str:
    """The host in the name of a device, a part, a memory pool or an energy domain; empty where it names none."""
    host, slash, _ = part_of(name).partition("/")  # else node/1-of-2 would be of a host called node
    return host if slash and ":" not in host else ""


def local(name: str) -> str:
    """The name as its own host knows it."""
    return name.removeprefix(f"{host_of(name)}/")


def on(host: str, name: str) -> str:
    """The name of something of a host, as the whole run knows it. An empty host leaves it as it is."""
    return f"{host}/{name}" if host else name


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
