"""docs/json.md, docs/result.schema.json and docs/report.schema.json, from the models with their docstrings."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from mixmark.harness.contracts.figures import published
from mixmark.harness.contracts.schema import Result
from mixmark.harness.plugins import experiments, registry
from mixmark.reporters.data import columns
from tests.docs import parts
from tests.docs.parts import docstrings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "json.md"
SCHEMA = DOCS / "result.schema.json"
REPORT = DOCS / "report.schema.json"
KEPT = json.loads(REPORT.read_text("utf-8"))["$defs"]
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
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def pages() -> dict[Path, str]:
    """The page with its columns, the JSON Schema of a result, and that of a report, a comparison and the figures of
    each experiment."""
    names = ", ".join(f"`{column}`" for column in columns())
    page = parts.renewed(PAGE.read_text("utf-8"), columns=f"{names}\n")
    definitions = {each.__name__: _definition(each) for each in _written_classes()}
    roots = [{"$ref": f"#/$defs/{each.__name__}"} for each in _roots()]
    report = {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": roots, "$defs": definitions}
    found = {SCHEMA: Result.model_json_schema(mode="serialization"), REPORT: report}
    schemas = {path: json.dumps(schema, indent=1, ensure_ascii=False) + "\n" for path, schema in found.items()}
    return {PAGE: page, **schemas}


def _roots() -> list[type]:
    """What the forms called json write: an assessment, and what capabilities add."""
    forms = [registry.find(kind)["json"].load() for kind, found in registry.BUILT_IN.items() if "json" in found]
    return [next(iter(get_type_hints(form).values())) for form in forms]


def _written_classes() -> list[type]:
    figures = (get_type_hints(each)["return"] for each in experiments.parts("figures").values())
    roots = [*_roots(), *(each for of in figures for each in _classes(of))]
    return list(dict.fromkeys(each for root in roots for each in _reached(root)))


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


def _definition(of: type) -> dict[str, Any]:
    """A class in the schema. A field whose class says nothing of it keeps the description that the schema has."""
    said = docstrings(of)
    kept = KEPT.get(of.__name__, {}).get("properties", {})
    properties = {}
    for name, hint in _hints(of).items():
        meaning = said.get(name) or kept.get(name, {}).get("description", "")
        assert meaning or _classes(hint), f"{name} has no docstring"  # a class tells what it holds
        words = {"unit": unit(name, hint), "description": meaning}
        properties[name] = {**shape(hint), **{key: word for key, word in words.items() if word}}
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "description": said[""], "properties": properties, **closed}


def unit(name: str, hint: Any) -> str:
    """The unit of a field by its name; empty where it has none."""
    words = {each.__name__ for each in _classes(hint)}
    numbers = {int, float}.intersection(_plain(hint)) or words == {"Estimate"}
    found = next((unit for pattern, unit in UNITS if re.fullmatch(pattern, name)), "")
    return found if numbers else ""


def _plain(hint: Any) -> list[Any]:
    return [hint, *(each for of in get_args(hint) for each in _plain(of))]


def shape(hint: Any) -> dict[str, Any]:
    """A type in a JSON Schema."""
    origin, inner = get_origin(hint), get_args(hint)
    if _is_object(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [shape(each) for each in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (tuple, list, Sequence):
        two = len(inner) == 2 and inner[1] is not Ellipsis
        items = {"prefixItems": [shape(each) for each in inner], "items": False} if two else {"items": shape(inner[0])}
        return {"type": "array", **items}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": shape(inner[1])}
    return {"type": NAMES[hint]} if hint is not object else {}
