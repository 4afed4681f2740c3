"""docs/json.md and docs/result.schema.json from the models, their types and their docstrings.

python -m tests.docs.json_page    rewrites both; read the diff before you commit it
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from mixmark.harness.contracts.figures import published
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment, Provenance
from mixmark.harness.judge.compare.machines import MachineComparison
from mixmark.harness.plugins.experiments import Experiment, installed
from mixmark.reporters.data import ENERGY, MIXED, SOLO, columns
from tests.docs import parts

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "json.md"
SCHEMA = DOCS / "result.schema.json"
UNITS = (
    (r"mixes_per_hour|bound_per_hour|most_per_hour", "mix/h"),
    (r"mixes_per_s|bound_per_s", "mix/s"),
    (r"mixes_per_kwh", "mix/kWh"),
    (r"(.*_)?flops_per_s", "FLOP/s"),
    (r"(.*_)?bytes_per_s", "B/s"),
    (r"rate_per_s", "feeds/s"),
    (r"((.*_)?units|throughput|median)_per_s|per_s", "units/s"),
    (r"(energy|joules)_per_unit(_j)?", "J/unit"),
    (r".*_ns|parent_window_ns", "ns"),
    (r"(.*_)?bytes", "B"),
    (r"(.*_)?flops", "FLOP"),
    (r".*_mhz", "MHz"),
    (r".*_mw", "mW"),
    (r"(.*_)?watts|.*_w", "W"),
    (r"(.*_)?joules|.*_j", "J"),
    (r".*_c", "°C"),
    (r".*_pct", "%"),
    (r".*(half_width|uncertainty|fraction|share)|surplus|planned|retained|kappa|busy|delta|accuracy", "fraction"),
)
NAMES: dict[object, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    object: "its own",
}


def renewed(page: str) -> str:
    """The page with the fields and the columns as they are now."""
    kept = meanings(page)
    of_report = _reached(Assessment)
    for experiment in installed().values():
        of_report += [each for of in _figures(experiment) for each in _reached(of) if each not in of_report]
    more = [each for each in _reached(MachineComparison) if each not in of_report]
    report, comparison = ("\n".join(_section(each, kept) for each in classes) for classes in (of_report, more))
    return parts.renewed(page, report=report, comparison=comparison, columns=_columns())


def schema() -> str:
    return json.dumps(Result.model_json_schema(mode="serialization"), indent=1, ensure_ascii=False) + "\n"


def _figures(experiment: Experiment) -> list[type]:
    """The class of an experiment's figures, as its module has it or imports it for type checkers."""
    method = type(experiment).figures
    tree = ast.parse(inspect.getsource(inspect.getmodule(method) or method))
    named = {each.name: method.__module__ for each in tree.body if isinstance(each, ast.ClassDef)} | {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    words = re.findall(r"\w+", str(method.__annotations__["return"]))
    return [getattr(import_module(named[each]), each) for each in words if each in named]


def _reached(root: type) -> list[type]:
    """A class and all classes that its fields lead to, in the order of reading."""
    found = [root]
    for each in found:  # it grows meanwhile
        for hint in _hints(each).values():
            found += [inner for inner in dict.fromkeys(_classes(hint)) if inner not in found]
    return found


def _classes(hint: Any) -> list[type]:
    inside = [each for of in get_args(hint) for each in _classes(of)]
    return [hint, *inside] if _is_object(hint) else inside


def _is_object(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel))


def _hints(shape: type) -> dict[str, Any]:
    """The types of the fields and properties that are written."""
    hints = get_type_hints(shape)
    if issubclass(shape, BaseModel):
        return {name: hints[name] for name, field in shape.model_fields.items() if not field.exclude}
    for name, member in vars(shape).items():
        if isinstance(member, property) and name in published(shape):
            hints[name] = get_type_hints(member.fget)["return"]
    return {name: hints[name] for name in published(shape)}


def meanings(page: str) -> dict[tuple[str, str], str]:
    """What the page says of each field of each class."""
    found = {}
    for section in page.split("\n### ")[1:]:
        for name, meaning in re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", section, re.MULTILINE):
            found[section.split("\n", 1)[0], name] = meaning
    return found


def _section(of: type, kept: Mapping[tuple[str, str], str]) -> str:
    """kept: the meanings of fields whose class has no docstring for them, and which say what they are by their name."""
    told = docstrings(of)
    rows = [_row(name, hint, told.get(name) or kept.get((of.__name__, name), "")) for name, hint in _hints(of).items()]
    return "\n".join(
        (
            f"### {of.__name__}\n",
            f"{_meaning(told[''])}\n",
            "| field | type | unit | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )


def _columns() -> str:
    """Each column with the figure that it shows."""
    of_solo, of_mix, of_energy = SOLO, MIXED, ENERGY
    origin = [field.name for field in fields(Provenance)]
    rows = []
    for column in columns():
        if column in origin:
            rows.append(f"| `{column}` | the same field of the [Provenance](#provenance) |")
            continue
        places = [f"`{of_solo[column]}` of a [Solo](#solo)"] if column in of_solo else []
        places += [f"`{of_mix[column]}` of a [ScoredRun](#scoredrun)"] if column in of_mix else []
        places += [f"`{of_energy[column]}` of the energy in the window"] if column in of_energy else []
        rows.append(
            f"| `{column}` | {', '.join(places) or 'the packages that the worker ran with, as a JSON object'} |"
        )
    return "\n".join(("| column | shows |", "|---|---|", *rows, ""))


def _row(name: str, hint: Any, told: str) -> str:
    assert told or _classes(hint), f"{name} has no docstring"  # a class tells what it holds
    return f"| `{name}` | {kind(hint)} | {unit(name, hint)} | {_meaning(told)} |"


def _meaning(told: str) -> str:
    return re.sub(r"\bNone\b", "null", told).replace("|", "\\|")


def unit(name: str, hint: Any) -> str:
    """The unit of a field by its name; empty where it has none."""
    words = {each.__name__ for each in _classes(hint)}
    numbers = {int, float}.intersection(_plain(hint)) or words == {"Estimate"}
    found = next((unit for pattern, unit in UNITS if re.fullmatch(pattern, name)), "")
    return found if numbers else ""


def _plain(hint: Any) -> list[Any]:
    return [hint, *(each for of in get_args(hint) for each in _plain(of))]


def kind(hint: Any) -> str:
    """A type as JSON has it."""
    origin, inner = get_origin(hint), get_args(hint)
    if _is_object(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin in (Union, types.UnionType):
        return " or ".join(kind(each) for each in inner)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in inner)
    if origin in (tuple, list) or origin is Sequence:
        if len(inner) == 2 and inner[1] is not Ellipsis:
            return f"array of two: {kind(inner[0])}; {kind(inner[1])}"
        return f"array of {kind(inner[0])}"
    if origin is dict or origin is Mapping:
        return f"object, {kind(inner[0])} to {kind(inner[1])}"
    return NAMES[hint]


def docstrings(of: type) -> dict[str, str]:
    """The docstring of a class under the name '', and each field's under its name, each on one line."""
    found = docstrings(of.__base__) if of.__base__ and is_dataclass(of.__base__) else {}
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
    return found


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
