"""The names of silicon: a part such as `gpu:GPU-1`, or a piece of a part such as `gpu:GPU-1/2-of-7`. In a run with
several hosts each name begins with its host: `host1/gpu:GPU-1`."""

from __future__ import annotations

import re
from collections.abc import Collection

PIECE = re.compile(r"(.+)/(\d{1,4})-of-([1-9]\d{0,3})")


def host_of(name: str) -> str:
    """The host in the name of a device, a part, a memory pool or an energy domain; empty if the name has none."""
    host, slash, _ = part_of(name).partition("/")  # part_of, because `node/1-of-2` has no host `node`
    return host if slash and ":" not in host else ""


def local(name: str) -> str:
    """The name without its host."""
    return name.removeprefix(f"{host_of(name)}/")


def kind_of(name: str) -> str:
    """The kind in the id of a device: `cpu` for `host1/cpu:0`."""
    return local(name).partition(":")[0]


def named(host: str) -> str:
    """The host in a sentence: its name, or `the machine` if it has none, as the only host of a run."""
    return host or "the machine"


def on(host: str, name: str) -> str:
    """The name with its host; unchanged if the host is empty."""
    return f"{host}/{name}" if host else name


def piece(name: str) -> tuple[str, int, int]:
    """The part of a name, the number of its piece and the number of all pieces: `cpu:0/1-of-2` is (cpu:0, 1, 2),
    `cpu:0` is (cpu:0, 1, 1)."""
    found = PIECE.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else (name, 1, 1)


def part_of(name: str) -> str:
    """The part that a name belongs to: `cpu:0` for `cpu:0/1-of-2`."""
    return piece(name)[0]


def meet(one: str, other: str) -> bool:
    """Whether two names overlap: equal names, a piece and its part, or pieces of different divisions, whose cuts are
    unknown. `cpu:0/1-of-2` and `cpu:0/2-of-2` do not meet.
    """
    (part, number, pieces), (other_part, other_number, other_pieces) = piece(one), piece(other)
    return part == other_part and (number == other_number or pieces != other_pieces)


def is_covered(name: str, names: Collection[str]) -> bool:
    """Whether the names contain a name, its part, or all pieces of one division of the part."""
    if name in names or part_of(name) in names:
        return True
    part = part_of(name)
    divisions = {pieces for other_part, _, pieces in map(piece, names) if other_part == part}
    return any(all(f"{part}/{number}-of-{pieces}" in names for number in range(1, pieces + 1)) for pieces in divisions)
