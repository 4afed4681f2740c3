"""Renews what is made of the published entries, after one took another's place: `python -m tests.submissions`."""

from __future__ import annotations

import subprocess
import sys

for module in (
    "mixmark.submissions.references",
    "tests.submissions.test_figures",
    "tests.capabilities.compare.test_entries",
    "tests.capabilities.plan.test_figures",
    "tests.docs",
    "tests.submissions.readme_page",
):
    subprocess.run((sys.executable, "-m", module), check=True)
