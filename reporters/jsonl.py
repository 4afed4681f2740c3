"""The lines of a result as JSON Lines: one JSON object a line. The keys hold the units; unknown is null.

Append the output to one file to collect several results.
"""

from __future__ import annotations

import json

from mixmark.harness.contracts.text import escaped
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters.lines import lines


def report(assessment: Assessment) -> str:
    written = (json.dumps(line, allow_nan=False, ensure_ascii=False) for line in lines(assessment))
    return "".join(f"{escaped(line)}\n" for line in written)
