"""What commands print: JSON, tables, and the report of a conformance kit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import escaped, plain

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Absent
    from mixmark.harness.measure.conformance.report import Report

FILE_WIDTH = 120  # columns of a table that is written to a file or a pipe


def print_json(value: object) -> None:
    click.echo(escaped(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Prints the rows under their headings. empty: the sentence that is printed if there are no rows."""
    from mixmark.reporters import document

    table = document.Table("", head, list(rows), text_columns=len(head))
    blocks = [table] if table.rows else [document.Paragraph(empty)]
    click.echo(document.console(document.Document("", "", blocks), FILE_WIDTH), nl=False)


def print_absent(absent: Iterable[Absent]) -> None:
    """Prints what is not available on this machine, each with its reason."""
    lines = [f"  {plain(missing.label)}: {plain(missing.reason)}" for missing in absent]
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


def run_kit(kit: Callable[[Callable[[str], None]], Report], out: Path | None, as_json: bool) -> int:
    """Runs a kit, which calls its argument with the name of each check, prints its report and returns the exit code."""
    from rich.console import Console

    from mixmark.harness.measure.conformance.report import PAGE

    if out is not None and not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "give --out a file in a folder that exists")
    status = Console(stderr=True).status("")
    with plugins_print_to_stderr():
        if status.console.is_interactive:
            with status:
                report = kit(lambda name: status.update(f"checking {name}"))
        else:
            report = kit(lambda name: None)
    if out is not None:
        out.write_text(json.dumps(report.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n", "utf-8")
    if as_json:
        print_json({"passed": report.passed, **report.model_dump(mode="json")})
    else:
        rows = [(result.state, result.check, result.message) for result in report.verdicts]
        print_table(("result", "check", "observation"), rows, "There is nothing to check.")
        click.echo(f"\n{report.headline}. {PAGE} describes each check under its name.")
        if out is not None:
            click.echo(f"The report is in {out}.")
    return 0 if report.passed else 1
