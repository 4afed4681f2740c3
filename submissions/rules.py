"""The rules that an entry must obey, in stages. Each rule is a function that yields what breaks it.

The code of a rule is its name: `one_machine` is E-ONE-MACHINE. `mixmark.submissions.check` runs the stages in order; an
entry that breaks a rule of one stage does not reach the next stage.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.schema import Device, Fact
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.measure.conformance.report import Report
from mixmark.harness.record import store
from mixmark.submissions import form, page, signature
from mixmark.submissions.conclude import Contribution, unlike
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
    Manifest,
    Signed,
    is_slug,
)

MAX_DOCUMENT_BYTES = 8 << 20  # of a declaration, a claim, a manifest, a README.md or a report of the conformance kit
MAX_RESULTS = 16  # of an entry
SAME = 1e-9  # relative difference of two figures that are the same: processors may differ in the last digits
PRICE_DAYS = 92  # between the price of an item and the last run
PREVIEW_DAYS = 185  # between the last run and the day on which all of the system can be ordered
FIRST_DAY = datetime.date(2025, 1, 1)  # before Mixmark existed

NUMBERED = re.compile(rf"{RESULTS}/([1-9][0-9]{{0,3}})")
"""The folder of a result."""

Breaches = Iterator[tuple[str, str]]
"""(file, message) of each breach of a rule. The file is empty if the breach concerns the whole entry."""


@dataclass(frozen=True, eq=False)
class EntryTree:
    """The files below an entry's folder. None of them was opened."""

    folder: Path
    sizes: dict[str, int]
    """The size of each file in bytes, by its path below the folder."""
    folders: frozenset[str]
    irregular: tuple[str, ...]
    """The links, devices and pipes, which are neither files nor folders."""
    truncated: Reason | None
    """Why the listing stopped early. None: it is complete."""

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
        return sorted(int(match[1]) for name in self.folders if (match := NUMBERED.fullmatch(name)))


@dataclass(frozen=True, eq=False)
class Documents:
    """The small files of an entry, read and validated."""

    tree: EntryTree
    allowed: Path | None
    """The list of allowed signers. None: signatures are not verified."""
    now: datetime.datetime

    @cached_property
    def contents(self) -> dict[str, bytes]:
        """The bytes of each file, by its name."""
        names = (DECLARATION, CLAIM, README, MANIFEST, *self.tree.reports)
        return {name: (self.tree.folder / name).read_bytes() for name in names}

    @cached_property
    def _read(self) -> tuple[dict[str, Any], dict[str, ValueError]]:
        facts: dict[str, Any] = {}
        errors: dict[str, ValueError] = {}
        kinds: dict[str, type[Fact]] = {DECLARATION: Declaration, CLAIM: Claim, MANIFEST: Manifest}
        for name, kind in (kinds | dict.fromkeys(self.tree.reports, Report)).items():
            try:
                facts[name] = form.read(kind, self.contents[name])
            except ValueError as error:
                errors[name] = error
        return facts, errors

    @property
    def errors(self) -> dict[str, ValueError]:
        """Why a file is not valid, by its name."""
        return self._read[1]

    @property
    def declaration(self) -> Declaration:
        declaration: Declaration = self._read[0][DECLARATION]
        return declaration

    @property
    def claim(self) -> Claim:
        claim: Claim = self._read[0][CLAIM]
        return claim

    @property
    def manifest(self) -> Manifest:
        manifest: Manifest = self._read[0][MANIFEST]
        return manifest

    @property
    def reports(self) -> dict[str, Report]:
        """The reports of the conformance kit, by their files."""
        return {name: self._read[0][name] for name in self.tree.reports}

    @cached_property
    def signed(self) -> Signed | ValueError:
        """The state of the signature, or why it is bad."""
        try:
            return signature.verified(self.tree.folder, self.declaration.folders[0], self.allowed)
        except ValueError as error:
            return error


@dataclass(frozen=True, eq=False)
class EntryResults:
    """The results of an entry, each opened and judged. Their timestamps and samples are not kept."""

    documents: Documents
    contributions: tuple[Contribution, ...]
    errors: dict[str, str]
    """Why a result does not open, by its folder."""
    differences: tuple[tuple[str, str], ...]
    """(file, difference) where a file is not as the store writes it."""
    private: tuple[tuple[str, str, str], ...]
    """(file, kind, text) of each private text, which a redaction would have removed."""

    @cached_property
    def days(self) -> list[datetime.date]:
        """The days of the runs."""
        return [_utc(result.created_utc).date() for result in self.contributions]


@dataclass(frozen=True, eq=False)
class Recomputed:
    """The entry that follows from the results, to be compared with what its documents claim."""

    documents: Documents
    entry: Entry


@dataclass(frozen=True, eq=False)
class AcceptedEntry:
    """An entry that obeys all rules about a single entry."""

    entry: Entry
    fingerprints: frozenset[str]
    """The digests of its timestamps and samples."""


# Rules of the files: EntryTree -> breaches


def links(tree: EntryTree) -> Breaches:
    """An entry holds only files and folders: no links, devices or pipes."""
    for name in tree.irregular:
        yield name, "it is a link, a device or a pipe"


def limits(tree: EntryTree) -> Breaches:
    """An entry has a bounded number and size of files."""
    if tree.truncated:
        yield "", tree.truncated
    for name in (DECLARATION, CLAIM, README, MANIFEST, *tree.reports):
        if tree.sizes.get(name, 0) > MAX_DOCUMENT_BYTES:
            yield name, f"it is larger than {MAX_DOCUMENT_BYTES >> 20} MiB"
    if tree.sizes.get(SIGNATURE, 0) > signature.MAX_SIGNATURE_BYTES:
        yield SIGNATURE, f"it is larger than {signature.MAX_SIGNATURE_BYTES} bytes"


def layout(tree: EntryTree) -> Breaches:
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


# Rules of the documents that the maker wrote: Documents -> breaches


def schema(documents: Documents) -> Breaches:
    """The declaration, the claim, the manifest and the kit's reports hold the facts of this version of Mixmark, and
    valid ones."""
    for name, error in documents.errors.items():
        if not isinstance(error, form.OtherForm):
            yield name, str(error)


def written(documents: Documents) -> Breaches:
    """The same files are written as Mixmark writes them, so that nothing in them is overlooked."""
    for name, error in documents.errors.items():
        if isinstance(error, form.OtherForm):
            yield name, str(error)


def manifest(documents: Documents) -> Breaches:
    """The manifest lists every file with its size and SHA-256."""
    if MANIFEST in documents.errors:
        return
    listed = [file.path for file in documents.manifest.files]
    present = sorted(documents.tree.sizes.keys() - {MANIFEST, SIGNATURE})
    if listed != present:
        name = next(iter(sorted(set(listed) ^ set(present))), "")
        yield name, "the manifest does not list the files that are there, each once and in the order of their names"
        return
    for file in documents.manifest.files:
        if file != form.listed(documents.tree.folder, file.path):
            yield file.path, "it has another size or another SHA-256 than the manifest says"


def place(documents: Documents) -> Breaches:
    """The entry lies in the folders that follow from its organisation, its system, its mix and its weight class."""
    if documents.errors:
        return
    expected = "/".join((*documents.declaration.folders, documents.claim.folder))
    if documents.tree.name != expected:
        yield "", f"it lies in {documents.tree.name} and belongs into {expected}"


def rules(documents: Documents) -> Breaches:
    """The entry was made under the rules of this version."""
    if CLAIM in documents.errors or (version := documents.claim.rules_version) == RULES_VERSION:
        return
    yield CLAIM, f"it was made under version {version} of the rules, and this is {RULES_VERSION}"


def signed(documents: Documents) -> Breaches:
    """A signature fits the manifest, and the allowed signers list its signer for the organisation."""
    if not documents.errors and isinstance(documents.signed, ValueError):
        yield SIGNATURE, str(documents.signed)


def currency(documents: Documents) -> Breaches:
    """All line items of a price have one currency and hold in one market: other sums would mean nothing."""
    if DECLARATION in documents.errors:
        return
    for name in ("currency", "locale"):
        values = sorted({getattr(item, name) for item in documents.declaration.price})
        if len(values) > 1:
            yield DECLARATION, f"the items of the price have different values of {name}: {', '.join(values)}"


# Rules of the results: EntryResults -> breaches


def result(results: EntryResults) -> Breaches:
    """Every result opens: its hashes, its schema, and facts that agree with each other and with the suites."""
    yield from results.errors.items()


def whole_result(results: EntryResults) -> Breaches:
    """A result folder holds what the store writes of its facts, and nothing else."""
    yield from results.differences


def finished(results: EntryResults) -> Breaches:
    """Every run went to its end."""
    for contribution in results.contributions:
        if not contribution.finished:
            yield contribution.home, "the run was interrupted"


def date(results: EntryResults) -> Breaches:
    """Every run has a date in UTC that is not in the future."""
    tomorrow = results.documents.now.date() + datetime.timedelta(days=1)
    for contribution in results.contributions:
        try:
            day = _utc(contribution.created_utc).date()
        except ValueError:
            message = f"{plain(contribution.created_utc, 40)} is no date in UTC as Mixmark writes it"
            yield contribution.home, message
            continue
        if not FIRST_DAY <= day <= tomorrow:
            yield contribution.home, f"it was run on {day}, which cannot be"


def private(results: EntryResults) -> Breaches:
    """No text names a host, a user, a path, an address or a serial number."""
    for where, kind, text in results.private:
        yield where, f"it holds a {kind}: {plain(text, 40)}"


def valid(results: EntryResults) -> Breaches:
    """No finding about a result is invalid."""
    for contribution in results.contributions:
        for finding in contribution.findings:
            if finding.severity == "invalid":
                yield contribution.home, f"{finding.rule}: {finding.about}: {finding.message}"


def hosted(results: EntryResults) -> Breaches:
    """No result holds a hosted service: its outputs cannot be audited, and no board has a table for it."""
    for contribution in results.contributions:
        for device in contribution.machine.devices:
            if device.hosted:
                yield contribution.home, f"it holds {device.id}, a hosted service; leave out the adapter endpoint"


def score(results: EntryResults) -> Breaches:
    """Every result has a score."""
    for contribution in results.contributions:
        if contribution.score is None:
            yield contribution.home, "it has no mixed run"
        elif contribution.score.problems:
            yield contribution.home, contribution.score.headline
        elif contribution.score.mixes_per_s is None:
            yield contribution.home, "it has no mixed run"


def one_mix(results: EntryResults) -> Breaches:
    """All results are of the same mix, whose name can be that of a folder, and of the same versions of its suites."""
    for contribution in results.contributions:
        if contribution.score and not is_slug(contribution.score.mix.name):
            yield contribution.home, f"the mix {contribution.score.mix.name} cannot be the name of a folder"
    first, *rest = results.contributions
    for contribution in rest:
        if not first.score or not contribution.score:
            continue
        if (first.score.mix, first.suites) != (contribution.score.mix, contribution.suites):
            yield contribution.home, "it has another mix, or other versions of its suites, than the first result"


def one_machine(results: EntryResults) -> Breaches:
    """All results are of one machine with the same devices and software."""
    first, *rest = results.contributions
    for contribution in rest:
        if _identity(contribution) != _identity(first):
            message = "it has another processor, other devices or other software than the first result"
            yield contribution.home, message


def conformance(results: EntryResults) -> Breaches:
    """A report of the conformance kit is about the code of an adapter that all results ran, by the same Mixmark."""
    for name, report in results.documents.reports.items():
        match = CONFORMANCE.fullmatch(name)
        if match is None or match[1] != report.name:
            yield name, f"it is about {report.name}"
        for contribution in results.contributions:
            if reason := unlike(report, contribution):
                yield name, reason


def antichain(results: EntryResults) -> Breaches:
    """No energy is counted twice: no two sources claim the same thing or show one and the same reading."""
    for contribution in results.contributions:
        for text in contribution.metered_twice:
            yield contribution.home, text


def copied(results: EntryResults) -> Breaches:
    """No two runs have the same timestamps, and no two phases the same samples, wherever they were moved to."""
    known: dict[str, str] = {}
    for contribution in results.contributions:
        for digest, name in contribution.fingerprints:
            source = f"{name} of result {contribution.number}"
            if (first := known.setdefault(digest, source)) != source:
                yield contribution.home, f"{source} are {first}"


def price_date(results: EntryResults) -> Breaches:
    """Every price held within some months of the last run, and is not of the future."""
    tomorrow = results.documents.now.date() + datetime.timedelta(days=1)
    for item in results.documents.declaration.price:
        last = max(results.days)
        if abs((item.date - last).days) > PRICE_DAYS or item.date > tomorrow:
            dates = f"is of {item.date}, and the last run of {last}"
            yield DECLARATION, f"the price of {item.what} {dates}: {PRICE_DAYS} days at most"


def available(results: EntryResults) -> Breaches:
    """What is available could be ordered on the day of the last run; a preview can be within half a year."""
    declaration, last = results.documents.declaration, max(results.days)
    day = declaration.available_on
    if day is None:
        return
    if declaration.availability == "available" and day > last:
        yield DECLARATION, f"it is available from {day}, after the last run of {last}: it is a preview"
    if declaration.availability == "preview" and not 0 < (day - last).days <= PREVIEW_DAYS:
        message = f"a preview is available within {PREVIEW_DAYS} days after the last run of {last}"
        yield DECLARATION, f"{message}, and this one on {day}"


# Rules of what the entry claims: Recomputed -> breaches


def claim(recomputed: Recomputed) -> Breaches:
    """Every class and figure that the entry claims is the one that follows from its results."""
    for name in Claim.model_fields:
        claimed, computed = getattr(recomputed.documents.claim, name), getattr(recomputed.entry.claim, name)
        if name != "mixmark" and not _same(claimed, computed):
            yield CLAIM, f"{name}: the entry says {_short(claimed)}, and its results give {_short(computed)}"


def readme(recomputed: Recomputed) -> Breaches:
    """The README.md says what the entry says."""
    documents = recomputed.documents
    # Figures may differ from the claim in the last digits, so the page is made of the claim, which was compared.
    if page.page(recomputed.entry.model_copy(update={"claim": documents.claim})) != documents.contents[README]:
        yield README, "it is not the page that Mixmark writes of this entry"


# Rules of several entries: all accepted ones -> breaches, with the index of the entry


def duplicate(entries: Sequence[AcceptedEntry]) -> Iterator[tuple[int, str]]:
    """No two entries hold the same run."""
    known: dict[str, str] = {}
    for index, accepted in enumerate(entries):
        digests = (*accepted.fingerprints, *accepted.entry.claim.results)
        if holders := {known[digest] for digest in digests if digest in known}:
            yield index, f"it holds a run of {', '.join(sorted(holders))}"
        known |= dict.fromkeys(digests, accepted.entry.path)


def look_alike(entries: Sequence[AcceptedEntry]) -> Iterator[tuple[int, str]]:
    """No two organisations have names that look alike, and each has its name spelled in one way."""
    known: dict[str, tuple[str, str]] = {}
    for index, accepted in enumerate(entries):
        name, folder = accepted.entry.declaration.organisation, accepted.entry.organisation
        first = known.setdefault(_skeleton(folder), (name, folder))
        if first != (name, folder):
            yield index, f"the organisation {name} looks like {first[0]}"


Rule = Callable[..., Iterator[tuple[Any, str]]]
OF_FILES: tuple[Callable[[EntryTree], Breaches], ...] = (links, limits, layout)
OF_DOCUMENTS: tuple[Callable[[Documents], Breaches], ...] = (
    schema,
    written,
    manifest,
    place,
    rules,
    signed,
    currency,
)
OF_OPENING: tuple[Callable[[EntryResults], Breaches], ...] = (result,)
OF_RESULTS: tuple[Callable[[EntryResults], Breaches], ...] = (
    *(whole_result, finished, date, private, valid, hosted, score),
    *(one_mix, one_machine, conformance, antichain, copied),
)
OF_OFFERS: tuple[Callable[[EntryResults], Breaches], ...] = (price_date, available)
OF_CLAIMS: tuple[Callable[[Recomputed], Breaches], ...] = (claim, readme)
OF_ALL: tuple[Callable[[Sequence[AcceptedEntry]], Iterator[tuple[int, str]]], ...] = (duplicate, look_alike)
AUDIT = "E-AUDIT"
"""The audits of an entry, repeated here, pass and agree. It is checked only by --reaudit, which takes minutes."""

RULES: tuple[Rule, ...] = (*OF_FILES, *OF_DOCUMENTS, *OF_OPENING, *OF_RESULTS, *OF_OFFERS, *OF_CLAIMS, *OF_ALL)
"""Every rule but E-AUDIT, in the order in which they are applied."""


def code(rule: Rule) -> str:
    """The code of a rule."""
    return f"E-{rule.__name__.upper().replace('_', '-')}"


def _skeleton(folder: str) -> str:
    """A form of a folder's name that is the same for names that look alike: letters that are drawn alike are one."""
    pairs = ("rn", "m"), ("vv", "w"), ("cl", "d"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"), ("-", "")
    for letters, replacement in pairs:
        folder = folder.replace(letters, replacement)
    return folder


def _utc(text: str) -> datetime.datetime:
    """A date as Mixmark writes it. Raises ValueError for any other text."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.utcoffset() != datetime.timedelta(0) or moment.isoformat() != text:
        raise ValueError("it is not in UTC, or is written otherwise")
    return moment


def _identity(contribution: Contribution) -> object:
    """The facts that all results of one machine share. The free memory of a device is not one of them."""

    def lasting(device: Device) -> tuple[object, ...]:
        return device.id, device.kind, device.name, device.parts

    machine = contribution.machine
    devices = tuple(map(lasting, machine.devices))
    return machine.cpu_model, machine.cpu_cores, machine.cpu_threads, machine.kernel, machine.software, devices


def _same(claimed: Any, computed: Any) -> bool:
    """Whether two values are equal, figures up to the last digits."""
    if isinstance(claimed, float) and isinstance(computed, float):
        return math.isclose(claimed, computed, rel_tol=SAME)
    if isinstance(claimed, Fact) and type(claimed) is type(computed):
        return all(_same(getattr(claimed, name), getattr(computed, name)) for name in type(claimed).model_fields)
    return bool(claimed == computed)


def _short(value: object) -> str:
    return str(value.model_dump(mode="json") if isinstance(value, Fact) else value)
