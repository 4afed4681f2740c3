"""What commands print: JSON and tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

import click

from mixmark.harness.contracts.device_ids import local
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Absent

FILE_WIDTH = 120  # columns of a table that is written to a file or a pipe


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Prints the rows under their headings. empty: the sentence that is printed if there are no rows."""
    from mixmark.reporters import document

    table = document.Table("", head, list(rows), text_columns=len(head))
    blocks = [table] if table.rows else [document.Paragraph(empty)]
    click.echo(document.console(document.Document("", "", blocks), FILE_WIDTH), nl=False)


def print_absent(absent: Iterable[Absent]) -> None:
    """Prints what is not available, each with its reason, and once if several hosts lack it."""
    alike: dict[tuple[str, ...], list[Absent]] = {}
    for missing in absent:
        alike.setdefault((missing.kind, local(missing.name), missing.reason), []).append(missing)
    lines = []
    for first, *others in alike.values():
        elsewhere = f", and on {counted(len(others), 'more host')}" if others else ""
        lines.append(f"  {plain(first.label)}{elsewhere}: {plain(first.reason)}")
    if lines:
        click.echo("\n".join(("\nNot available:", *lines)))


@contextmanager
def plugins_print_to_stderr() -> Iterator[None]:
    """Redirects stdout of this process to stderr while plugins run, C libraries included: stdout is for the report."""
    if sys.__stdout__ is None:  # stdout is closed, so file descriptor 1 may be any other file
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
