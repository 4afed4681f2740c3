"""Shows the report of a conformance kit, for `mixmark adapters check` and `mixmark meters check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.cli.tables import plugins_print_to_stderr, print_json, print_table
from mixmark.harness.contracts.errors import UsageError

if TYPE_CHECKING:
    from mixmark.harness.measure.conformance.report import Report

OUT = click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Write the report to a file, for a submission."
)


def shown(kit: Callable[[Callable[[str], None]], Report], out: Path | None, as_json: bool) -> int:
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
