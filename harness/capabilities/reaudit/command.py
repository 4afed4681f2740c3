"""The command audit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.cli.options import JSON, Placed
from mixmark.harness.cli.printing import print_json, print_table
from mixmark.harness.cli.show import result_or_newest
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.capabilities.reaudit.repeat import Repeated
    from mixmark.harness.contracts.schema import Record

TIMEOUT_S = 600.0  # after which a reference that sends no reply counts as hung


@click.command(cls=Placed, section="Read results")
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
    from mixmark.harness.capabilities.reaudit.repeat import repeat
    from mixmark.harness.machine import setup
    from mixmark.harness.plugins import registry
    from mixmark.harness.record import store

    checkpoints = setup.checkpoint_paths(weights, registry.find("suites"))

    def report(record: Record) -> None:
        click.echo(f"auditing {plain(record.route.label)}, {record.scenario}", err=True)

    homes = store.results_of(result_or_newest(folder))
    audits = [done for home in homes for done in repeat(home, checkpoints, TIMEOUT_S, report)]
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
