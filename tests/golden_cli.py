"""docs/cli.md from the commands' own help.

python -m tests.golden_cli    rewrites the page; read the diff before you commit it
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from harness.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
WIDTH = 100
HEAD = """\
# The command line

What `--help` prints, written by `python -m tests.golden_cli`. [rules.md](rules.md#exit-codes) has the exit codes.
"""


def page() -> str:
    return "\n".join([HEAD, *(f"## {title}\n\n```text\n{text}\n```\n" for title, text in helps())])


def helps() -> Iterator[tuple[str, str]]:
    """(title, help) of the command and of each of its subcommands, at a fixed width whatever the terminal."""
    root = main.make_context("mixmark", [], resilient_parsing=True, terminal_width=WIDTH)
    yield "mixmark", _clean(root.get_help())
    for name, command in main.commands.items():
        context = click.Context(command, parent=root, info_name=name)
        yield f"mixmark {name}", _clean(context.get_help())


def _clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
