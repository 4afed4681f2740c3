"""Loads a Jinja template that escapes and cleans every text of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from mixmark.harness.contracts.text import plain
from mixmark.reporters import figures


def template(folder: Path, name: str) -> Template:
    """The template of that name in the folder. It escapes all text; an unknown name in it is an error."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_text,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)


def _text(value: Any) -> Any:
    """Text without control characters and marks that change its direction, and of limited length."""
    return plain(value, figures.LONGEST) if isinstance(value, str) and not isinstance(value, Markup) else value
