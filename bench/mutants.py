"""Mutation testing: the fast tests run on a seeded sample of small defects.

    python -m bench.mutants [MUTANTS [SEED [ROOM ...]]]      300 mutants take an hour and a quarter on 2 cores

A mutant is one file of the rooms (`ROOMS`, or those named, as harness/cli) with one change: a comparison, an operator,
`min` for `max`, `and` for `or`, a number off by one, a condition negated. The fast tests run once with coverage; then
the tests that reach the changed statement run on each mutant, and after them the files with these tests, because a test
may depend on another test of its file. A mutant that passes all of them survives and is printed.

mutmut and cosmic-ray name a module after the path of its file, but a linked folder is imported under another name.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ROOMS = (
    *("harness/contracts", "harness/plan", "harness/judge", "harness/measure/dispatch.py", "submissions/rules.py"),
    *("harness/machine", "harness/meters", "harness/record", "harness/cli"),
)
PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
SWAPS: dict[type[ast.AST], type[ast.AST]] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
PROCESSES = 2
LONGEST_S = 300


Reached = dict[str, dict[int, set[str]]]
"""The tests that reach each line of each file."""


class Mutant(NamedTuple):
    path: str
    line: int
    statement: ast.stmt
    """The innermost statement with the change."""
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
    for statement in tree.body:
        yield from _mutants(path, tree, tree, statement)


def _mutants(path: str, tree: ast.Module, parent: ast.AST, statement: ast.stmt) -> Iterator[Mutant]:
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for at, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or (parent is tree and node is not statement):
                continue
            inner = node if isinstance(node, ast.stmt) else statement
            for other in changed(node):
                before = ast.unparse(node).split("\n")[0]
                _put(parent, name, at, ast.copy_location(other, node))
                text = ast.unparse(ast.fix_missing_locations(tree))
                _put(parent, name, at, node)
                after = ast.unparse(other).split("\n")[0]
                yield Mutant(path, getattr(node, "lineno", 0), inner, before, after, text)
            yield from _mutants(path, tree, node, inner)


def _put(parent: ast.AST, name: str, at: int, node: ast.AST) -> None:
    field = getattr(parent, name)
    if isinstance(field, list):
        field[at] = node
    else:
        setattr(parent, name, node)


def reached(tree: Path, rooms: Sequence[str]) -> Reached:
    """The tests that reach each line of each file of the rooms. Exits if a test fails."""
    settings, data = tree / "reached.ini", tree / "reached.data"
    include = ",".join(str(tree / room / "*" if (ROOT / room).is_dir() else tree / room) for room in rooms)
    settings.write_text(f"[run]\ninclude = {include}\ndata_file = {data}\n")
    options = ("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", "-n", str(PROCESSES))
    if not passed(tree, ["tests"], *options):
        sys.exit("a fast test fails without any change")
    read = CoverageData(str(data))
    read.read()
    return {
        str(Path(file).relative_to(tree.resolve())): {
            line: {context.rpartition("|")[0] for context in contexts if context}
            for line, contexts in read.contexts_by_lineno(file).items()
        }
        for file in read.measured_files()
    }


def passed(tree: Path, tests: Iterable[str], *options: str) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *options, *tests]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=LONGEST_S)
    return done.returncode in (0, 5)  # 5: all of these tests are slow


def reaching(mutant: Mutant, lines: Reached) -> set[str]:
    """The tests that reach the changed statement. For a statement that an import executes: the tests that reach its
    body, and the lines and files of tests with the names that it defines."""
    statement, here = mutant.statement, lines.get(mutant.path, {})
    body = getattr(statement, "body", None)
    last = max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno or statement.lineno
    tests = set[str]().union(*(here.get(line, ()) for line in range(statement.lineno, last + 1)))
    if tests:
        return tests
    names = {
        getattr(node, "id", None) for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)
    }
    names |= {getattr(node, "name", None) for node in [statement]}
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, filter(None, names)))})\b")
    for path, reached in lines.items():
        for number, text in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1):
            if pattern.search(text):
                tests |= reached.get(number, set())
    files = ROOT.glob("tests/**/test_*.py")
    tests |= {str(file.relative_to(ROOT)) for file in files if pattern.search(file.read_text("utf-8"))}
    inside = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    return tests.union(*(here.get(line, ()) for line in inside))


def killed(mutant: Mutant, tree: Path, lines: Reached) -> bool:
    tests = reaching(mutant, lines)
    files = {test.partition("::")[0] for test in tests}
    file = tree / mutant.path
    before = file.read_text("utf-8")
    file.write_text(mutant.text, "utf-8")
    try:
        return not all(passed(tree, sorted(some)) for some in (tests, files) if some)
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(before, "utf-8")


def main(count: int = 300, seed: int = 1, *, rooms: Sequence[str] = ROOMS) -> None:
    files = sorted(str(path.relative_to(ROOT)) for room in rooms for path in _modules(ROOT / room))
    sample = random.Random(seed).sample([mutant for file in files for mutant in mutants(file)], count)
    trees: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(PROCESSES) as pool:
        for number in range(PROCESSES):
            tree = Path(folder, str(number))
            shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "build"))
            trees.put(tree)

        lines = reached(trees.queue[0], rooms)

        def run(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                return killed(mutant, tree, lines)
            finally:
                trees.put(tree)

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
    main(*map(int, sys.argv[1:3]), rooms=sys.argv[3:] or ROOMS)
