"""Renders text for a terminal: as wide as the terminal, in colour only on a terminal, without trailing spaces."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from io import StringIO

from rich.console import Console

NARROWEST = 60  # a narrower terminal breaks the lines itself


def rendered(write: Callable[[Console], None], width: int, widest: int, coloured: bool = True) -> str:
    """The text that `write` prints, at most `widest` columns wide. width: the columns of a file or a pipe."""
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if terminal else width
    out = Console(
        file=StringIO(),
        width=min(max(columns, NARROWEST), widest),
        color_system="auto" if coloured else None,
        force_terminal=terminal and coloured,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        write(out)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
