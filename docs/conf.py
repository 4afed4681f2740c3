"""How Sphinx makes a site of these pages: `make docs` writes it to build/site.

The pages are plain Markdown, so that they read as well in the repository. The sidebar of the site is the list of links
in index.md and capabilities/index.md: each section becomes a group, in the order of the links.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mixmark.harness import VERSION

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Mixmark"
author = "the authors of Mixmark"
version = release = VERSION

extensions = ["myst_parser"]
exclude_patterns = ["_*"]
myst_heading_anchors = 4  # each heading is an anchor, by GitHub's rule
suppress_warnings = ["misc.highlighting_failure"]  # examples of output and of a mix have signs that no lexer knows

html_theme = "furo"
html_title = f"Mixmark {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False


def sidebar(index: str) -> str:
    """The tables of contents of the text of index.md: one for each section, with the pages that it links to."""
    groups = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    made = []
    for title, section in groups:
        pages = [f"{text} <{page}>" for text, page in re.findall(r"\[([^]]+)\]\(([\w/-]+)\.md\)", section)]
        made.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]))
    return "\n\n".join(made)


def setup(app: Sphinx) -> None:
    def read(_: Sphinx, page: str, source: list[str]) -> None:
        if page in ("index", "capabilities/index"):
            source[0] += "\n\n" + sidebar(source[0])

    app.connect("source-read", read)
