"""The command report."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mixmark.harness.cli.options import JSON
from mixmark.harness.cli.show import VERBOSE, form_of, print_end, result_or_newest, with_next


@click.command()
@click.argument("result", required=False, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="Form of the report: console, full, markdown, html, json; csv and jsonl collect many results.  "
    "[default: console]",
)
@VERBOSE
@JSON
def report(result: Path | None, format_: str | None, verbose: bool, as_json: bool) -> None:
    """Show the report of a result folder, by default of the newest in ./results.

    Every figure is computed again from the raw data. As with `mixmark run`, the exit code is 1 if something is
    invalid or nothing was measured.

    \b
    Examples: mixmark report
              mixmark report results/laptop --format html > laptop.html
              mixmark report results/laptop --format jsonl >> all.jsonl
    """
    from mixmark.harness.contracts.errors import choose_by_name
    from mixmark.harness.judge import references
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.plugins import registry
    from mixmark.harness.record import store

    reporters = registry.find("reporters")
    (name,) = choose_by_name("format", [form_of(format_, verbose, as_json)], reporters)
    result = result_or_newest(result)
    found = store.open(result)
    folder = result.parent if result.is_file() else result
    assessment = with_next(judge_stored(found, references.published()), folder)
    code = assessment.exit_code  # a reporter may be of another package: all is judged before it runs
    click.echo(reporters[name].load()(assessment), nl=False)
    if name in ("console", "full"):
        print_end(assessment, folder)
    sys.exit(code)
