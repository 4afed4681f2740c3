"""The command doctor."""

from __future__ import annotations

import click

from mixmark.harness.cli.options import JSON, Placed
from mixmark.harness.cli.printing import plugins_print_to_stderr, print_json, print_table


@click.command(cls=Placed, section="Look at this machine")
@JSON
def doctor(as_json: bool) -> None:
    """List what would disturb a measurement on this machine, and the command that fixes it. Nothing is changed.

    Example: mixmark doctor
    """
    from dataclasses import asdict

    from mixmark.harness.capabilities.doctor.checks import checks

    with plugins_print_to_stderr():
        found = checks()
    if as_json:
        print_json({"checks": [asdict(check) for check in found]})
        return
    marks = {"ok": "ok", "warn": "WARN", "unknown": "?"}
    rows = [
        (marks[check.state], check.name, check.message + (f"\n  {check.fix}" if check.fix else "")) for check in found
    ]
    print_table(("state", "check", "what was found, and how to fix it"), rows, "There is nothing to check.")
