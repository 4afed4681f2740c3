"""Every figure of the JSON reports of made-up results and of the published ones, for the golden test of figures.

A room with figures has a module `golden`: with `made`, made-up results whose figures are in golden.json beside it; with
`FIGURES`, files and what they hold.

python -m tests.golden.figures    writes all the files; only a change of a formula or of a field needs it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from mixmark.harness.contracts.schema import Failure, Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.references import rates, retained
from mixmark.harness.plan import mixes
from mixmark.harness.record import store
from mixmark.reporters import data
from tests.fakes.folders import Maker
from tests.fakes.hosts import cluster
from tests.fakes.machine import EDGE, one_run
from tests.golden import sample

FILE = Path(__file__).with_name("figures.json")
ENTRIES = Path(__file__).parents[2] / "submissions" / "entries"


def interrupted() -> Result:
    """A finished run as it stood after half of its records."""
    whole = Maker().result()
    half = whole.records[: len(whole.records) // 2]
    return whole.model_copy(update={"records": half, "finished": False})


def failed_in_the_mix() -> Result:
    gone = Failure(kind="crashed", message="the worker died")
    return sample.altered(one_run(600.0), lambda each: each.key == "mixed.1.llm.cpu-0", cut_short=gone)


def made() -> Mapping[str, Result]:
    """Results that are made up, by name."""
    return {
        "sample": sample.sample(),
        "folder": Maker().result(),
        "three runs": Maker().result(3),
        "interrupted": interrupted(),
        "metered": one_run(600.0, runs=3),
        "unmetered": one_run(None),
        "failed in the mix": failed_in_the_mix(),
        "hosts": cluster(),
    }


OTHER = {"findings", "provenance", "absent", "mix", "limits", "problems", "missing", "unranked", "reasons", "edges_ns"}
OTHER |= {"rates", "fractions", "bound_fractions", "suite_prices", "device_prices", "experiments"}
"""What a report holds beside its own figures: facts, findings, what a linear program may choose otherwise, and what
capabilities add."""
WORDS = {"status", "grade", "word", "boundary"}


def below(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of each object in a piece of JSON, by its path."""

    def is_figure(name: str, each: Any) -> bool:
        several = each if isinstance(each, list) else [each]
        return all(one is None or isinstance(one, (int, float)) for one in several) or name in WORDS

    if isinstance(value, list):
        value = {each.get("key", at) if isinstance(each, dict) else at: each for at, each in enumerate(value)}
    if isinstance(value, dict):
        inside = {name: each for name, each in value.items() if name not in OTHER}
        own = {name: each for name, each in inside.items() if is_figure(name, each)}
        if any(each not in (None, []) for each in own.values()):
            yield path, own
        for name, each in inside.items():
            yield from below(each, f"{path} / {name}")


def of_assessment(judged: Assessment, name: str) -> Iterator[tuple[str, Any]]:
    """The figures of a report, and those that other reports take from a result."""
    told = json.loads(data.as_json(judged))
    repeated = [row for row in told["solos"] if row in told["runs"]]
    told["solos"] = [row for row in told["solos"] if row not in repeated]
    yield from below(told, name)
    yield f"{name} / retained", list(retained(judged.score, judged.diagnoses))
    alone = {suite: rate.model_dump() for suite, rate in rates(judged.solos).items()}
    yield from below(alone, f"{name} / reference / alone")


@cache
def figures() -> dict[str, Any]:
    """All figures by their paths, as JSON has them."""
    found: dict[str, Any] = {}
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE}):
        for name, result in made().items():
            found |= of_assessment(judge(result), name)
    return as_json(found)


@cache
def published() -> Mapping[str, Assessment]:
    """The results of the published entries, by the names of their systems."""
    return {folder.parents[2].name: judge(store.open(folder)) for folder in sorted(ENTRIES.glob("*/*/*/results/*"))}


def as_json(found: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(json.dumps(found))
    return known


def rooms() -> list[ModuleType]:
    """The module `golden` of each room that has one."""
    root = Path(__file__).parents[2]
    files = sorted((root / "tests").glob("**/golden.py"))
    return [import_module(".".join(file.relative_to(root).with_suffix("").parts)) for file in files]


def of_room(module: ModuleType) -> dict[str, Any]:
    """The figures of a capability's made-up results that are its own."""
    found: dict[str, Any] = {}
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE}):
        for title, result in module.made().items():
            told = json.loads(data.as_json(judge(result)))["experiments"]
            found |= below(told, title)
    return as_json(found)


def files() -> Mapping[Path, Callable[[], dict[str, Any]]]:
    """Each golden file with its figures."""
    found: dict[Path, Callable[[], dict[str, Any]]] = {FILE: figures}
    for module in rooms():
        folder = Path(str(module.__file__)).parent
        if hasattr(module, "made"):
            found[folder / "golden.json"] = partial(of_room, module)
        found |= {folder / name: figures for name, figures in getattr(module, "FIGURES", {}).items()}
    return found


def written(found: Mapping[str, Any]) -> str:
    """One line for each object that has figures."""
    lines = [f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for file, found in files().items():
        file.write_text(written(found()), encoding="utf-8")
