"""docs/capabilities/index.md from the pages of the capabilities that are there.

python -m tests.docs    rewrites it
"""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "capabilities" / "index.md"
HEAD = """\
# Capabilities

What no score needs. Each capability can be deleted with its tests and its page, and everything else works as before.

## Capabilities

"""


def page() -> str:
    pages = {path.relative_to(PAGE.parent).as_posix(): path for path in PAGE.parent.rglob("*.md") if path != PAGE}
    titles = {name: path.read_text("utf-8").partition("\n")[0].removeprefix("# ") for name, path in pages.items()}
    return HEAD + "".join(f"- [{titles[name]}]({name})\n" for name in sorted(pages))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
