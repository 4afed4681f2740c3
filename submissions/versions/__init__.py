"""The known versions of Mixmark: the SHA-256 of each file that measures, in a JSON file for each version.

    0.1.0.json             a release
    0.1.0-ff862a49.json    the commit of a checkout

`scripts/version` writes them. No file of this package is in such a list, so a commit can hold its own. A Mixmark that
runs from a clone also knows the commits of its main branch and of its tags.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from mixmark.harness.contracts.schema import Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.plugins.manifest import BUILT_IN, NEEDS
from mixmark.harness.worker import sealed
from mixmark.submissions.entry import Tuning

FOLDER = Path(__file__).parent
REPOSITORY = sealed.ROOT / ".git"
MAIN = ("refs/heads/main", "refs/remotes/origin/main")  # a clone has the board's as the last of them
GIT_S = 60
CAPABILITIES = ("mixmark", "harness", "capabilities")


def changed(result: Result) -> tuple[Tuning, Reason] | None:
    """The first file that differs from the nearest known version, and the tuning that follows. None if the code
    is a known version: its hashes say which, and not what it calls itself.

    Code that differs from the commit that it names, if that is known, is peak. A capability may be absent if the result
    did not use it; any other file counts, since a run imports capabilities that it does not use.
    """
    used = {None, *_used(result), *map(_capability, result.code)}
    known = {f"Mixmark {file.stem}": json.loads(file.read_text("utf-8")) for file in sorted(FOLDER.glob("*.json"))}
    tuning: Tuning = "code not known here"
    if commit := _committed(result.system.git_commit or "", REPOSITORY):
        known[f"commit {result.system.git_commit}"], tuning = commit, "peak"
    differ = {name: result.code.items() ^ code.items() for name, code in known.items()}
    paths = {name: sorted({path for path, _ in each if _capability(path) in used}) for name, each in differ.items()}
    if not paths:
        return tuning, "no version is known"
    nearest = min(paths, key=lambda name: len(paths[name]))
    return (tuning, f"{paths[nearest][0]} is not that of {nearest}") if paths[nearest] else None


@cache
def _committed(commit: str, repository: Path) -> Mapping[str, str] | None:
    """The SHA-256 of each file of a commit. None if it is no ancestor of main or of a tag in the repository, whose
    working tree is not read."""

    def git(*words: str) -> bytes:
        command = ["git", f"--git-dir={repository}", *words]
        return subprocess.run(command, check=True, capture_output=True, timeout=GIT_S).stdout

    if not re.fullmatch("[0-9a-f]{40}", commit):
        return None
    with suppress(OSError, subprocess.SubprocessError), tempfile.TemporaryDirectory() as folder:
        main = git("for-each-ref", "--format=%(refname)", *MAIN).decode().split()[-1:]
        if git("for-each-ref", f"--contains={commit}", *main, "refs/tags"):
            with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
                archive.extractall(folder, filter="data")
            return sealed.hashes(Path(folder), sealed.read(Path(folder)))
    return None


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
