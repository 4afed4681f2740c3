"""Mutation testing of the pure rooms: the fast tests run on a seeded sample of small defects.

    python -m bench.mutants [MUTANTS [SEED]]      300 mutants take half an hour on 2 cores

A mutant is one file of the rooms with one change: a comparison, an operator, `min` for `max`, `and` for `or`, a number
off by one, a condition negated. The tests that are named after the module run first, then those of its room, then those
of all rooms that judge or show a result. A mutant that passes them all survives and is printed.

mutmut and cosmic-ray know a module by the path of its file, which is not the name under which a linked folder is
imported.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
ROOMS = ("harness/contracts", "harness/plan", "harness/judge", "harness/measure/dispatch.py", "submissions/rules.py")
PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
SWAPS: dict[type[ast.AST], type[ast.AST]] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
TESTS = ("contracts", "plan", "judge", "submissions", "reporters", "measure/test_dispatch.py")
PROCESSES = 2
LONGEST_S = 300


class Mutant(NamedTuple):
    path: str
    line: int
    before: str
    after: str
    text: str
    """The whole file with the change, as `ast.unparse` writes it."""


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one change each; none if it has nothing to change."""
    other: Any = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        other.ops[0] = SWAPS[type(node.ops[0])]()
        yield other
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        other.op = SWAPS[type(node.op)]()
        yield other
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield ast.Call(ast.Name(CALLS[node.func.id], ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.IfExp):
        other.test = ast.UnaryOp(ast.Not(), node.test)
        yield other


def mutants(path: str) -> Iterator[Mutant]:
    """All mutants of a file. Annotations and decorators stay as they are."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for at, node in enumerate(value if isinstance(value, list) else [value]):
                for other in changed(node) if isinstance(node, ast.AST) else ():
                    before = ast.unparse(node).split("\n")[0]
                    _put(parent, name, at, ast.copy_location(other, node))
                    text = ast.unparse(ast.fix_missing_locations(tree))
                    _put(parent, name, at, node)
                    yield Mutant(path, getattr(node, "lineno", 0), before, ast.unparse(other).split("\n")[0], text)


def _put(parent: ast.AST, name: str, at: int, node: ast.AST) -> None:
    field = getattr(parent, name)
    if isinstance(field, list):
        field[at] = node
    else:
        setattr(parent, name, node)


def suites(path: str) -> Iterator[list[str]]:
    """Tests to run in turn."""
    parts = Path(path).parts
    room = Path("tests", parts[1] if parts[0] == "harness" else parts[0])
    named = sorted(str(test.relative_to(ROOT)) for test in (ROOT / room).rglob(f"test_{Path(path).stem}*.py"))
    yield from ([*named], [str(room)], [f"tests/{name}" for name in TESTS])


def killed(mutant: Mutant, tree: Path) -> bool:
    file = tree / mutant.path
    before = file.read_text("utf-8")
    file.write_text(mutant.text, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    try:
        for tests in filter(None, suites(mutant.path)):
            done = subprocess.run([*command, *tests], cwd=tree, env=environment, capture_output=True, timeout=LONGEST_S)
            if done.returncode not in (0, 5):  # 5: all tests of the file are slow
                return True
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(before, "utf-8")


def main(count: int = 300, seed: int = 1) -> None:
    files = sorted(str(path.relative_to(ROOT)) for room in ROOMS for path in _modules(ROOT / room))
    sample = random.Random(seed).sample([mutant for file in files for mutant in mutants(file)], count)
    trees: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(PROCESSES) as pool:
        for number in range(PROCESSES):
            tree = Path(folder, str(number))
            shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "build"))
            trees.put(tree)

        def run(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                return killed(mutant, tree)
            finally:
                trees.put(tree)

        unchanged = Mutant(files[0], 0, "", "", (ROOT / files[0]).read_text("utf-8"))
        if run(unchanged):
            sys.exit("a fast test fails without any change")
        results = []
        for mutant, dead in zip(sample, pool.map(run, sample), strict=True):
            results.append(dead)
            if not dead:
                print(f"{mutant.path}:{mutant.line}: {mutant.before} → {mutant.after}", flush=True)
            print(f"{sum(results)} of {len(results)} killed", end="\r", file=sys.stderr)
    print(f"{sum(results)} of {count} mutants killed, seed {seed}")


def _modules(room: Path) -> Iterator[Path]:
    return room.rglob("*.py") if room.is_dir() else iter((room,))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
