"""The generated parts of pages, each between <!-- NAME --> and <!-- end of NAME -->, and the docstrings for them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]
LEFT_OUT = ("tutorial_page", "readme_page")


def generators() -> Iterator[ModuleType]:
    """The modules with a function `pages`, which returns the text of each file that is made from code."""
    for path in sorted(file for end in ("page", "pages", "table") for file in TESTS.rglob(f"*_{end}.py")):
        if path.stem not in LEFT_OUT and not path.name.startswith("test_"):
            yield import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def renewed(page: str, **parts: str) -> str:
    """The page with these parts in the places of the old ones, by their names."""
    for name, text in parts.items():
        part = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
        page, found = part.subn(lambda _, text=text: text, page)  # type: ignore[misc]
        assert found == 1, name
    return page


def docstrings(of: type, null: str = "null") -> dict[str, str]:
    """The docstring of a class under the name '', and each public member's under its name, each on one line. null: the
    word for None."""
    found = docstrings(of.__base__, null) if of.__base__ and is_dataclass(of.__base__) else {}
    tree = ast.parse(inspect.getsource(inspect.getmodule(of) or of))
    node = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == of.__name__)
    found |= {"": " ".join((ast.get_docstring(node) or "").split())}
    for before, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[before.target.id] = " ".join(value.value.split())
    for method in (each for each in node.body if isinstance(each, ast.FunctionDef)):
        found[method.name] = " ".join((ast.get_docstring(method) or "").split())
    return {name: re.sub(r"\bNone\b", null, words) for name, words in found.items()}
