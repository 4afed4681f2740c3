"""The known versions of Mixmark: the SHA-256 of each file that measures, in a JSON file for each version.

    0.1.0.json             a release
    0.1.0-ff862a49.json    the commit of a checkout

`scripts/version` writes them. No file of this package is in such a list, so a commit can hold its own.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from pathlib import Path

from mixmark.harness.contracts.schema import Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.plugins.manifest import BUILT_IN, NEEDS

FOLDER = Path(__file__).parent
CAPABILITIES = ("mixmark", "harness", "capabilities")


def changed(result: Result) -> Reason | None:
    """The first file that differs from the nearest known version, of the core and of the capabilities that the result
    used. None if the result's code is a known version: its hashes say which, and not what it calls itself."""
    used = {None, *_used(result)}
    nearest: list[str] | None = None
    for file in sorted(FOLDER.glob("*.json")):
        differ = result.code.items() ^ json.loads(file.read_text("utf-8")).items()
        paths = sorted({path for path, _ in differ if _capability(path) in used})
        if nearest is None or len(paths) < len(nearest):
            nearest, version = paths, file.stem
    if nearest is None:
        return "no version is known"
    return f"{nearest[0]} is not that of Mixmark {version}" if nearest else None


def lists(code: Container[str], spec: str) -> bool:
    """Whether a list of code holds the file of a class. spec: `module:Class`."""
    module = _module(spec)
    return f"{module}.py" in code or f"{module}/__init__.py" in code


def _used(result: Result) -> Iterator[str | None]:
    """The capabilities whose adapters, suites, meters, experiments or executors a result used, and those that they
    need."""
    routes = [share.route for phase in result.phases for task in phase.tasks for share in task.shares]
    names = {
        "suites": {route.suite for route in routes},
        "meters": {domain.meter for domain in result.domains},
        "experiments": result.experiments.keys(),
        "executors": BUILT_IN["executors"].keys() if result.hosts else (),
    }
    specs = [spec for kind, used in names.items() for name, spec in BUILT_IN[kind].items() if name in used]
    specs += [environment.spec for route in routes if (environment := result.environment_of(route))]
    for capability in map(_capability, map(_module, specs)):
        yield from (capability, *NEEDS.get(capability or "", ()))


def _module(spec: str) -> str:
    """The path of a class's module, without its suffix."""
    return spec.partition(":")[0].replace(".", "/")


def _capability(path: str) -> str | None:
    """The capability whose folder holds a file or module. None if it belongs to the core."""
    *folders, name = Path(path).parts[:4]
    return name if tuple(folders) == CAPABILITIES and not name.endswith(".py") else None
