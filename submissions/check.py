"""Checks entries, which may come from anyone, against the rules of `mixmark.submissions.rules`.

The check trusts only timestamps and samples, and computes every figure and every class from them. It takes a bounded
time and memory.
"""

from __future__ import annotations

import datetime
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.capabilities.reaudit.repeat import repeat
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.record import store
from mixmark.submissions import files, rules
from mixmark.submissions.entry import DECLARATION, MANIFEST, RESULTS, EntryVerdict, Price, Problem
from mixmark.submissions.rules import AcceptedEntry, Breaches, code
from mixmark.submissions.submission import Submission

MAX_PROBLEMS = 20  # reported of one rule
MAX_TEXT = 300  # characters of a message


def check(
    folders: Iterable[Path],
    allowed: Path | None = None,
    now: datetime.datetime | None = None,
    originals: Path | None = None,
) -> tuple[EntryVerdict, ...]:
    """Checks entries, each alone and all together; the verdicts come in the order of the folders.

    allowed: the list of allowed signers; if None, signatures are not verified. now: the time of the check, UTC.
    originals: the list of results that are originals, as `sha256sum` writes it of their SHA256SUMS in the folder of all
    entries. Raises UsageError if it is no such list.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    listed = files.hashes(originals) if originals else frozenset[tuple[str, str]]()
    verdicts: list[EntryVerdict] = []
    accepted: dict[int, AcceptedEntry] = {}
    for number, folder in enumerate(folders):
        submission = Submission(folder, allowed, now)
        problems = _first_problems(submission)
        if problems:
            verdicts.append(_rejected(submission.name, problems))
        else:
            verdicts.append(EntryVerdict(path=submission.name, entry=submission.entry, problems=()))
            steps = ((result.number, steps) for result in submission.contributions for _, steps in result.fingerprints)
            accepted[number] = AcceptedEntry(submission.entry, tuple(steps))
    numbers = list(accepted)
    for shared in rules.duplicate(tuple(accepted.values()), listed):
        verdict = verdicts[numbers[shared.index]]
        problem = Problem(code=code(rules.duplicate), where="", message=plain(shared.message, MAX_TEXT))
        problems = (*verdict.problems, problem)[:MAX_PROBLEMS]
        if shared.copied:
            verdicts[numbers[shared.index]] = _rejected(verdict.path, problems)
        elif verdict.entry is not None:
            entry = verdict.entry.without_rank(problem.message)
            verdicts[numbers[shared.index]] = EntryVerdict(path=verdict.path, entry=entry, problems=problems)
    return tuple(verdicts)


@dataclass(frozen=True)
class Offered:
    """What an entry offers to a planner of machines."""

    name: str
    """The name of the system; of a rejected or disputed entry, its path."""
    problem: Reason | None
    """Why the check rejects it or leaves it without a rank. None if it is accepted."""
    result: Path | None = None
    """The newest result. None if there is a problem."""
    price: Price | None = None


def offered(paths: Iterable[Path]) -> dict[Path, list[Offered]]:
    """The entries at or below each path, without those that were replaced. They are checked together, so that two with
    one run are found. A path that is a result or holds results is left out."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        results = store.results_below(path) or path in store.results_below(path.parent)
        if (path / MANIFEST).exists() or (path.is_dir() and not results):
            folders[path] = find(path)
    each_once = list(dict.fromkeys(folder for own in folders.values() for folder in own))
    verdicts = dict(zip(each_once, check(each_once), strict=True))
    return {path: list(_offers({folder: verdicts[folder] for folder in own})) for path, own in folders.items()}


def _offers(verdicts: Mapping[Path, EntryVerdict]) -> Iterator[Offered]:
    for folder, verdict in verdicts.items():
        if verdict.entry is None or verdict.problems:
            problem = verdict.problems[0]
            why = "disputes it: name only the entry that you trust" if verdict.entry else "rejects it"
            yield Offered(verdict.path, f"mixmark check {why}: {problem.code}: {problem.message}")
        elif not verdict.entry.replaced:
            declared = verdict.entry.declaration
            yield Offered(declared.system, None, store.results_of(folder)[-1], declared.price)


def find(path: Path) -> list[Path]:
    """The folders of the entries at or below a path. An organisation's, a system's or a mix's folder counts as one if
    it holds a file.

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
        for home in store.results_of(folders[number]):
            for audit in repeat(home, {}, timeout_s):
                if not audit.passed:
                    where = f"{RESULTS}/{home.name}"
                    message = plain(f"{audit.record.key}: {audit.problem}", MAX_TEXT)
                    problems.append(Problem(code=rules.AUDIT, where=where, message=message))
        if problems:
            new[number] = _rejected(new[number].path, tuple(problems[:MAX_PROBLEMS]))
    return tuple(new)


def _first_problems(submission: Submission) -> tuple[Problem, ...]:
    """The problems of the first stage that has any."""
    try:
        return next((problems for stage in rules.STAGES if (problems := _problems(stage, submission))), ())
    except OSError as error:
        return (Problem(code=code(rules.layout), where="", message=f"it cannot be read: {error.strerror}"),)


def _problems(stage: Iterable[Callable[[Submission], Breaches]], submission: Submission) -> tuple[Problem, ...]:
    return tuple(
        Problem(code=code(rule), where=plain(where, MAX_TEXT), message=plain(message, MAX_TEXT))
        for rule in stage
        for where, message in itertools.islice(rule(submission), MAX_PROBLEMS)
    )


def _rejected(name: str, problems: tuple[Problem, ...]) -> EntryVerdict:
    return EntryVerdict(path=plain(name, MAX_TEXT), entry=None, problems=problems)


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
