"""Alters a result folder at random and counts what happens to each mutant.

    python -m bench.fuzz N [SEED] [--careless | --careful]

A careless mutant changes one file. A careful one changes a raw file or result.json and makes the journal and its hashes
agree with it, so that what is behind them is tried as well. Each mutant is one of these:

    refused      opening it raises a ResultError
    no score     it opens, and has no score
    same         it opens, and nothing that it shows is better than in the original: no figure of `shown` is larger
    relabelled   the same, but a name or a number of the machine, the run or the plan is another
    better       it opens, and something that it shows is better
    traceback    something else was raised

A careless mutant may only be refused, without a score or the same; a careful one may not be a traceback. What a careful
mutant can gain is listed in docs/method.md; the changes that gained something are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.folders import Maker, rehash, write
from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.judge.energy.coverage import CLASSES
from mixmark.harness.judge.judgement import Judgement, judge
from mixmark.harness.record import store

Outcome = Literal["refused", "no score", "same", "relabelled", "better", "traceback"]
Change = Callable[[Path, random.Random], str]
"""Changes a folder and says what it did."""
GRADES = ("indicative", "provisional", "official")
EXACT = 1e-9  # sums of the same numbers in another order
WORDS = ("", "cpu:0", "mixed", "\ud800", "../../x", "=1+1", "\x1b[31m", "a" * 5000, "wall", "int4", "official", "0")
NUMBERS = (0, -1, 1, 2, 64, 1 << 31, (1 << 60) - 1, 1 << 62, 10**30, -(1 << 62), 0.0, 0.5, 1e99, -1e99, 1e-99, 1e300)
DTYPES = ("<i8", "<f8", "<f4", "<i4", "|b1", "<U4", ">i8", "|S3", "<c16", "<f2", "|u1")


@dataclass
class Counts:
    """What became of the mutants."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    noted: list[str] = field(default_factory=list)
    """The seed and the change of each mutant that was better or raised something, and what was better."""
    slowest_s: float = 0.0


def shown(judgement: Judgement) -> dict[str, float]:
    """What a reader sees of a result as numbers of which a larger one is better."""
    seen: dict[str, float] = {"exit code": -judgement.exit_code, "finished": judgement.result.finished}
    found = judgement.score
    if found is not None and not found.problems:
        for name, figure in (("TX", found.mixes_per_s), ("MX", found.mixes_per_kj)):
            if figure is not None:
                seen[name] = figure.estimate
                seen[f"{name}, known to"] = -1.0 if figure.half_width is None else -figure.half_width
        seen["grade"] = GRADES.index(found.grade)
        seen["ranked"] = -len(found.unranked)
        seen["bits"] = found.weight_class
        seen["boundary"] = -CLASSES.index(found.boundary) if found.boundary in CLASSES else -len(CLASSES)
    for row in judgement.rows:
        if row.throughput_per_s is not None and not row.invalid:
            seen[f"{row.record.key}: units per second"] = row.throughput_per_s
            if row.energy is not None:
                seen[f"{row.record.key}: units per joule"] = 1 / row.energy.joules_per_unit
    for severity in ("invalid", "warning"):
        seen[severity] = -sum(finding.severity == severity for finding in judgement.findings)
    return seen


def gained(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """What is larger after, or is there only after."""
    return [
        f"{name} from {before.get(name)} to {value:g}"
        for name, value in after.items()
        if name not in before or value > before[name] + EXACT * abs(before[name])
    ]


def labels(judgement: Judgement) -> str:
    """What a result says of the machine and the run, which no figure tells."""
    content = judgement.result.model_dump(
        mode="json", exclude={"records", "meterings", "finished", "resumed", "absent"}
    )
    return json.dumps(content, sort_keys=True)


class Fuzz:
    """A folder that is altered again and again."""

    def __init__(self, scratch: Path) -> None:
        self.original, self.mutant = scratch / "original", scratch / "mutant"
        write(self.original, Maker().result())
        judgement = judge(store.open(self.original))
        self.before, self.labels = shown(judgement), labels(judgement)
        self.counts = Counts()

    def run(self, seed: int, changes: tuple[Change, ...]) -> Outcome:
        """Makes one mutant and counts what becomes of it."""
        rng = random.Random(seed)
        shutil.rmtree(self.mutant, ignore_errors=True)
        shutil.copytree(self.original, self.mutant)
        did = rng.choice(changes)(self.mutant, rng)
        begin_s = time.perf_counter()
        outcome, why = self._outcome()
        self.counts.slowest_s = max(self.counts.slowest_s, time.perf_counter() - begin_s)
        self.counts.outcomes[outcome] += 1
        if outcome in ("better", "traceback") or (outcome == "relabelled" and changes is CARELESS):
            self.counts.noted.append(f"{outcome} (seed {seed}): {did}: {why}")
        return outcome

    def _outcome(self) -> tuple[Outcome, str]:
        try:
            judgement = judge(store.open(self.mutant))
            if more := gained(self.before, shown(judgement)):
                return "better", "; ".join(more)
            if labels(judgement) != self.labels:
                return "relabelled", "it is labelled otherwise"
            return ("same" if judgement.score and not judgement.score.problems else "no score"), ""
        except ResultError as error:
            try:
                f"{error}; {error.hint}".encode()
            except UnicodeEncodeError:
                return "traceback", "the error cannot be printed"
            return "refused", str(error)
        except BaseException:
            return "traceback", traceback.format_exc()[-800:]


def nodes(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in parsed JSON."""
    found = [path]
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in inside:
        found += nodes(value, (*path, name))
    return found


def altered(content: Any, rng: random.Random) -> str:
    """Changes one value, key or list in parsed JSON, more often one near the root than chance would."""
    parent: Any = content
    path: list[Any] = []
    while True:
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        if not keys:
            parent["x" if isinstance(parent, dict) else slice(0, 0)] = [1]
            return f"added to {path}"
        name = rng.choice(keys)
        path.append(name)
        value = parent[name]
        if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
            parent = value
            continue
        break
    how = rng.randrange(7)
    if how == 0:
        del parent[name]
        return f"deleted {path}"
    if how == 1 and isinstance(parent, dict):
        parent[rng.choice([*parent, "x", "\ud800"])] = parent.pop(name)
        return f"renamed {path}"
    if how == 2 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), json.loads(json.dumps(rng.choice(parent))))
        return f"repeated one of {path[:-1]}"
    if isinstance(value, bool):
        new: Any = not value
    elif isinstance(value, (int, float)) and how > 2:
        factor = rng.choice((0.5, 0.999, 1.001, 2, 10, -1))
        new = type(value)(value * factor) if how > 4 else value + rng.choice((-1, 1))
    else:
        new = rng.choice([*WORDS, *NUMBERS, None, True, [], {}, [[]], {"x": 1}, [value], value])
    parent[name] = new
    return f"{path} is {ascii(new)[:60]} instead of {ascii(value)[:60]}"


def _summary(folder: Path, rng: random.Random) -> str:
    path = folder / "result.json"
    content = json.loads(path.read_text())
    did = "; ".join(altered(content, rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))
    path.write_text(json.dumps(content))
    return f"result.json: {did}"


def _everywhere(folder: Path, rng: random.Random) -> str:
    content = json.loads((folder / "result.json").read_text())
    did = "; ".join(altered(content, rng) for _ in range(rng.choice((1, 1, 1, 2))))
    rehash(folder, content)
    return f"result.json and the journal: {did}"


def _journal(folder: Path, rng: random.Random) -> str:
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at, how = rng.randrange(len(lines)), rng.choice(("deleted", "repeated", "moved", "altered", "cut", "joined"))
    if how == "deleted":
        del lines[at]
    elif how == "repeated":
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif how == "moved":
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    elif how == "altered":
        content = json.loads(lines[at])
        how = altered(content, rng)
        lines[at] = json.dumps(content).encode() + b"\n"
    elif how == "cut":
        lines[at] = lines[at][: rng.randrange(len(lines[at]))]
    else:
        lines[at] = lines[at].rstrip(b"\n")
    path.write_bytes(b"".join(lines))
    if rng.random() < 0.3:
        (folder / "result.json").unlink()
        how += " and result.json removed"
    return f"line {at} of the journal: {how}"


def _text(folder: Path, rng: random.Random) -> str:
    return bytes_altered(folder / rng.choice(("result.json", "journal.jsonl")), rng)


def bytes_altered(path: Path, rng: random.Random) -> str:
    """Changes, removes or adds bytes of a file."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(content))
        how = rng.randrange(4)
        if how == 0:
            content[at] = rng.randrange(256)
        elif how == 1:
            del content[at : at + rng.choice((1, 4, 100))]
        elif how == 2:
            content[at:at] = rng.choice(
                (b"[" * 3000, b'"', b"1" * 5000, b"\\ud800", b"\xed\xa0\x80", b"e999", b"-", b"\n")
            )
        else:
            content[at:at] = content[at : at + 50]
    path.write_bytes(content)
    return f"bytes of {path.name}"


def raw_altered(folder: Path, rng: random.Random) -> str:
    """Changes bytes of a raw file of a result folder."""
    path = rng.choice(sorted((folder / "raw").iterdir()))
    content = bytearray(path.read_bytes())
    how = rng.choice(("flipped", "cut", "header", "doubled", "tail"))
    if how == "flipped":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[rng.randrange(len(content)) :]
    elif how == "header":
        at = content.find(b"{'descr'")
        headers = (b"(" * 100, b"{" * 60, b"'<i8'", b"True", b"(1e9,)", b"(-1,)", b"[]", b"\xff\xff")
        new = rng.choice(headers)
        spot = at + rng.randrange(60)
        content[spot : spot + len(new)] = new
    elif how == "doubled":
        content += bytes(content)
    else:
        content[-rng.randrange(1, 30) :] = rng.randbytes(rng.randrange(30))
    path.write_bytes(content)
    return f"raw/{path.name}: {how}"


def _array(values: Any, rng: random.Random) -> Any:
    """An array with another value, type, length or shape."""
    how = rng.randrange(8)
    try:
        if how == 0:
            return values.astype(rng.choice(DTYPES))
        if how == 1:
            return values[: len(values) // 2]
        if how == 2:
            return np.concatenate((values, values))
        if how == 3:
            return values.reshape(rng.choice(((1, *values.shape), (-1, 1), ())))
        if how == 4:
            return np.asfortranarray(np.stack((values, values)))
        if how == 5:
            return rng.choice((np.array(5), np.array("x"), np.zeros(0), np.zeros((2, 0)), np.full(2, np.nan)))
        changed = values.copy()
        at = tuple(rng.randrange(size) for size in values.shape)
        if how == 6:
            changed[at] = rng.choice((0, 1, -1, 5, (1 << 62) - 1, math.nan, math.inf, 1e300))
        else:
            changed = (changed * rng.choice((0.5, 0.999, 1.001, 2, -1))).astype(values.dtype)
        return changed
    except (ValueError, TypeError, OverflowError, IndexError):
        return np.zeros(3)


def array_altered(folder: Path, rng: random.Random) -> str:
    """Changes an array of a raw file of a result folder, or its name."""
    path = rng.choice(sorted((folder / "raw").iterdir()))
    with np.load(path) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    name = rng.choice([*columns])
    how = rng.choice(("altered", "altered", "altered", "altered", "left out", "renamed", "added", "swapped"))
    if how == "altered":
        columns[name] = _array(columns[name], rng)
    elif how == "left out":
        del columns[name]
    elif how == "renamed":
        columns[rng.choice(("x", "key", "../x", "\u00e9", "x" * 300))] = columns.pop(name)
    elif how == "added":
        columns["more"] = np.zeros(3)
    else:
        other = rng.choice([*columns])
        columns[name], columns[other] = columns[other], columns[name]
    saved: Any = rng.choice((np.savez, np.savez_compressed))
    saved(path, **columns)
    if rng.random() < 0.05:
        name = "more"
        with zipfile.ZipFile(path, "a", rng.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))) as archive:
            archive.writestr(f"{name}.npy", b"x" * 1000)
    return f"{name} of raw/{path.name}: {how}"


def files_altered(folder: Path, rng: random.Random) -> str:
    """Removes, swaps, copies, links or empties whole files."""
    paths = sorted(each for each in folder.rglob("*") if each.is_file())
    one, other = rng.sample(paths, 2)
    how = rng.choice(("removed", "swapped", "copied", "linked", "emptied", "folder", "added", "loop"))
    if how == "removed":
        one.unlink()
    elif how == "swapped":
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif how == "copied":
        shutil.copy(one, other)
    elif how == "linked":
        one.unlink()
        one.symlink_to(rng.choice((other, Path("/dev/zero"), Path("/etc/passwd"), folder / "nothing")))
    elif how == "emptied":
        one.write_bytes(b"")
    elif how == "folder":
        one.unlink()
        one.mkdir()
    elif how == "added":
        shutil.copy(one, one.with_name("more" + one.name))
    else:
        one.unlink()
        one.symlink_to(one)
    return f"{one.name} {how} ({other.name})"


def _careful(change: Change) -> Change:
    """The same, with the hashes of the journal as the raw files are then."""

    def both(folder: Path, rng: random.Random) -> str:
        content = json.loads((folder / "result.json").read_text())
        did = change(folder, rng)
        rehash(folder, content)
        return f"{did}, with its hash"

    return both


CARELESS: tuple[Change, ...] = (_summary, _summary, _journal, _text, raw_altered, array_altered, files_altered)
CAREFUL: tuple[Change, ...] = (_everywhere, _everywhere, _everywhere, _careful(raw_altered), _careful(array_altered))


def fuzz(count: int, seed: int, changes: tuple[Change, ...]) -> Counts:
    """Counts what becomes of so many mutants."""
    with tempfile.TemporaryDirectory(prefix="mixmark-fuzz-") as scratch:
        run = Fuzz(Path(scratch))
        for number in range(count):
            run.run(seed * 1_000_000 + number, changes)
        return run.counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description="Alter a result folder at random.")
    parser.add_argument("count", type=int, help="number of mutants")
    parser.add_argument("seed", type=int, nargs="?", default=1, help="seed of the changes")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--careless", action="store_true", help="only mutants of which one file was changed")
    kinds.add_argument("--careful", action="store_true", help="only mutants whose journal agrees with what was changed")
    asked = parser.parse_args()
    failed = False
    halves = [] if asked.careful else [("careless", CARELESS)]
    halves += [] if asked.careless else [("careful", CAREFUL)]
    for name, changes in halves:
        begin_s = time.perf_counter()
        counts = fuzz(asked.count // len(halves), asked.seed, changes)
        told = ", ".join(f"{outcome} {number}" for outcome, number in counts.outcomes.most_common())
        print(f"{name}: {told}; {time.perf_counter() - begin_s:.0f} s, the slowest {counts.slowest_s:.2f} s")
        print("".join(f"  {each}\n" for each in counts.noted), end="")
        failed |= bool(counts.outcomes["traceback"]) or (name == "careless" and bool(counts.noted))
    sys.exit(failed)


if __name__ == "__main__":
    main()
