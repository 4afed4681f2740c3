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
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from mixmark.harness.contracts.figures import published
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment, Provenance
from mixmark.harness.judge.compare.machines import MachineComparison
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
COMMON = {
    "about": "The key of a record, the name of a phase or of a part of the machine, or `run` for the whole result.",
    "adapter": "The name of the adapter.",
    "at_most": "The largest error that passes.",
    "baseline": "The device that the others are divided by.",
    "batch": "The samples in a feed.",
    "begin_ns": "The begin of the interval.",
    "boundary": "What the energy is of: the `wall`, the `node` or the `devices`.",
    "bytes": "Bytes that are read and written.",
    "caches": "The size of each cache of the processor.",
    "cgroup_limits": "The limits of the control group, by name.",
    "clock_max_mhz": "The highest clock of the processor.",
    "clock_mhz": "The clock.",
    "command": "The command line.",
    "container": "The kind of container.",
    "cpu": "The model of the processor.",
    "cpu_cores": "Cores of the processor.",
    "cpu_model": "The model of the processor.",
    "cpu_threads": "Hardware threads of the processor.",
    "created_utc": "When the run began, in UTC.",
    "device": "The id of the device.",
    "device_name": "The model of the device.",
    "devices": "The ids of the devices.",
    "edge_uncertainty": "How far the edges of the window may put the joules off.",
    "elapsed_ns": "The time that it took.",
    "end_ns": "The end of the interval.",
    "estimate": "The figure.",
    "firmware": "The version of the firmware.",
    "first_ns": "The limit of the time until the first unit.",
    "git_commit": "The commit of Mixmark's source, where it ran from a checkout.",
    "governor": "The governor of the processor's clocks.",
    "grade": "How sure a score is.",
    "high": "The upper end of the interval.",
    "hint": "What the reader can do about it.",
    "id": "The name of the source of readings.",
    "joules": "The energy.",
    "joules_per_unit": "The energy divided by the units.",
    "kernel": "The version of the operating system's kernel.",
    "kind": "What kind of thing it is.",
    "label": "The label of the result: B, C, …",
    "load_ns": "The time that loading took.",
    "low": "The lower end of the interval.",
    "mean_ns": "The mean over all feeds.",
    "memory_bytes": "The size of the memory.",
    "message": "What happened, in words.",
    "meter": "The name of the meter.",
    "method": "How the joules come about: docs/energy-sources.md.",
    "microcode": "The version of the processor's microcode.",
    "min_feeds": "The number of feeds that must finish.",
    "mix": "The name of the mix.",
    "mixmark": "The version of Mixmark.",
    "name": "Its name.",
    "nominal_bytes_per_s": "The memory bandwidth of the nominal device.",
    "objective": "What the plan is best at.",
    "operating_system": "The name and version of the operating system.",
    "p50_ns": "The median.",
    "p90_ns": "The percentile 90. All percentiles: null where the sample is too small.",
    "p99_ns": "The percentile 99.",
    "p999_ns": "The percentile 99.9.",
    "packages": "Versions of packages, by name.",
    "per_s": "The best rate of the device.",
    "percentile": "The fraction of feeds that must keep the limits.",
    "phase": "The name of the phase.",
    "power_cap_mw": "The power limit that is set.",
    "precision": "The number format.",
    "preset": "The preset: docs/rules.md#presets.",
    "purpose": "Measure ceilings, rank a route by a screening run, measure it alone or once more, or run the mix.",
    "python": "The version of Python.",
    "rate_per_s": "The arrival rate.",
    "reason": "Why.",
    "rule": "The name of the rule: docs/rules.md#rules.",
    "run": "The number of the run, from 1.",
    "runs": "The number of runs.",
    "scenario": "How feeds are issued.",
    "schema_version": "The version of this format.",
    "severity": "How serious it is. An `invalid` one among `findings` makes the command exit with 1.",
    "source": "Who set the limits.",
    "suite": "The name of the suite.",
    "suite_options": "The options of the suite.",
    "suite_version": "The version of the suite.",
    "swap_bytes": "The size of the swap space.",
    "swapped_in_pages": "Pages that were read back from the swap space.",
    "swapped_out_pages": "Pages that were written to the swap space.",
    "temperature_c": "The temperature.",
    "text": "The reason, in words.",
    "throttled_ns": "The time for which our processes were held back by the quota.",
    "tier": "The size of the networks: docs/rules.md#tiers.",
    "total_ns": "The limit of the time until the last unit.",
    "verdict_reason": "Why, in words.",
    "unaudited": "Why there is no audit.",
    "unit": "One piece of the suite's work, in the singular: token, image.",
    "units": "The number of units.",
    "verdict": "The verdict.",
    "version": "The version of the suite.",
    "virtualization": "The kind of virtual machine.",
    "warmup_ns": "The time of the warm-up.",
    "watts": "The mean power.",
    "weights": "`synthetic`, or the checkpoint's name and hash.",
}
"""What a field of this name means wherever its class has no docstring for it."""
NAMES: dict[object, str] = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}


def renewed(page: str) -> str:
    """The page with the fields and the columns as they are now."""
    of_report = _reached(Assessment)
    more = [each for each in _reached(MachineComparison) if each not in of_report]
    report, comparison = ("\n".join(map(_section, classes)) for classes in (of_report, more))
    return parts.renewed(page, report=report, comparison=comparison, columns=_columns())


def schema() -> str:
    return json.dumps(Result.model_json_schema(mode="serialization"), indent=1, ensure_ascii=False) + "\n"


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


def _section(of: type) -> str:
    told = docstrings(of)
    rows = [_row(name, hint, told.get(name, "")) for name, hint in _hints(of).items()]
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
    told = told or ("" if _classes(hint) else COMMON.get(name, ""))  # a class tells what it holds
    assert told or _classes(hint), f"{name} has no docstring, and its name is not among those that explain themselves"
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
