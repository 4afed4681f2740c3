"""The plugins in docs/capabilities/kit/ from the templates of the starter packages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from mixmark.harness.capabilities.kit import template
from mixmark.harness.capabilities.kit.commands import STARTERS as KINDS

DOCS = Path(__file__).parents[3] / "docs"
PAGES = DOCS / "capabilities" / "kit"
FILE = re.compile(r"(<!-- file: (session|runner|meter|suite|policy)/(\S+) -->\n```\w+\n)(.*?)(?=```)", re.DOTALL)


def renewed(page: str) -> str:
    """The page with the starters' files, as they are written for the name acme, in the places of the old ones. A file
    stays as it is if no starter of its kind can be written."""

    def written(found: re.Match[str]) -> str:
        kind = found[2]
        return found[1] + (template.files(cast(template.Kind, kind), "acme")[found[3]] if kind in KINDS else found[4])

    return FILE.sub(written, page)


def pages() -> dict[Path, str]:
    return {path: renewed(path.read_text("utf-8")) for path in PAGES.glob("*.md")}
