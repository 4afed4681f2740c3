"""docs/capabilities/index.md from the pages of the capabilities that are there.

python -m tests.docs    rewrites it
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "capabilities" / "index.md"
HEAD = """\
# Capabilities

What no score needs. Each capability can be deleted with its tests and its page, and everything else works as before.

## Capabilities

"""


def page() -> str:
    pages = {path.relative_to(PAGE.parent).as_posix(): path for path in PAGE.parent.rglob("*.md") if path != PAGE}
    return HEAD + "".join(line(name, pages[name].read_text("utf-8")) + "\n" for name in sorted(pages))


def line(name: str, text: str) -> str:
    """The title and the first sentence of a page."""
    found = re.match(r"# ([^\n]+)\n\n(.+?[.:])(?=\s)", text, re.DOTALL)
    assert found, f"{name} needs a title and a sentence"
    first = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found[2]).split())
    return f"- [{found[1]}]({name}): {first}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
