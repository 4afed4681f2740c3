"""Renews all generated pages and parts of pages: `python -m tests.docs`; read the diff before you commit it.

The outputs in docs/tutorial.md are left out: they take minutes, and differ each time. So is README.md, whose picture
needs a browser: `python -m tests.submissions.readme_page`.
"""

from __future__ import annotations

from tests.docs import parts

for module in parts.generators():
    for path, text in module.pages().items():
        path.write_text(text, "utf-8")
