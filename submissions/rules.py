"""The rules that an entry must obey, in stages. Each rule is a function that yields the breaches of it.

The code of a rule is its name: `one_machine` is E-ONE-MACHINE. `mixmark.submissions.check` runs the stages in order; an
entry that breaks a rule of one stage does not reach the next stage.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.statistics.timestamps import Floats, copies
from mixmark.harness.record import store
from mixmark.submissions import files
from mixmark.submissions.conclude import Contribution
from mixmark.submissions.entry import DECLARATION, MANIFEST, RESULTS, SIGNATURE, Entry, is_slug
from mixmark.submissions.submission import Submission

MAX_RESULTS = 16  # of an entry
FIRST_DAY = datetime.date(2025, 1, 1)  # before Mixmark existed

Breaches = Iterator[tuple[str, str]]
"""(file, message) of each breach of a rule. The file is empty if the breach concerns the whole entry."""


@dataclass(frozen=True, eq=False)
class AcceptedEntry:
    """An entry that obeys all rules about a single entry."""

    entry: Entry
    fingerprints: tuple[tuple[int, Floats], ...]
    """(number of the result, steps) of its timestamps and samples."""


# Rules of the files


def links(submission: Submission) -> Breaches:
    """An entry holds only files and folders: no links, devices or pipes."""
    tree = submission.tree
    for name in sorted(tree.irregular):
        yield name, "it is a link, a device or a pipe"


def limits(submission: Submission) -> Breaches:
    """An entry has a bounded number and size of files."""
    tree = submission.tree
    if tree.truncated:
        yield "", tree.truncated
    for name in (DECLARATION, MANIFEST):
        if tree.sizes.get(name, 0) > files.MAX_DOCUMENT_BYTES:
            yield name, f"it is larger than {files.MAX_DOCUMENT_BYTES >> 20} MiB"
    if tree.sizes.get(SIGNATURE, 0) > files.MAX_SIGNATURE_BYTES:
        yield SIGNATURE, f"it is larger than {files.MAX_SIGNATURE_BYTES} bytes"


def layout(submission: Submission) -> Breaches:
    """An entry holds the files that it must have, and no others."""
    tree = submission.tree
    numbers = tree.numbers
    if not numbers or numbers != list(range(1, len(numbers) + 1)) or len(numbers) > MAX_RESULTS:
        yield RESULTS, f"results are numbered 1, 2, … without a gap, {MAX_RESULTS} at most"
    homes = {f"{RESULTS}/{number}" for number in numbers}
    needed = {DECLARATION, MANIFEST}
    needed |= {f"{home}/{name}" for home in homes for name in (store.SUMMARY, store.SUMS)}
    for name in sorted(needed - tree.sizes.keys()):
        yield name, "it is missing"
    for name in tree.sizes.keys() - needed - {SIGNATURE}:
        if not re.fullmatch(rf"{RESULTS}/[1-9][0-9]*/raw/[a-z0-9][a-z0-9.-]*\.npz", name):
            yield name, "no entry has such a file"
    for name in tree.folders - homes - {RESULTS} - {f"{home}/raw" for home in homes}:
        yield name, "no entry has such a folder"


# Rules of the documents


def schema(submission: Submission) -> Breaches:
    """The declaration and the manifest hold valid facts of this version, written as Mixmark writes them."""
    for name, document in ((DECLARATION, "declaration"), (MANIFEST, "manifest")):
        try:
            getattr(submission, document)
        except ValueError as error:
            yield name, str(error)


def manifest(submission: Submission) -> Breaches:
    """The manifest lists every file with its size and SHA-256."""
    listed = [file.path for file in submission.manifest.files]
    present = sorted(submission.tree.sizes.keys() - {MANIFEST, SIGNATURE})
    if listed != present:
        name = next(iter(sorted(set(listed) ^ set(present))), "")
        yield name, "the manifest does not list the files that are there, each once and in the order of their names"
        return
    for file in submission.manifest.files:
        if file != files.listed(submission.folder, file.path):
            yield file.path, "it has another size or another SHA-256 than the manifest says"


def signed(submission: Submission) -> Breaches:
    """A signature fits the manifest, and the allowed signers list its signer for the organisation."""
    if isinstance(submission.signed, ValueError):
        yield SIGNATURE, str(submission.signed)


# Rules of the results


def result(submission: Submission) -> Breaches:
    """Every result opens: its hashes, its schema, and facts that agree with each other and with the suites."""
    yield from submission.results.errors.items()


def whole_result(submission: Submission) -> Breaches:
    """A result folder holds what the store writes of its facts, and nothing else."""
    yield from submission.results.differences


def finished(submission: Submission) -> Breaches:
    """Every run went to its end."""
    for contribution in submission.contributions:
        if not contribution.header.finished:
            yield contribution.home, "the run was interrupted"


def date(submission: Submission) -> Breaches:
    """Every run has a date in UTC that is not in the future."""
    tomorrow = submission.now.date() + datetime.timedelta(days=1)
    for contribution in submission.contributions:
        try:
            day = _utc(contribution.header.created_utc).date()
        except ValueError:
            message = f"{plain(contribution.header.created_utc, 40)} is no date in UTC as Mixmark writes it"
            yield contribution.home, message
            continue
        if not FIRST_DAY <= day <= tomorrow:
            yield contribution.home, f"it was run on {day}, which cannot be"


def private(submission: Submission) -> Breaches:
    """No text looks like a path of a user, an address, a UUID or a serial number."""
    for where, kind, text in submission.results.private:
        yield where, f"{kind} that must not be published: {plain(text, 40)}"


def valid(submission: Submission) -> Breaches:
    """No finding about a result is invalid."""
    for contribution in submission.contributions:
        for finding in contribution.findings:
            if finding.voids:
                yield contribution.home, f"{finding.rule}: {finding.about}: {words(finding)}"


def hosted(submission: Submission) -> Breaches:
    """No result holds a hosted service: its outputs cannot be audited, and no board has a table for it."""
    for contribution in submission.contributions:
        for device in contribution.header.devices:
            if device.hosted:
                yield contribution.home, f"it holds {device.id}, a hosted service; leave out its adapter"


def score(submission: Submission) -> Breaches:
    """Every result has a score."""
    for contribution in submission.contributions:
        found = contribution.score
        if found is None or found.mixes_per_hour is None:
            yield contribution.home, found.headline if found and found.problems else "it has no mixed run"


def one_mix(submission: Submission) -> Breaches:
    """All results are of the same mix, which a folder can be named after, and of the same versions of its suites."""
    for contribution in submission.contributions:
        if contribution.score and not is_slug(contribution.score.mix.name):
            yield contribution.home, f"the mix {contribution.score.mix.name} cannot be the name of a folder"
    first, *rest = submission.contributions
    for contribution in rest:
        if not first.score or not contribution.score:
            continue
        if (first.score.mix, first.suites) != (contribution.score.mix, contribution.suites):
            yield contribution.home, "it has another mix, or other versions of its suites, than the first result"


def one_machine(submission: Submission) -> Breaches:
    """All results are of one machine with the same devices and software."""
    first, *rest = submission.contributions
    for contribution in rest:
        if _identity(contribution) != _identity(first):
            message = "it has another processor, other devices or other software than the first result"
            yield contribution.home, message


def copied(submission: Submission) -> Breaches:
    """No two runs have the same timestamps, and no two phases the same samples, wherever they were moved to."""
    series = (
        ((contribution, f"{name} of result {contribution.number}"), steps)
        for contribution in submission.contributions
        for name, steps in contribution.fingerprints
    )
    for (_, first), (contribution, copy) in copies(series):
        yield contribution.home, f"{copy} are {first}"


# Rules of the computed entry


def place(submission: Submission) -> Breaches:
    """The entry's path is ORGANISATION/SYSTEM/MIX-CLASS. A replaced entry's path ends with the id of its results."""
    if submission.name not in (submission.entry.path, submission.entry.permanent):
        yield "", f"it lies in {submission.name} and belongs into {submission.entry.path}"


def declared(submission: Submission) -> Breaches:
    """The declaration names the meter of a score at the wall, and contradicts nothing that was measured."""
    entry = submission.entry
    if entry.boundary == "wall" and not entry.declaration.meter:
        yield DECLARATION, "a score at the wall needs the make and model of its meter: --meter"
    hypervisor, form = entry.machine.whole.virtualization, entry.declaration.form_factor
    if hypervisor and form not in ("virtual machine", "other"):
        yield DECLARATION, f"its form factor is {form}, but it ran under a hypervisor ({hypervisor}): virtual machine"


# Rules of several entries


@dataclass(frozen=True)
class SharedRun:
    """A breach of `duplicate`: an entry holds a run that another entry holds, too."""

    index: int
    """The index of the entry."""
    message: str
    copied: bool
    """Whether the list of originals gives the run to the other entry. If not, it is open whose run it is."""


def duplicate(entries: Sequence[AcceptedEntry], originals: Container[tuple[str, str]] = ()) -> Iterator[SharedRun]:
    """Two entries share a run only if one replaced the other. The list of originals decides whose run it is; names and
    dates do not.

    originals: (SHA-256, path below the folder of all entries) of the SHA256SUMS of results.
    """
    listed = {
        (index, number)
        for index, accepted in enumerate(entries)
        for number, sha256 in enumerate(accepted.entry.results, 1)
        for home in (accepted.entry.path, accepted.entry.permanent)
        if (sha256, f"{home}/{RESULTS}/{number}/{store.SUMS}") in originals
    }
    pairs = sorted(_sharing(entries))
    copied = {own[0] for own, other in pairs if other in listed and own not in listed}
    holders: dict[int, dict[str, None]] = {}  # the paths of the others, in order, each once
    for own, other in pairs:
        if own[0] in copied or other[0] not in copied:
            holders.setdefault(own[0], {})[entries[other[0]].entry.path] = None
    for index, paths in holders.items():
        first, *more = paths
        held = f"it holds a run of {first}" + (f" and of {counted(len(more), 'other entry')}" if more else "")
        why = "is not listed as its original" if index in copied else "the originals do not list whose it is"
        yield SharedRun(index, f"{held}, and {why}", index in copied)


def _sharing(entries: Sequence[AcceptedEntry]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Both orders of each two results, as (index of the entry, number of the result), of different entries that hold
    the same run. An entry of more results may hold those of an entry that it replaced."""
    steps = [((index, number), steps) for index, one in enumerate(entries) for number, steps in one.fingerprints]
    sums = [((index, at), sum) for index, one in enumerate(entries) for at, sum in enumerate(one.entry.results, 1)]
    alike = {(first, second) for (first, sha256), (second, other) in combinations(sums, 2) if sha256 == other}
    for first, second in {*copies(steps), *alike}:
        one, two = entries[first[0]].entry, entries[second[0]].entry
        if one is not two and (one.path != two.path or one.results == two.results):
            yield from ((first, second), (second, first))


Rule = Callable[..., Iterator[Any]]
STAGES: tuple[tuple[Callable[[Submission], Breaches], ...], ...] = (
    (links, limits, layout),
    (schema,),
    (manifest, signed),
    (result,),
    (whole_result, finished, date, private, valid, hosted, score, one_mix, one_machine, copied),
    (place, declared),
)
AUDIT = "E-AUDIT"
"""The audits of an entry, repeated here, pass and agree. It is checked only by --reaudit, which takes minutes."""

RULES: tuple[Rule, ...] = (*(rule for stage in STAGES for rule in stage), duplicate)
"""Every rule but E-AUDIT, in the order of application."""


def code(rule: Rule) -> str:
    """The code of a rule."""
    return f"E-{rule.__name__.upper().replace('_', '-')}"


def _utc(text: str) -> datetime.datetime:
    """A date as Mixmark writes it. Raises ValueError for any other text."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.utcoffset() != datetime.timedelta(0) or moment.isoformat() != text:
        raise ValueError("it is not in UTC, or is written otherwise")
    return moment


def _identity(contribution: Contribution) -> object:
    """The facts that all results of one machine share. The free memory of a device is not one of them."""
    header, machine = contribution.header, contribution.header.machine
    return (
        *(machine.cpu_model, machine.cpu_cores, machine.cpu_threads, machine.cpu_quota, machine.kernel),
        [(device.id, device.kind, device.name, device.parts) for device in header.devices],
        {name: (own.origin, own.python, own.packages, own.vendor) for name, own in header.environments.items()},
    )
