"""The commands that read result folders: report, audit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.cli.options import JSON
from mixmark.harness.cli.printing import print_json, print_table
from mixmark.harness.cli.show import VERBOSE, form_of, print_end, result_or_newest, with_next
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Record
    from mixmark.harness.measure.reaudit import Repeated

TIMEOUT_S = 600.0  # after which a reference that sends no reply counts as hung


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
def report(
    result: Path | None,
    format_: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
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


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--weights",
    multiple=True,
    metavar="SUITE=PATH",
    help="Checkpoint of a suite that was measured with one. Repeatable.",
)
@JSON
def audit(folder: Path | None, weights: tuple[str, ...], as_json: bool) -> None:
    """Repeat the audits of a result folder, or of an entry of a board, on this or any other machine.

    Without FOLDER it is the newest in ./results. Nothing is written to it.

    The feeds are made again from the seed, the reference computes them, and the stored outputs are compared with its
    outputs by the gates of this installation. Exits with 1 if an output is wrong, if a value differs from the stored
    one by more than 5 % of the gate's bound and 0.1 % of the value, or if a record cannot be audited.

    Example: mixmark audit results/laptop
    """
    from mixmark.harness.machine import setup
    from mixmark.harness.measure import reaudit
    from mixmark.harness.plugins import registry
    from mixmark.harness.record import store

    checkpoints = setup.checkpoint_paths(weights, registry.find("suites"))

    def report(record: Record) -> None:
        click.echo(f"auditing {plain(record.route.label)}, {record.scenario}", err=True)

    homes = store.results_of(result_or_newest(folder))
    audits = [done for home in homes for done in reaudit.repeat(home, checkpoints, TIMEOUT_S, report)]
    passed = bool(audits) and all(done.passed for done in audits)
    if as_json:
        print_json({"audits": [done.as_json() for done in audits], "passed": passed})
    else:
        head = ("record", "gate", "feeds", "largest value stored", "now", "verdict")
        print_table(head, map(_audit_row, audits), "The folder holds no record that was to be audited.")
    sys.exit(0 if passed else 1)


def _audit_row(audit: Repeated) -> tuple[str, ...]:
    stored = audit.record.audit
    return (
        plain(audit.record.key),
        f"{audit.gate.at_most:g}" if audit.gate else "–",
        f"{len(audit.values)}" if audit.values else "–",
        f"{max(stored.values):.3g}" if stored and stored.values else "–",
        f"{max(audit.values):.3g}" if audit.values else "–",
        plain(audit.problem) or "passes and agrees",
    )
