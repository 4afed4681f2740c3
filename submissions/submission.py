"""Reads the folder of an entry, which may come from anyone, in a bounded time and memory.

The rules ask for one property after the other: `tree` opens no file, `declaration` and `manifest` read the small
files, `results` opens the results, and `entry` computes the figures. A rule asks only for what the rules of
earlier stages have found in order.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.machine.suite_claims import judge_stored
from mixmark.harness.record import store
from mixmark.harness.record.files import read_limited, sha256_of
from mixmark.harness.resources.files import regular
from mixmark.submissions import conclude, files, redact
from mixmark.submissions.conclude import Contribution
from mixmark.submissions.entry import DECLARATION, MANIFEST, RESULTS, Declaration, Entry, Manifest, Signed

MAX_FILES = 20_000  # of an entry
MAX_DEPTH = 4  # results/1/raw/x.npz
MAX_ENTRY_BYTES = 4 << 30  # of all files of an entry
MAX_PARTS = 1024  # devices of a result, and energy sources, which are compared with each other in pairs

NUMBERED = re.compile(rf"{RESULTS}/([1-9][0-9]{{0,3}})")
"""The folder of a result."""


@dataclass(eq=False)
class EntryTree:
    """The files below an entry's folder. None of them was opened."""

    sizes: dict[str, int] = field(default_factory=dict)
    """The size of each file in bytes, by its path below the folder."""
    folders: set[str] = field(default_factory=set)
    irregular: list[str] = field(default_factory=list)
    """The links, devices and pipes, which are neither files nor folders."""
    truncated: Reason | None = None
    """Why the listing stopped early. None if it is complete."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of the results' folders."""
        return sorted(int(match[1]) for name in self.folders if (match := NUMBERED.fullmatch(name)))


@dataclass(eq=False)
class EntryResults:
    """The results of an entry, each opened and judged. Their timestamps and samples are not kept."""

    contributions: list[Contribution] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """Why a result does not open, by its folder."""
    differences: list[tuple[str, str]] = field(default_factory=list)
    """(file, difference) for each file that is not as the store writes it."""
    private: list[tuple[str, str, str]] = field(default_factory=list)
    """(file, kind, text) of each private text, which a redaction would have removed."""


@dataclass(frozen=True, eq=False)
class Submission:
    """The folder of an entry that is to be checked."""

    folder: Path
    allowed: Path | None
    """The list of allowed signers. If None, signatures are not verified."""
    now: datetime.datetime
    """The time of the check, UTC."""

    @property
    def name(self) -> str:
        """Organisation, system, and mix with weight class, as the folders are called."""
        return "/".join(self.folder.parts[-3:])

    @cached_property
    def tree(self) -> EntryTree:
        """The listing of the folder, which follows no link and stops at the limits."""
        return _tree(self.folder)

    @cached_property
    def declaration(self) -> Declaration:
        """Raises ValueError if it is not valid."""
        return self._read(DECLARATION, Declaration)

    @cached_property
    def manifest(self) -> Manifest:
        """Raises ValueError if it is not valid."""
        return self._read(MANIFEST, Manifest)

    def _read(self, name: str, kind: type[files.AFact]) -> files.AFact:
        return files.read(kind, regular(self.folder / name, files.MAX_DOCUMENT_BYTES))

    @cached_property
    def signed(self) -> Signed | ValueError:
        """The state of the signature, or why it is bad."""
        try:
            return files.verified(self.folder, self.declaration.folders[0], self.allowed)
        except ValueError as error:
            return error

    @cached_property
    def results(self) -> EntryResults:
        """The results, opened one after the other, so that the timestamps of only one are in memory."""
        return _opened(self)

    @property
    def contributions(self) -> Sequence[Contribution]:
        """What each result that opened contributes to the entry."""
        return self.results.contributions

    @cached_property
    def entry(self) -> Entry:
        """The entry that follows from the results and the declaration."""
        assert isinstance(self.signed, Signed)  # the rule `signed` saw to it
        entry = conclude.entry(self.declaration, self.contributions, self.signed)
        return entry.model_copy(update={"replaced": self.name == entry.permanent})


def _tree(folder: Path) -> EntryTree:
    tree = EntryTree()
    if folder.is_symlink():
        tree.irregular.append(".")
        return tree
    waiting = [("", 0)]
    while waiting and not tree.truncated:
        below, depth = waiting.pop()
        with os.scandir(folder / below) as inside:
            for item in inside:
                name = f"{below}/{item.name}" if below else item.name
                status = item.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    tree.folders.add(name)
                    waiting.append((name, depth + 1))
                elif stat.S_ISREG(status.st_mode):
                    tree.sizes[name] = status.st_size
                else:
                    tree.irregular.append(name)
                if depth >= MAX_DEPTH:
                    tree.truncated = f"its folders are nested more than {MAX_DEPTH} deep"
                if len(tree.sizes) + len(tree.folders) + len(tree.irregular) > MAX_FILES:
                    tree.truncated = f"it holds more than {MAX_FILES} files"
                if tree.truncated:
                    break
    if sum(tree.sizes.values()) > MAX_ENTRY_BYTES:
        tree.truncated = tree.truncated or f"its files are larger than {MAX_ENTRY_BYTES >> 30} GiB together"
    return tree


def _opened(submission: Submission) -> EntryResults:
    found = EntryResults()
    declared = submission.declaration.model_dump(mode="json")
    found.private += [(DECLARATION, *each) for each in redact.private(declared)]
    sums = {file.path: file.sha256 for file in submission.manifest.files}
    for number in submission.tree.numbers:
        home = f"{RESULTS}/{number}"
        folder = submission.folder / home
        try:
            result = store.open(folder)
        except ResultError as error:
            found.errors[home] = str(error).replace(f"{submission.folder}/", "")
            continue
        if max(len(result.devices), len(result.domains)) > MAX_PARTS:
            found.errors[home] = f"it has more than {MAX_PARTS} devices or energy sources"
            continue
        assessment = judge_stored(result)
        if assessment.contradiction:
            found.errors[home] = f"it contradicts itself: {assessment.contradiction}"
            continue
        content = result.model_dump(mode="json")
        raw = {path.rpartition("/")[2]: sha256 for path, sha256 in sums.items() if path.startswith(f"{home}/raw/")}
        found.differences += [(f"{home}/{name}", text) for name, text in _differences(result, content, folder, raw)]
        found.private += [(home, *each) for each in redact.private(content)]
        found.private += [(home, *each) for each in redact.private_ids(result)]
        found.contributions.append(conclude.contribution_of(number, assessment, sums[f"{home}/{store.SUMS}"]))
    return found


def _known_then(content: Any, written: Any) -> Any:
    """The content without the fields that a file lacks: they have their defaults, and may be newer than the file."""
    if isinstance(content, dict) and isinstance(written, dict):
        return {key: _known_then(value, written[key]) for key, value in content.items() if key in written}
    if isinstance(content, list) and isinstance(written, list):
        return [_known_then(*pair) for pair in zip(content, written, strict=False)]
    return content


def _differences(
    result: Result, content: dict[str, Any], folder: Path, sha256: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """(file, difference) for each file of a result folder that is not as the store writes this result.

    content: the result as parsed JSON. sha256: the hash of each file in raw/, by its name.
    """
    written = json.loads(read_limited(folder / store.SUMMARY))
    if json.dumps(written) != json.dumps(_known_then(content, written)):
        yield store.SUMMARY, "it holds something that is no fact of the result, or a number in another form"
    names = set(store.raw_names(result))
    raw = {name: sha256[name] for name in names & sha256.keys()}
    if read_limited(folder / store.SUMS) != store.checksums(sha256_of(folder / store.SUMMARY), raw):
        yield store.SUMS, "it does not hold the hashes that Mixmark writes of this result"
    for name in sorted(sha256.keys() - names):
        yield f"raw/{name}", "no record and no metering refers to it"
