"""The parts of docs/vendors/contract.md that are docstrings: those of the protocols, and of what a plugin makes.

`<!-- NAME -->` begins the part of a class of `mixmark`: its own docstring, then a line for each member.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pydantic import BaseModel

import mixmark
from mixmark.harness.contracts import protocols
from tests.docs import parts
from tests.docs.parts import docstrings

PAGE = Path(__file__).parents[2] / "docs" / "vendors" / "contract.md"
MARK = re.compile(r"^<!-- ([A-Z]\w+) -->$", re.MULTILINE)
INTRODUCED = "These rules hold for all plugins:\n\n"


def pages() -> dict[Path, str]:
    page = PAGE.read_text("utf-8")
    rules = (protocols.__doc__ or "").partition(INTRODUCED)[2]
    return {PAGE: parts.renewed(page, rules=rules, **{name: members(name) for name in MARK.findall(page)})}


def members(name: str) -> str:
    """A class in Markdown."""
    shape = getattr(mixmark, name)
    said = docstrings(shape, null="None")
    names = (
        shape.model_fields if issubclass(shape, BaseModel) else [each for each, words in said.items() if each and words]
    )
    lines = [f"- {_title(shape, name)}: {said[name]}" for name in names]
    return "\n\n".join(filter(None, (said[""], "\n".join(lines)))) + "\n"


def _title(shape: type, name: str) -> str:
    """A member, with the arguments of a method. A fact's field that has a default is optional."""
    if issubclass(shape, BaseModel):
        return f"`{name}`" if shape.model_fields[name].is_required() else f"`{name}` (optional)"
    function = vars(shape).get(name)
    if not inspect.isfunction(function):
        return f"`{name}`"
    _, *arguments = inspect.signature(function).parameters
    return f"`{name}({', '.join(arguments)})`"
