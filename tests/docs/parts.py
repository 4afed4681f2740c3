"""The generated parts of pages, each between <!-- NAME --> and <!-- end of NAME -->."""

from __future__ import annotations

import re


def renewed(page: str, **parts: str) -> str:
    """The page with these parts in the places of the old ones, by their names."""
    for name, text in parts.items():
        part = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
        page, found = part.subn(lambda _, text=text: text, page)  # type: ignore[misc]
        assert found == 1, name
    return page
