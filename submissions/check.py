"""Checks entries, which may come from anyone, against the rules of `mixmark.submissions.rules`.

The check trusts only timestamps and samples: it computes every figure and every class from them and compares it with
what the entry says. It takes a bounded time and memory.
"""

from __future__ import annotations

import datetime
import os
import random
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import ResultError, UsageError
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.measure import reaudit as repeat
from mixmark.harness.plugins.suite_claims import judge_stored
from mixmark.harness.record import store
from mixmark.submissions import form, redact, rules
from mixmark.submissions.conclude import Contribution, contribution_of, entry
from mixmark.submissions.entry import (
    DECLARATION,
    MANIFEST,
    RESULTS,
    EntryVerdict,
    Problem,
    Signed,
    results_of,
)
from mixmark.submissions.rules import AcceptedEntry, Breaches, Documents, EntryResults, EntryTree, Recomputed, code

MAX_FILES = 20_000  # of an entry
MAX_DEPTH = 4  # results/1/raw/x.npz
MAX_ENTRY_BYTES = 4 << 30  # of all files of an entry
MAX_PARTS = 1024  # devices of a result, and energy sources, which are compared with each other in pairs
MAX_PROBLEMS = 20  # reported of one rule
MAX_TEXT = 300  # characters of a message


def check(
    folders: Iterable[Path],
    allowed: Path | None = None,
    now: datetime.datetime | None = None,
) -> tuple[EntryVerdict, ...]:
    """Checks entries, each alone and all together; the verdicts come in the order of the folders.

    allowed: the list of allowed signers; None: signatures are not verified. now: the time of the check, UTC.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    verdicts: list[EntryVerdict] = []
    accepted: dict[int, AcceptedEntry] = {}
    for number, folder in enumerate(folders):
        verdict, fingerprints = _alone(folder, allowed, now)
        if verdict.entry is not None:
            accepted[number] = AcceptedEntry(verdict.entry, fingerprints)
        verdicts.append(verdict)
    numbers = list(accepted)
    for rule in rules.OF_ALL:
        for index, message in rule(tuple(accepted.values())):
            number = numbers[index]
            problem = Problem(code=code(rule), where="", message=plain(message, MAX_TEXT))
            problems = (*verdicts[number].problems, problem)
            verdicts[number] = verdicts[number].model_copy(update={"entry": None, "problems": problems})
    return tuple(verdicts)


def find(path: Path) -> list[Path]:
    """The folders of the entries at or below a path: those of an organisation, a system or a mix that hold a file.

    A stray file in a folder of an organisation thus makes an entry of that folder, which is then rejected.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder", "give the folder of an entry, or one that holds entries")
    path = path.resolve()
    if (path / MANIFEST).exists() or (path / DECLARATION).exists():
        return [path]
    inside = [folder for folder in _folders(path) if not folder.name.startswith(".")]
    found = [entry for folder in inside for entry in _entries(folder, 2)]
    if not found:
        raise UsageError(f"there is no entry in {path}", "mixmark submit makes one")
    return found


def reaudit(
    verdicts: Sequence[EntryVerdict],
    folders: Sequence[Path],
    count: int,
    timeout_s: float = 600,
    rng: random.Random | None = None,
) -> tuple[EntryVerdict, ...]:
    """Repeats the audits of `count` accepted entries, drawn at random. An entry is rejected if one of its audits fails
    or cannot be repeated."""
    new = list(verdicts)
    accepted = [number for number, verdict in enumerate(new) if verdict.entry is not None]
    drawn = (rng or random.SystemRandom()).sample(accepted, min(count, len(accepted)))
    for number in sorted(drawn):
        problems = []
        for home in results_of(folders[number]):
            for audit in repeat.repeat(home, {}, timeout_s):
                if not audit.passed:
                    where = f"{RESULTS}/{home.name}"
                    message = plain(f"{audit.record.key}: {audit.problem}", MAX_TEXT)
                    problems.append(Problem(code=rules.AUDIT, where=where, message=message))
        if problems:
            new[number] = new[number].model_copy(update={"entry": None, "problems": tuple(problems[:MAX_PROBLEMS])})
    return tuple(new)


def _alone(folder: Path, allowed: Path | None, now: datetime.datetime) -> tuple[EntryVerdict, frozenset[str]]:
    """The verdict on one entry, and the digests of its timestamps and samples."""
    try:
        return _judged(_tree(folder), allowed, now)
    except OSError as error:
        tree = EntryTree(folder, {}, frozenset(), (), None)
        problem = Problem(code=code(rules.layout), where="", message=f"it cannot be read: {error.strerror}")
        return _rejected(tree, (problem,))


def _judged(tree: EntryTree, allowed: Path | None, now: datetime.datetime) -> tuple[EntryVerdict, frozenset[str]]:
    if problems := _problems(rules.OF_FILES, tree):
        return _rejected(tree, problems)
    documents = Documents(tree, allowed, now)
    if problems := _problems(rules.OF_DOCUMENTS, documents):
        return _rejected(tree, problems)
    results = _opened(documents)
    for stage in (rules.OF_OPENING, rules.OF_RESULTS, rules.OF_OFFERS):
        if problems := _problems(stage, results):
            return _rejected(tree, problems)
    assert isinstance(documents.signed, Signed)  # the rule `signed` saw to it
    recomputed = entry(documents.declaration, results.contributions, documents.signed, documents.reports.values())
    if problems := _problems(rules.OF_CLAIMS, Recomputed(documents, recomputed)):
        return _rejected(tree, problems)
    digests = frozenset(digest for result in results.contributions for digest, _ in result.fingerprints)
    return EntryVerdict(path=tree.name, entry=recomputed, problems=()), digests


def _problems(stage: Iterable[Callable[[Any], Breaches]], subject: object) -> tuple[Problem, ...]:
    problems: list[Problem] = []
    for rule in stage:
        for number, (where, message) in enumerate(rule(subject)):
            if number == MAX_PROBLEMS:
                break
            problems.append(Problem(code=code(rule), where=plain(where, MAX_TEXT), message=plain(message, MAX_TEXT)))
    return tuple(problems)


def _rejected(tree: EntryTree, problems: tuple[Problem, ...]) -> tuple[EntryVerdict, frozenset[str]]:
    return EntryVerdict(path=plain(tree.name, MAX_TEXT), entry=None, problems=problems), frozenset()


def _tree(folder: Path) -> EntryTree:
    """Lists a folder without following a link and without opening a file."""
    if folder.is_symlink():
        return EntryTree(folder, {}, frozenset(), (".",), None)
    sizes: dict[str, int] = {}
    folders: set[str] = set()
    irregular: list[str] = []
    truncated: Reason | None = None
    waiting = [("", 0)]
    while waiting and not truncated:
        below, depth = waiting.pop()
        with os.scandir(folder / below) as inside:
            for item in inside:
                name = f"{below}/{item.name}" if below else item.name
                status = item.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.add(name)
                    waiting.append((name, depth + 1))
                elif stat.S_ISREG(status.st_mode):
                    sizes[name] = status.st_size
                else:
                    irregular.append(name)
                if depth >= MAX_DEPTH:
                    truncated = f"its folders are nested more than {MAX_DEPTH} deep"
                if len(sizes) + len(folders) + len(irregular) > MAX_FILES:
                    truncated = f"it holds more than {MAX_FILES} files"
                if truncated:
                    break
    if sum(sizes.values()) > MAX_ENTRY_BYTES:
        truncated = truncated or f"its files are larger than {MAX_ENTRY_BYTES >> 30} GiB together"
    return EntryTree(folder, sizes, frozenset(folders), tuple(sorted(irregular)), truncated)


def _opened(documents: Documents) -> EntryResults:
    """Opens and judges the results one after the other, so that the timestamps of only one are in memory."""
    contributions: list[Contribution] = []
    errors: dict[str, str] = {}
    differences: list[tuple[str, str]] = []
    private: list[tuple[str, str, str]] = []
    sums = {file.path: file.sha256 for file in documents.manifest.files}
    for name, document in {DECLARATION: documents.declaration, **documents.reports}.items():
        private += [(name, *found) for found in redact.private(document.model_dump(mode="json"))]
    for number in documents.tree.numbers:
        home = f"{RESULTS}/{number}"
        folder = documents.tree.folder / home
        try:
            result = store.open(folder)
        except ResultError as error:
            errors[home] = str(error).replace(f"{documents.tree.folder}/", "")
            continue
        if max(len(result.devices), len(result.domains)) > MAX_PARTS:
            errors[home] = f"it has more than {MAX_PARTS} devices or energy sources"
            continue
        judgement = judge_stored(result)
        if judgement.contradiction:
            errors[home] = f"it contradicts itself: {judgement.contradiction}"
            continue
        raw = {path.rpartition("/")[2]: digest for path, digest in sums.items() if path.startswith(f"{home}/raw/")}
        content = result.model_dump(mode="json")
        differences += [(f"{home}/{name}", text) for name, text in form.differs(result, content, folder, raw)]
        private += [(home, *found) for found in redact.private(content)]
        private += [(home, "device", id) for id in redact.private_ids(result)]
        contributions.append(contribution_of(number, judgement, sums[f"{home}/{store.SUMS}"]))
    return EntryResults(documents, tuple(contributions), errors, tuple(differences), tuple(private))


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as inside:
        return sorted(Path(item.path) for item in inside if item.is_dir())


def _entries(folder: Path, levels: int) -> Iterator[Path]:
    """The entries at or below a folder, at most `levels` further down. A link is taken for an entry, which is then
    rejected."""
    if folder.is_symlink():
        yield folder
        return
    with os.scandir(folder) as inside:
        only_folders = all(item.is_dir(follow_symlinks=False) for item in inside)
    if not only_folders or not levels:
        yield folder
        return
    for below in _folders(folder):
        yield from _entries(below, levels - 1)
