"""Renews all generated pages and parts of pages: `python -m tests.docs`; read the diff before you commit it.

The outputs in docs/tutorial.md are left out: they take minutes, and differ each time.
"""

from __future__ import annotations

import runpy
from pathlib import Path

TESTS = Path(__file__).parents[1]
LEFT_OUT = "tutorial_page"

for path in sorted(file for end in ("page", "pages", "table") for file in TESTS.rglob(f"*_{end}.py")):
    if path.stem != LEFT_OUT and not path.name.startswith("test_"):
        runpy.run_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts), run_name="__main__")
