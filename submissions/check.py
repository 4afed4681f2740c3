"""Judges entries that anybody may have written: each rule is a function with a code, and what no rule knows is refused.

The check trusts only stamps and samples: every figure and every class is computed from them and compared with what the
entry says. It takes a bounded time and memory. The rules come in stages, and an entry that breaks a rule of one stage
is not looked at further. The code of a rule is its name: `one_machine` is E-ONE-MACHINE.
"""

from __future__ import annotations

import datetime
import math
import os
import random
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import ResultError, UsageError
from mixmark.harness.contracts.schema import Device, Fact
from mixmark.harness.contracts.text import plain
from mixmark.harness.measure import reaudit as repeat
from mixmark.harness.measure.conformance.report import Report
from mixmark.harness.plugins.suite_claims import judge_stored
from mixmark.harness.record import store
from mixmark.submissions import form, page, redact, signature
from mixmark.submissions.conclude import Seen, entry, look, unlike
from mixmark.submissions.entry import (
    CLAIM,
    CONFORMANCE,
    DECLARATION,
    MANIFEST,
    README,
    RESULTS,
    RULES_VERSION,
    SIGNATURE,
    Claim,
    Declaration,
    Entry,
    File,
    Manifest,
    Problem,
    Signed,
    Verdict,
    is_slug,
    results_of,
)

MAX_FILES = 20_000  # of an entry
MAX_DEPTH = 4  # results/1/raw/x.npz
MAX_ENTRY_BYTES = 4 << 30  # of all files of an entry
MAX_PAPER_BYTES = 8 << 20  # of a declaration, a claim, a manifest or a README.md
MAX_RESULTS = 16  # of an entry
MAX_PARTS = 1024  # devices of a result, and energy sources, which are compared with each other in pairs
MAX_PROBLEMS = 20  # that are told of one rule
MAX_TEXT = 300  # characters of a message
SAME = 1e-9  # relative difference of two figures that are the same: processors may differ in the last digits
PRICE_DAYS = 92  # between the price of an item and the last run
PREVIEW_DAYS = 185  # between the last run and the day on which all of the system can be ordered
FIRST_DAY = datetime.date(2025, 1, 1)  # before Mixmark existed

NUMBERED = re.compile(rf"{RESULTS}/([1-9][0-9]{{0,3}})")
"""The folder of a result."""

Told = Iterator[tuple[str, str]]
"""(file or empty, message) of what breaks a rule."""


@dataclass(frozen=True, eq=False)
class Tree:
    """The files below an entry's folder, none of which was opened."""

    folder: Path
    sizes: dict[str, int]
    """The size of each file in bytes, by its path below the folder."""
    folders: frozenset[str]
    strange: tuple[str, ...]
    """What is neither a file nor a folder: links, devices, pipes."""
    beyond: str
    """Why the folder was not listed to the end; empty where it was."""

    @property
    def name(self) -> str:
        """Organisation, system, and mix with weight class, as the folders are called."""
        return "/".join(self.folder.parts[-3:])

    @property
    def reports(self) -> list[str]:
        """The files with reports of the conformance kit."""
        return sorted(name for name in self.sizes if CONFORMANCE.fullmatch(name))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the results' folders."""
        return sorted(int(found[1]) for name in self.folders if (found := NUMBERED.fullmatch(name)))


@dataclass(frozen=True, eq=False)
class Papers:
    """The small files of an entry, read and validated."""

    tree: Tree
    allowed: Path | None
    now: datetime.datetime

    @cached_property
    def contents(self) -> dict[str, bytes]:
        """The bytes of each."""
        names = (DECLARATION, CLAIM, README, MANIFEST, *self.tree.reports)
        return {name: (self.tree.folder / name).read_bytes() for name in names}

    @cached_property
    def read(self) -> tuple[dict[str, Any], dict[str, ValueError]]:
        """The facts of each file, and what is wrong with the others."""
        found: dict[str, Any] = {}
        wrong: dict[str, ValueError] = {}
        kinds: dict[str, type[Fact]] = {DECLARATION: Declaration, CLAIM: Claim, MANIFEST: Manifest}
        for name, kind in (kinds | dict.fromkeys(self.tree.reports, Report)).items():
            try:
                found[name] = form.read(kind, self.contents[name])
            except ValueError as error:
                wrong[name] = error
        return found, wrong

    @property
    def declaration(self) -> Declaration:
        told: Declaration = self.read[0][DECLARATION]
        return told

    @property
    def claim(self) -> Claim:
        told: Claim = self.read[0][CLAIM]
        return told

    @property
    def manifest(self) -> Manifest:
        told: Manifest = self.read[0][MANIFEST]
        return told

    @property
    def reports(self) -> dict[str, Report]:
        """The reports of the conformance kit, by their files."""
        return {name: self.read[0][name] for name in self.tree.reports}

    @cached_property
    def signed(self) -> Signed | ValueError:
        """The state of the signature, or why it is bad."""
        try:
            return signature.verified(self.tree.folder, self.declaration.folders[0], self.allowed)
        except ValueError as error:
            return error


@dataclass(frozen=True, eq=False)
class Opened:
    """The results of an entry, each opened and judged; of their stamps and samples nothing is kept."""

    papers: Papers
    seen: tuple[Seen, ...]
    wrong: dict[str, str]
    """Why a result does not open, by its folder."""
    other: tuple[tuple[str, str], ...]
    """(file, what) of what the store would have written otherwise."""
    private: tuple[tuple[str, str, str], ...]
    """(file, what, text) of what a redaction would have removed."""

    @cached_property
    def days(self) -> list[datetime.date]:
        """The days of the runs."""
        return [_utc(each.created_utc).date() for each in self.seen]


@dataclass(frozen=True, eq=False)
class Concluded:
    """What follows from the results, beside what the entry claims."""

    opened: Opened
    entry: Entry


@dataclass(frozen=True, eq=False)
class Checked:
    """An entry that obeys the rules so far, beside all others that do."""

    entry: Entry
    prints: frozenset[str]
    """The digests of its stamps and samples."""


# Rules of the files: Tree -> what breaks them


def links(tree: Tree) -> Told:
    """An entry holds only files and folders: no links, devices or pipes."""
    for name in tree.strange:
        yield name, "it is a link, a device or a pipe"


def limits(tree: Tree) -> Told:
    """An entry has a bounded number and size of files."""
    if tree.beyond:
        yield "", tree.beyond
    for name in (DECLARATION, CLAIM, README, MANIFEST, *tree.reports):
        if tree.sizes.get(name, 0) > MAX_PAPER_BYTES:
            yield name, f"it is larger than {MAX_PAPER_BYTES >> 20} MiB"
    if tree.sizes.get(SIGNATURE, 0) > signature.MAX_SIGNATURE_BYTES:
        yield SIGNATURE, f"it is larger than {signature.MAX_SIGNATURE_BYTES} bytes"


def layout(tree: Tree) -> Told:
    """An entry holds the files that it must have, and no others."""
    numbers = tree.numbers
    if not numbers or numbers != list(range(1, len(numbers) + 1)) or len(numbers) > MAX_RESULTS:
        yield RESULTS, f"results are numbered 1, 2, … without a gap, {MAX_RESULTS} at most"
    homes = {f"{RESULTS}/{number}" for number in numbers}
    needed = {DECLARATION, CLAIM, README, MANIFEST}
    needed |= {f"{home}/{name}" for home in homes for name in (store.SUMMARY, store.SUMS)}
    for name in sorted(needed - tree.sizes.keys()):
        yield name, "it is missing"
    for name in tree.sizes.keys() - needed - {SIGNATURE, *tree.reports}:
        if not re.fullmatch(rf"{RESULTS}/[1-9][0-9]*/raw/[a-z0-9][a-z0-9.-]*\.npz", name):
            yield name, "no entry has such a file"
    for name in tree.folders - homes - {RESULTS} - {f"{home}/raw" for home in homes}:
        yield name, "no entry has such a folder"


# Rules of what the maker wrote: Papers -> what breaks them


def schema(papers: Papers) -> Told:
    """The declaration, the claim, the manifest and the kit's reports hold the facts of this version of Mixmark, and
    valid ones."""
    for name, error in papers.read[1].items():
        if not isinstance(error, form.OtherForm):
            yield name, str(error)


def written(papers: Papers) -> Told:
    """The same files are written as Mixmark writes them, so that nothing in them is overlooked."""
    for name, error in papers.read[1].items():
        if isinstance(error, form.OtherForm):
            yield name, str(error)


def manifest(papers: Papers) -> Told:
    """The manifest lists every file with its size and SHA-256."""
    if MANIFEST in papers.read[1]:
        return
    listed = [each.path for each in papers.manifest.files]
    there = sorted(papers.tree.sizes.keys() - {MANIFEST, SIGNATURE})
    if listed != there:
        name = next(iter(sorted(set(listed) ^ set(there))), "")
        yield name, "the manifest does not list the files that are there, each once and in the order of their names"
        return
    for each in papers.manifest.files:
        if each != file(papers.tree.folder, each.path):
            yield each.path, "it has another size or another SHA-256 than the manifest says"


def place(papers: Papers) -> Told:
    """The entry lies in the folders that follow from its organisation, its system, its mix and its weight class."""
    if papers.read[1]:
        return
    wanted = "/".join((*papers.declaration.folders, papers.claim.folder))
    if papers.tree.name != wanted:
        yield "", f"it lies in {papers.tree.name} and belongs into {wanted}"


def rules(papers: Papers) -> Told:
    """The entry was made under the rules of this version."""
    if CLAIM not in papers.read[1] and papers.claim.rules_version != RULES_VERSION:
        yield CLAIM, f"it was made under version {papers.claim.rules_version} of the rules, and this is {RULES_VERSION}"


def signed(papers: Papers) -> Told:
    """A signature fits the manifest and is of somebody who signs for the organisation, as the allowed signers say."""
    if not papers.read[1] and isinstance(papers.signed, ValueError):
        yield SIGNATURE, str(papers.signed)


def currency(papers: Papers) -> Told:
    """All line items of a price have one currency and hold in one market: other sums would mean nothing."""
    if DECLARATION in papers.read[1]:
        return
    for name in ("currency", "locale"):
        values = sorted({getattr(item, name) for item in papers.declaration.price})
        if len(values) > 1:
            yield DECLARATION, f"the items of the price have different values of {name}: {', '.join(values)}"


# Rules of the results: Opened -> what breaks them


def result(opened: Opened) -> Told:
    """Every result opens: its hashes, its schema, and facts that agree with each other and with the suites."""
    yield from opened.wrong.items()


def whole_result(opened: Opened) -> Told:
    """A result folder holds what the store writes of its facts, and nothing else."""
    yield from opened.other


def finished(opened: Opened) -> Told:
    """Every run went to its end."""
    for each in opened.seen:
        if not each.finished:
            yield _home(each), "the run was interrupted"


def date(opened: Opened) -> Told:
    """Every run has a date in UTC that is not in the future."""
    for each in opened.seen:
        try:
            at = _utc(each.created_utc)
        except ValueError:
            yield _home(each), f"{plain(each.created_utc, 40)} is no date in UTC as Mixmark writes it"
            continue
        if not FIRST_DAY <= at.date() <= opened.papers.now.date() + datetime.timedelta(days=1):
            yield _home(each), f"it was run on {at.date()}, which cannot be"


def private(opened: Opened) -> Told:
    """Nothing tells of hosts, users, paths, addresses or serial numbers."""
    for where, what, text in opened.private:
        yield where, f"it holds a {what}: {plain(text, 40)}"


def valid(opened: Opened) -> Told:
    """No finding about a result is invalid."""
    for each in opened.seen:
        for finding in each.findings:
            if finding.severity == "invalid":
                yield _home(each), f"{finding.rule}: {finding.about}: {finding.message}"


def hosted(opened: Opened) -> Told:
    """No result holds a hosted service: nobody can audit its outputs, and no board has a table for it."""
    for each in opened.seen:
        for device in (device for device in each.machine.devices if device.hosted):
            yield _home(each), f"it holds {device.id}, a hosted service; leave out the adapter endpoint"


def score(opened: Opened) -> Told:
    """Every result has a score."""
    for each in opened.seen:
        if each.score is None or each.score.problems or each.score.mixes_per_s is None:
            yield _home(each), each.score.headline if each.score and each.score.problems else "it has no mixed run"


def one_mix(opened: Opened) -> Told:
    """All results are of the same mix, whose name can be that of a folder, and of the same versions of its suites."""
    for each in opened.seen:
        if each.score and not is_slug(each.score.mix.name):
            yield _home(each), f"the mix {each.score.mix.name} cannot be the name of a folder"
    for each in opened.seen[1:]:
        first = opened.seen[0]
        if first.score and each.score and (first.score.mix, first.suites) != (each.score.mix, each.suites):
            yield _home(each), "it has another mix, or other versions of its suites, than the first result"


def one_machine(opened: Opened) -> Told:
    """All results are of one machine with the same devices and software."""
    for each in opened.seen[1:]:
        if _identity(each) != _identity(opened.seen[0]):
            yield _home(each), "it has another processor, other devices or other software than the first result"


def conformance(opened: Opened) -> Told:
    """A report of the conformance kit is about the code of an adapter that all results ran, by the same Mixmark."""
    for name, report in opened.papers.reports.items():
        told = CONFORMANCE.fullmatch(name)
        if told is None or told[1] != report.name:
            yield name, f"it is about {report.name}"
        yield from ((name, why) for each in opened.seen if (why := unlike(report, each)))


def antichain(opened: Opened) -> Told:
    """No energy is counted twice: no two sources claim the same thing or show one and the same reading."""
    for each in opened.seen:
        yield from ((_home(each), text) for text in each.doubled)


def copied(opened: Opened) -> Told:
    """No two runs have the same stamps, and no two phases the same samples, wherever they were moved to."""
    known: dict[str, str] = {}
    for each in opened.seen:
        for digest, name in each.prints:
            told = f"{name} of result {each.number}"
            if (other := known.setdefault(digest, told)) != told:
                yield _home(each), f"{told} are {other}"


def price_date(opened: Opened) -> Told:
    """Every price held within some months of the last run, and is not of the future."""
    papers = opened.papers
    for item in papers.declaration.price:
        last = max(opened.days)
        if abs((item.date - last).days) > PRICE_DAYS or item.date > papers.now.date() + datetime.timedelta(days=1):
            message = (
                f"the price of {item.what} is of {item.date}, and the last run of {last}: {PRICE_DAYS} days at most"
            )
            yield DECLARATION, message


def available(opened: Opened) -> Told:
    """What is available could be ordered on the day of the last run; a preview can be within half a year."""
    told, last = opened.papers.declaration, max(opened.days)
    if told.available_on is None:
        return
    if told.availability == "available" and told.available_on > last:
        yield DECLARATION, f"it is available from {told.available_on}, after the last run of {last}: it is a preview"
    if told.availability == "preview" and not 0 < (told.available_on - last).days <= PREVIEW_DAYS:
        message = f"a preview is available within {PREVIEW_DAYS} days after the last run of {last}"
        yield DECLARATION, f"{message}, and this one on {told.available_on}"


# Rules of what the entry says of itself: Concluded -> what breaks them


def claim(concluded: Concluded) -> Told:
    """Every class and figure that the entry claims is the one that follows from its results."""
    claimed, found = concluded.opened.papers.claim, concluded.entry.claim
    for name in Claim.model_fields:
        if name != "mixmark" and not _same(mine := getattr(claimed, name), yours := getattr(found, name)):
            yield CLAIM, f"{name}: the entry says {_short(mine)}, and its results give {_short(yours)}"


def readme(concluded: Concluded) -> Told:
    """The README.md says what the entry says."""
    papers = concluded.opened.papers
    if page.page(concluded.entry.model_copy(update={"claim": papers.claim})) != papers.contents[README]:
        yield README, "it is not the page that Mixmark writes of this entry"


# Rules of several entries: all that obey the others -> what breaks them, with the number of the entry


def duplicate(entries: Sequence[Checked]) -> Iterator[tuple[int, str]]:
    """No two entries hold the same run."""
    known: dict[str, str] = {}
    for at, each in enumerate(entries):
        others = {known[digest] for digest in each.prints if digest in known}
        others |= {known[digest] for digest in each.entry.claim.results if digest in known}
        if others:
            yield at, f"it holds a run of {', '.join(sorted(others))}"
        known |= dict.fromkeys((*each.prints, *each.entry.claim.results), each.entry.path)


def look_alike(entries: Sequence[Checked]) -> Iterator[tuple[int, str]]:
    """No two organisations have names that look alike, and each has its name spelled in one way."""
    known: dict[str, tuple[str, str]] = {}
    for at, each in enumerate(entries):
        name, folder = each.entry.declaration.organisation, each.entry.organisation
        other, place = known.setdefault(skeleton(folder), (name, folder))
        if (other, place) != (name, folder):
            yield at, f"the organisation {name} looks like {other}"


Rule = Callable[..., Iterator[tuple[Any, str]]]
OF_FILES: tuple[Callable[[Tree], Told], ...] = (links, limits, layout)
OF_PAPERS: tuple[Callable[[Papers], Told], ...] = (schema, written, manifest, place, rules, signed, currency)
OF_RESULTS: tuple[Callable[[Opened], Told], ...] = (
    *(
        result,
        whole_result,
        finished,
        date,
        private,
        valid,
        hosted,
        score,
        one_mix,
        one_machine,
        conformance,
        antichain,
        copied,
    ),
)
OF_OFFERS: tuple[Callable[[Opened], Told], ...] = (price_date, available)
OF_CLAIMS: tuple[Callable[[Concluded], Told], ...] = (claim, readme)
OF_ALL: tuple[Callable[[Sequence[Checked]], Iterator[tuple[int, str]]], ...] = (duplicate, look_alike)
AUDIT = "E-AUDIT"
"""The audits of an entry, repeated here, pass and agree. It is checked only by --reaudit, which takes minutes."""


def code(rule: Rule) -> str:
    """The code of a rule."""
    return f"E-{rule.__name__.upper().replace('_', '-')}"


RULES: tuple[Rule, ...] = (*OF_FILES, *OF_PAPERS, *OF_RESULTS, *OF_OFFERS, *OF_CLAIMS, *OF_ALL)
"""Every rule but E-AUDIT, in the order in which they are applied."""


def check(
    folders: Iterable[Path],
    allowed: Path | None = None,
    now: datetime.datetime | None = None,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> tuple[Verdict, ...]:
    """Checks entries, each alone and all together; the verdicts come in the order of the folders.

    allowed: the list of allowed signers; None: signatures are not verified. now: the time of the check, UTC.
    on_verdict is called for each entry before all are compared with each other.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    verdicts: list[Verdict] = []
    passed: dict[int, Checked] = {}
    for at, folder in enumerate(folders):
        verdict, prints = _alone(folder, allowed, now)
        if verdict.entry is not None:
            passed[at] = Checked(verdict.entry, prints)
        verdicts.append(verdict)
        on_verdict(verdict)
    numbers = list(passed)
    for rule in OF_ALL:
        for at, message in rule(tuple(passed.values())):
            number = numbers[at]
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
    inside = [each for each in _folders(path) if not each.name.startswith(".")]
    found = [entry for each in inside for entry in _entries(each, 2)]
    if not found:
        raise UsageError(f"there is no entry in {path}", "mixmark submit makes one")
    return found


def reaudit(
    verdicts: Sequence[Verdict],
    folders: Sequence[Path],
    count: int,
    timeout_s: float = 600,
    rng: random.Random | None = None,
) -> tuple[Verdict, ...]:
    """Repeats the audits of so many accepted entries, drawn at random, and rejects an entry if one of them fails or
    cannot be repeated."""
    found = list(verdicts)
    accepted = [at for at, verdict in enumerate(found) if verdict.entry is not None]
    drawn = (rng or random.SystemRandom()).sample(accepted, min(count, len(accepted)))
    for at in sorted(drawn):
        problems = []
        for home in results_of(folders[at]):
            for each in repeat.repeat(home, {}, timeout_s):
                if not each.passed:
                    where = f"{RESULTS}/{home.name}"
                    message = plain(f"{each.record.key}: {each.problem}", MAX_TEXT)
                    problems.append(Problem(code=AUDIT, where=where, message=message))
        if problems:
            found[at] = found[at].model_copy(update={"entry": None, "problems": tuple(problems[:MAX_PROBLEMS])})
    return tuple(found)


def file(folder: Path, name: str) -> File:
    """A file as a manifest lists it."""
    path = folder / name
    return File(path=name, size_bytes=path.stat().st_size, sha256=form.sha256_of(path))


def skeleton(folder: str) -> str:
    """A form of a folder's name that is the same for names which look alike: letters that are drawn alike are one."""
    for one, other in (
        ("rn", "m"),
        ("vv", "w"),
        ("cl", "d"),
        ("0", "o"),
        ("1", "l"),
        ("i", "l"),
        ("5", "s"),
        ("-", ""),
    ):
        folder = folder.replace(one, other)
    return folder


def _alone(folder: Path, allowed: Path | None, now: datetime.datetime) -> tuple[Verdict, frozenset[str]]:
    """The verdict on one entry, and the digests of its stamps and samples."""
    try:
        return _judged(_tree(folder), allowed, now)
    except OSError as error:
        tree = Tree(folder, {}, frozenset(), (), "")
        problem = Problem(code=code(layout), where="", message=f"it cannot be read: {error.strerror}")
        return _rejected(tree, (problem,))


def _judged(tree: Tree, allowed: Path | None, now: datetime.datetime) -> tuple[Verdict, frozenset[str]]:
    if problems := _broken(OF_FILES, tree):
        return _rejected(tree, problems)
    papers = Papers(tree, allowed, now)
    if problems := _broken(OF_PAPERS, papers):
        return _rejected(tree, problems)
    opened = _opened(papers)
    if problems := _broken(OF_RESULTS[:1], opened) or _broken(OF_RESULTS[1:], opened) or _broken(OF_OFFERS, opened):
        return _rejected(tree, problems)
    assert isinstance(papers.signed, Signed)  # the rule `signed` saw to it
    found = entry(papers.declaration, opened.seen, papers.signed, papers.reports.values())
    if problems := _broken(OF_CLAIMS, Concluded(opened, found)):
        return _rejected(tree, problems)
    prints = frozenset(digest for each in opened.seen for digest, _ in each.prints)
    return Verdict(path=tree.name, entry=found, problems=()), prints


def _broken(stage: Iterable[Callable[[Any], Told]], subject: object) -> tuple[Problem, ...]:
    found: list[Problem] = []
    for rule in stage:
        for number, (where, message) in enumerate(rule(subject)):
            if number == MAX_PROBLEMS:
                break
            found.append(Problem(code=code(rule), where=plain(where, MAX_TEXT), message=plain(message, MAX_TEXT)))
    return tuple(found)


def _rejected(tree: Tree, problems: tuple[Problem, ...]) -> tuple[Verdict, frozenset[str]]:
    return Verdict(path=plain(tree.name, MAX_TEXT), entry=None, problems=problems), frozenset()


def _tree(folder: Path) -> Tree:
    """Lists a folder without following a link and without opening a file."""
    if folder.is_symlink():
        return Tree(folder, {}, frozenset(), (".",), "")
    sizes: dict[str, int] = {}
    folders: set[str] = set()
    strange: list[str] = []
    beyond = ""
    waiting = [("", 0)]
    while waiting and not beyond:
        below, depth = waiting.pop()
        with os.scandir(folder / below) as inside:
            for each in inside:
                name = f"{below}/{each.name}" if below else each.name
                told = each.stat(follow_symlinks=False)
                if stat.S_ISDIR(told.st_mode):
                    folders.add(name)
                    waiting.append((name, depth + 1))
                elif stat.S_ISREG(told.st_mode):
                    sizes[name] = told.st_size
                else:
                    strange.append(name)
                if depth >= MAX_DEPTH:
                    beyond = f"its folders are nested more than {MAX_DEPTH} deep"
                if len(sizes) + len(folders) + len(strange) > MAX_FILES:
                    beyond = f"it holds more than {MAX_FILES} files"
                if beyond:
                    break
    if sum(sizes.values()) > MAX_ENTRY_BYTES:
        beyond = beyond or f"its files are larger than {MAX_ENTRY_BYTES >> 30} GiB together"
    return Tree(folder, sizes, frozenset(folders), tuple(sorted(strange)), beyond)


def _opened(papers: Papers) -> Opened:
    """Opens and judges the results one after the other, so that the stamps of only one are in memory."""
    seen: list[Seen] = []
    wrong: dict[str, str] = {}
    other: list[tuple[str, str]] = []
    shown: list[tuple[str, str, str]] = []
    sums = {each.path: each.sha256 for each in papers.manifest.files}
    for name, paper in {DECLARATION: papers.declaration, **papers.reports}.items():
        shown += [(name, *each) for each in redact.private(paper.model_dump(mode="json"))]
    for number in papers.tree.numbers:
        home = f"{RESULTS}/{number}"
        folder = papers.tree.folder / home
        try:
            result = store.open(folder)
        except ResultError as error:
            wrong[home] = str(error).replace(f"{papers.tree.folder}/", "")
            continue
        if max(len(result.devices), len(result.domains)) > MAX_PARTS:
            wrong[home] = f"it has more than {MAX_PARTS} devices or energy sources"
            continue
        judgement = judge_stored(result)
        if judgement.contradiction:
            wrong[home] = f"it contradicts itself: {judgement.contradiction}"
            continue
        raw = {path.rpartition("/")[2]: digest for path, digest in sums.items() if path.startswith(f"{home}/raw/")}
        content = result.model_dump(mode="json")
        other += [(f"{home}/{name}", what) for name, what in form.differs(result, content, folder, raw)]
        shown += [(home, *each) for each in redact.private(content)]
        shown += [(home, "device", each) for each in redact.private_ids(result)]
        seen.append(look(number, judgement, sums[f"{home}/{store.SUMS}"]))
    return Opened(papers, tuple(seen), wrong, tuple(other), tuple(shown))


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as inside:
        return sorted(Path(each.path) for each in inside if each.is_dir())


def _entries(folder: Path, levels: int) -> Iterator[Path]:
    """The entries at or below a folder, which may lie so many levels further down. A link is taken for an entry, which
    is then rejected."""
    if folder.is_symlink():
        yield folder
        return
    with os.scandir(folder) as inside:
        only_folders = all(each.is_dir(follow_symlinks=False) for each in inside)
    if not only_folders or not levels:
        yield folder
        return
    for each in _folders(folder):
        yield from _entries(each, levels - 1)


def _home(seen: Seen) -> str:
    return f"{RESULTS}/{seen.number}"


def _utc(text: str) -> datetime.datetime:
    """A date as Mixmark writes it. Raises ValueError for any other text."""
    at = datetime.datetime.fromisoformat(text)
    if at.utcoffset() != datetime.timedelta(0) or at.isoformat() != text:
        raise ValueError("it is not in UTC, or is written otherwise")
    return at


def _identity(seen: Seen) -> object:
    """What is the same in all results of one machine. The memory that is free for a device is not."""

    def part(device: Device) -> tuple[object, ...]:
        return device.id, device.kind, device.name, device.parts

    machine = seen.machine
    devices = tuple(map(part, machine.devices))
    return machine.cpu_model, machine.cpu_cores, machine.cpu_threads, machine.kernel, machine.software, devices


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, figures up to the last digits."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=SAME)
    if isinstance(one, Fact) and type(one) is type(other):
        return all(_same(getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
    return bool(one == other)


def _short(value: object) -> str:
    return str(value.model_dump(mode="json") if isinstance(value, Fact) else value)
