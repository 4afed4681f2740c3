"""Tables of texts. Each reporter lays them out in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixmark.harness.judge.judgement import Judgement
from mixmark.reporters import figures


@dataclass(frozen=True)
class TextTable:
    """A table whose figures are written out."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    """The number of columns with text, on the left; the others are numbers."""


def matrix(judgement: Judgement) -> TextTable | None:
    """Every device relative to the first. None: fewer than two were measured."""
    found, names = judgement.matrix, figures.device_names(judgement.result)
    if found is None:
        return None
    title = f"relative to {names[found.baseline]}"
    rows = [(figures.name(suite), *map(figures.ratio, relatives)) for suite, relatives in found.rows]
    return TextTable(title, (title, *(names[device] for device in found.devices)), rows)


def ceilings(judgement: Judgement) -> TextTable | None:
    """The best rates of the probe with the kernels that reached them. None: no probe ran."""
    names = figures.device_names(judgement.result)
    rows = [
        (
            names[ceiling.device],
            figures.name(ceiling.adapter),
            ceiling.precision,
            f"{figures.prefixed(ceiling.flops_per_s, 'FLOP/s')} {figures.name(ceiling.flops_kernel or '')}".strip(),
            f"{figures.prefixed(ceiling.bytes_per_s, 'B/s')} {figures.name(ceiling.bytes_kernel or '')}".strip(),
        )
        for ceiling in judgement.ceilings
    ]
    header = ("ceiling of", "adapter", "type", "compute", "memory")
    return TextTable("Ceilings", header, rows, text_columns=3) if rows else None
