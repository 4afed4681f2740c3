"""Renews what is made of the published entries, after one took another's place: `python -m tests.submissions`."""

from __future__ import annotations

import subprocess
import sys

for module in ("mixmark.submissions.references", "tests.golden.figures", "tests.docs", "tests.submissions.readme_page"):
    subprocess.run((sys.executable, "-m", module), check=True)
