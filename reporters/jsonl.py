"""The lines of a result, each a JSON object of its own. Units are in the names; unknown is null.

Results are put together by appending them to one file.
"""

from __future__ import annotations

import json

from mixmark.harness.contracts.text import escaped
from mixmark.harness.judge.judgement import Judgement
from mixmark.reporters.lines import lines


def report(judgement: Judgement) -> str:
    written = (json.dumps(line, allow_nan=False, ensure_ascii=False) for line in lines(judgement))
    return "".join(f"{escaped(line)}\n" for line in written)
