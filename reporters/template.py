"""How a template becomes a page: what a result says is text to it, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from mixmark.harness.contracts.text import plain
from mixmark.reporters import figures


def template(folder: Path, name: str) -> Template:
    """Returns the template of that name in the folder. All that it writes is escaped; an unknown name is an error."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_text,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)


def _text(value: Any) -> Any:
    """Free of control characters, and of the marks that turn the direction of text; not without end."""
    return plain(value, figures.LONGEST) if isinstance(value, str) and not isinstance(value, Markup) else value
