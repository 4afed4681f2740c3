"""Alters an entry of a board at random and counts what a check says of each mutant.

    python -m bench.fuzz_entries N [SEED]

A third of the mutants are careless: one file is changed. For a third the manifest is written anew. For a third the
journal and its hashes, the claim's hashes and the manifest agree with what was changed in a result. Each mutant is

    rejected     a rule says why
    identical    it is accepted, and has the same bytes in every file, but for the spaces of result.json
    unchanged    it is accepted, and everything that a board would show of it is the same
    told         it is accepted; its classes and figures are the same, and it tells something else of the run
    changed      it is accepted with another class, figure or declaration
    traceback    something was raised

Only a mutant whose hashes all agree may be `unchanged` or `told`: another run could have written such a folder, and
only an audit or another run can find it. The exit code is 1 if another mutant is one, if any mutant is `changed`, or
if anything was raised.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.folders import Maker, write
from bench.fuzz import altered, array_altered, bytes_altered, files_altered, raw_altered
from mixmark.submissions import check, form
from mixmark.submissions.bundle import bundle
from mixmark.submissions.entry import CLAIM, DECLARATION, MANIFEST, README, RESULTS, Declaration, Entry, Manifest

Outcome = Literal["rejected", "identical", "unchanged", "told", "changed", "traceback"]
Care = Literal["careless", "sealed", "careful"]
Change = Callable[[Path, random.Random], str]
PAPERS = (DECLARATION, CLAIM, README, MANIFEST)
DECLARED = Declaration(
    organisation="Acme",
    system="Acme One",
    availability="research",
    cooling="air",
    form_factor="desktop",
    origin="Acme, Germany",
)


@dataclass
class Counts:
    """What became of the mutants."""

    outcomes: Counter[tuple[Care, Outcome]] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    """How often each rule rejected one."""
    noted: list[str] = field(default_factory=list)
    """The seed and the change of each mutant that may not be as it is."""
    slowest_s: float = 0.0


def shown(entry: Entry) -> tuple[object, object]:
    """(classes, figures and declaration; all that a board shows), without the hashes of the results."""
    content = entry.model_dump(mode="json")
    del content["claim"]["results"]
    return (content["claim"], content["declaration"]), content


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of an entry but the manifest; of result.json without its spaces, which mean nothing."""
    found = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    del found[MANIFEST]
    name = f"{RESULTS}/1/result.json"
    return found | {name: json.dumps(json.loads(found[name])).encode()}


def _papers(folder: Path, rng: random.Random) -> str:
    """Changes values in one of the entry's own files."""
    path = folder / rng.choice((DECLARATION, CLAIM, MANIFEST))
    content = json.loads(path.read_text())
    did = "; ".join(altered(content, rng) for _ in range(rng.choice((1, 1, 1, 3))))
    path.write_text(json.dumps(content, indent=2, ensure_ascii=rng.random() < 0.2) + "\n", errors="replace")
    return f"{path.name}: {did}"


def _text(folder: Path, rng: random.Random) -> str:
    """Changes bytes of any file of text."""
    home = folder / RESULTS / "1"
    paths = [*(folder / name for name in PAPERS), home / "result.json", home / "journal.jsonl"]
    return bytes_altered(rng.choice(paths), rng)


def _result(folder: Path, rng: random.Random) -> str:
    """Changes values in a result."""
    path = folder / RESULTS / "1/result.json"
    content = json.loads(path.read_text())
    did = "; ".join(altered(content, rng) for _ in range(rng.choice((1, 1, 1, 2))))
    path.write_text(json.dumps(content, indent=2) + "\n")
    return f"result.json: {did}"


def _arrays(folder: Path, rng: random.Random) -> str:
    return array_altered(folder / RESULTS / "1", rng)


def _raw(folder: Path, rng: random.Random) -> str:
    return raw_altered(folder / RESULTS / "1", rng)


def _files(folder: Path, rng: random.Random) -> str:
    """Removes, swaps, copies, links or empties whole files."""
    return files_altered(folder, rng)


CHANGES: tuple[Change, ...] = (_papers, _papers, _text, _result, _arrays, _raw, _files)
IN_RESULTS: tuple[Change, ...] = (_result, _result, _arrays, _raw)


def seal(folder: Path) -> None:
    """Writes the manifest anew."""
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())
    files = []
    for name in names:
        try:
            files += [check.file(folder, name)] if name != MANIFEST else []
        except (ValueError, OSError):  # no such name may be listed
            continue
    path = folder / MANIFEST
    if path.is_dir() and not path.is_symlink():
        return
    path.unlink(missing_ok=True)  # a link would be followed out of the entry
    path.write_bytes(form.written(Manifest(files=tuple(files))))


def agree(folder: Path) -> None:
    """Writes the journal of a result as the store does, with the hashes of raw files, and the claim's hash of it."""
    home = folder / RESULTS / "1"
    content: dict[str, Any] = json.loads((home / "result.json").read_text())
    begun = content | {"records": [], "meterings": [], "finished": False, "resumed": []}
    lines = [begun]
    for name, key, ends in (("records", "key", (".npz", ".outputs.npz")), ("meterings", "phase", (".energy.npz",))):
        facts = content.get(name)
        for fact in facts if isinstance(facts, list) else ():
            stem = fact.get(key) if isinstance(fact, dict) else None
            paths = [home / "raw" / f"{str(stem)[:100]}{end}" for end in ends if "\0" not in str(stem)]
            sums = {path.name: form.sha256_of(path) for path in paths if path.is_file()}
            lines.append({name: [fact]} | ({"sha256": sums} if sums else {}))
    (home / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    claim = json.loads((folder / CLAIM).read_text())
    claim["results"] = [form.sha256_of(home / "journal.jsonl")]
    (folder / CLAIM).write_text(json.dumps(claim, indent=2, ensure_ascii=False) + "\n")


class Fuzz:
    """An entry that is altered again and again."""

    def __init__(self, scratch: Path) -> None:
        write(scratch / "result", Maker().result())
        self.original = bundle([scratch / "result"], DECLARED, scratch / "original").folder
        self.mutant = scratch / "mutant/acme/acme-one/two-16-bit"
        (verdict,) = check.check([self.original])
        assert verdict.entry is not None, verdict.problems
        self.before = shown(verdict.entry)
        self.contents = contents(self.original)
        self.counts = Counts()

    def run(self, seed: int) -> Outcome:
        """Makes one mutant and counts what becomes of it."""
        rng = random.Random(seed)
        shutil.rmtree(self.mutant.parents[2], ignore_errors=True)
        shutil.copytree(self.original, self.mutant)
        care: Care = rng.choice(("careless", "sealed", "careful"))
        did = rng.choice(IN_RESULTS if care == "careful" else CHANGES)(self.mutant, rng)
        if care == "careful":
            agree(self.mutant)
        if care != "careless":
            seal(self.mutant)
        begin_s = time.perf_counter()
        outcome, why = self._outcome()
        self.counts.slowest_s = max(self.counts.slowest_s, time.perf_counter() - begin_s)
        self.counts.outcomes[care, outcome] += 1
        if outcome in ("changed", "traceback") or (outcome in ("told", "unchanged") and care != "careful"):
            self.counts.noted.append(f"{outcome} ({care}, seed {seed}): {did}: {why}")
        return outcome

    def _outcome(self) -> tuple[Outcome, str]:
        try:
            (verdict,) = check.check([self.mutant])
            json.dumps(verdict.model_dump(mode="json"), ensure_ascii=False).encode()
        except BaseException:
            return "traceback", traceback.format_exc()[-1500:]
        if verdict.entry is None:
            self.counts.rules.update({problem.code for problem in verdict.problems})
            return "rejected", ""
        classes, everything = shown(verdict.entry)
        if everything == self.before[1]:
            return ("identical" if contents(self.mutant) == self.contents else "unchanged"), ""
        return ("told", "it tells something else") if classes == self.before[0] else ("changed", str(classes)[:300])


def fuzz(count: int, seed: int) -> Counts:
    """Counts what becomes of so many mutants."""
    with tempfile.TemporaryDirectory(prefix="mixmark-fuzz-") as scratch:
        run = Fuzz(Path(scratch).resolve())
        for number in range(count):
            run.run(seed * 1_000_000 + number)
        return run.counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz_entries", description="Alter an entry at random.")
    parser.add_argument("count", type=int, help="number of mutants")
    parser.add_argument("seed", type=int, nargs="?", default=1, help="seed of the changes")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # numpy and zipfile warn of what the changes do
    begin_s = time.perf_counter()
    counts = fuzz(asked.count, asked.seed)
    for (care, outcome), number in sorted(counts.outcomes.items()):
        print(f"{care}: {outcome} {number}")
    print(f"{time.perf_counter() - begin_s:.0f} s, the slowest check {counts.slowest_s:.2f} s")
    print("rejected by", ", ".join(f"{code} {number}" for code, number in counts.rules.most_common()))
    print("".join(f"  {each}\n" for each in counts.noted), end="")
    sys.exit(bool(counts.noted))


if __name__ == "__main__":
    main()
