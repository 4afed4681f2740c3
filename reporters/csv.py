"""The lines of a result as a CSV table. The names of the columns hold the units; unknown is empty."""

from __future__ import annotations

import csv
from io import StringIO

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters.lines import columns, lines


def report(assessment: Assessment) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, columns(), lineterminator="\n")
    writer.writeheader()
    for line in lines(assessment):
        writer.writerow({name: safe(value) if isinstance(value, str) else value for name, value in line.items()})
    return text.getvalue()


def safe(text: str) -> str:
    """The text with a leading apostrophe if a spreadsheet would run it as a formula: after =, +, - or @."""
    text = plain(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
