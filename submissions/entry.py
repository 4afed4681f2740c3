"""The files of an entry and their facts: the declaration, the claim, the manifest.

    <entries>/<organisation>/<system>/<mix>-<weight class>-bit/
        declaration.json    facts that are not measured: names, availability, price (Declaration)
        claim.json          the classes and figures as the maker computed them (Claim); a check recomputes them
        README.md           the same for a person; it follows from the other files
        conformance.X.json  optional: the report of the conformance kit on the adapter X
        results/1/ …        the result folders, without names of hosts and users
        manifest.json       the size and the SHA-256 of each file above (Manifest)
        manifest.json.sig   optional: the signature of manifest.json by `ssh-keygen -Y sign`

`mixmark.submissions.check` reads a folder and returns an Entry: all facts that a board shows.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import Boundary, Device, Fact, Finding, Precision, ScenarioName, Tier
from mixmark.harness.contracts.text import plain

SCHEMA: Literal[1] = 1
"""The version of the shapes on this page."""
RULES_VERSION = 1
"""The version of the rules of entries in docs/rules.md."""

CONFORMANCE = re.compile(r"conformance\.([A-Za-z0-9][A-Za-z0-9._-]*)\.json")
"""The report of the conformance kit on an adapter."""
DECLARATION, CLAIM, README, RESULTS = "declaration.json", "claim.json", "README.md", "results"
MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"

MAX_LINE = 200  # characters of a declared text of one line
MAX_NOTES = 2000  # characters of the notes
MAX_ITEMS = 200  # line items of a price
MAX_LINKS = 50  # of reproductions
MAX_SLUG = 80  # characters of the name of a folder

SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
NAME = re.compile(r"[A-Za-z0-9À-ÖØ-öø-ÿ][A-Za-z0-9À-ÖØ-öø-ÿ .,&'()+/_-]*")
"""The letters of a name: those of Western European languages. Letters of other scripts can look like these."""
Availability = Literal["available", "preview", "research"]
Cooling = Literal["passive", "air", "liquid", "immersion", "other"]
FormFactor = Literal["board", "laptop", "desktop", "workstation", "rack server", "blade", "virtual machine", "other"]
Division = Literal["closed", "open"]
Tuning = Literal["base", "peak"]
Grade = Literal["official", "provisional", "indicative"]
Level = Literal[0, 1, 2, 3]
"""A level of the EE HPC working group's methodology. 0: not even level 1."""


def slug(name: str) -> str:
    """The name of a folder for a name: `Müller & Söhne` is `muller-sohne`."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", letters).strip("-")


def is_slug(name: str) -> bool:
    """Whether a name can be that of a folder."""
    return len(name) <= MAX_SLUG and SLUG.fullmatch(name) is not None


def results_of(folder: Path) -> list[Path]:
    """The result folders of an entry in their order; for any other folder, itself."""
    if not (folder / MANIFEST).is_file():
        return [folder]
    inside = [path for path in (folder / RESULTS).iterdir() if re.fullmatch("[1-9][0-9]{0,3}", path.name)]
    return sorted(inside, key=lambda path: int(path.name))


def _line(text: str) -> str:
    if plain(text) != text or not text:
        raise ValueError("a text must be one line of printable characters, without spaces around it")
    return text


def _notes(text: str) -> str:
    if any(plain(line) != line for line in text.split("\n")):
        raise ValueError("lines of notes must be printable characters, with single spaces between words")
    return text


def _name(text: str) -> str:
    if unicodedata.normalize("NFC", text) != text or not NAME.fullmatch(text) or not slug(text):
        raise ValueError(
            "a name has only letters of Western European languages, digits, spaces and . , & ' ( ) + / _ -"
        )
    return text


def _source(text: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[!-;=?-~]*)?", text) or set(text) & set(
        "\"'`<>\\"
    ):
        raise ValueError("a link begins with https:// and has no spaces and no quotes")
    return text


Line = Annotated[str, Field(min_length=1, max_length=MAX_LINE), AfterValidator(_line)]
Notes = Annotated[str, Field(max_length=MAX_NOTES), AfterValidator(_notes)]
Name = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_name)]
Slug = Annotated[str, Field(max_length=MAX_SLUG, pattern=rf"^{SLUG.pattern}$")]
Link = Annotated[str, Field(max_length=500), AfterValidator(_source)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
"""A code of ISO 4217: EUR."""
Locale = Annotated[str, Field(pattern=r"^[a-z]{2}-[A-Z]{2}$")]
Money = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,11})(\.[0-9]{1,4})?$")]
"""An amount as a decimal string, so that no digit is lost."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PriceItem(Fact):
    """One line of a price: what a customer can order in public, at the price of a single piece."""

    what: Line
    quantity: int = Field(ge=1, le=1_000_000)
    unit_price: Money
    """The price of one piece when one is bought, without a discount for this configuration."""
    currency: Currency
    date: datetime.date
    """When the item could be ordered at this price."""
    source: Link
    """A public page that shows the price."""
    locale: Locale
    """The market in which the price holds: de-DE."""

    @property
    def price(self) -> Decimal:
        """quantity × unit_price."""
        return self.quantity * Decimal(self.unit_price)


class Reproduction(Fact):
    """A run of the same routes by another party, published elsewhere."""

    by: Name
    url: Link
    date: datetime.date


class Declaration(Fact):
    """Facts that only the maker of an entry knows. No measured figure uses them."""

    schema_version: Literal[1] = SCHEMA
    organisation: Name
    system: Name
    availability: Availability
    available_on: datetime.date | None = None
    """When all of the system could be, or can be, ordered. None only for research."""
    cooling: Cooling
    form_factor: FormFactor
    origin: Line
    """Where hardware and software come from, as declared: makers and countries."""
    licence: Line | None = None
    """The licences of the software that ran, as declared."""
    notes: Notes = ""
    price: tuple[PriceItem, ...] = Field(default=(), max_length=MAX_ITEMS)
    """Line items; empty: no price is declared."""
    provisioned_watts: int | None = Field(default=None, gt=0, le=10_000_000)
    """The power for which the site of the machine is equipped, as declared. It is not measured."""
    reproduced_by: tuple[Reproduction, ...] = Field(default=(), max_length=MAX_LINKS)

    @model_validator(mode="after")
    def _a_product_has_a_date(self) -> Declaration:
        if (self.availability == "research") != (self.available_on is None):
            raise ValueError("what is available or a preview has a date available_on, and what is research has none")
        return self

    @property
    def folders(self) -> tuple[str, str]:
        """The names of the entry's outer folders: organisation and system."""
        return slug(self.organisation), slug(self.system)


class Estimate(Fact):
    """A figure and the ends of its 95 % interval. None: the width is unknown."""

    value: float
    low: float | None = None
    high: float | None = None


class PriceTotal(Fact):
    """The sum of the line items."""

    amount: str = Field(pattern=r"^(0|[1-9][0-9]{0,21})(\.[0-9]{1,4})?$")
    """As exact as the prices of the items."""
    currency: Currency


class Claim(Fact):
    """The classes and figures of an entry. A check recomputes all of them from the results and the declaration."""

    schema_version: Literal[1] = SCHEMA
    rules_version: int
    mixmark: Line
    """The version that made the entry."""
    mix: Slug
    tier: Tier
    division: Division
    tuning: Tuning
    grade: Grade
    ranked: bool
    """Whether the entry has a rank. An indicative entry has none."""
    weight_class: Literal[16, 8, 4]
    boundary: Boundary | None
    """None: there is no MX."""
    level: Level | None
    """The lowest level of the four aspects of the energy measurement. None: there is no MX."""
    runs: int = Field(ge=1)
    """The number of mixed runs in all results."""
    mixes_per_s: Estimate
    """TX."""
    mixes_per_kj: Estimate | None
    """MX."""
    watts: float | None
    """The mean power of the boundary over the mixed runs. None: there is no MX."""
    price: PriceTotal | None
    """None: no price is declared."""
    results: tuple[Sha256, ...] = Field(min_length=1)
    """The SHA-256 of each result's SHA256SUMS, which holds the hashes of result.json and of the raw files."""

    @property
    def folder(self) -> str:
        """The name of the entry's own folder. Weight classes are ranked apart, so a system has one for each."""
        return f"{self.mix}-{self.weight_class}-bit"


class File(Fact):
    """One file of an entry."""

    path: str = Field(max_length=300, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,4}$")
    """Relative to the entry's folder, with forward slashes."""
    size_bytes: int = Field(ge=0)
    sha256: Sha256


class Manifest(Fact):
    """All files of an entry but the manifest itself and its signature, in the order of their paths."""

    schema_version: Literal[1] = SCHEMA
    files: tuple[File, ...]


class Aspect(Fact):
    """One of the four aspects of an energy measurement, by the EE HPC working group."""

    name: Literal["granularity", "fraction", "subsystems", "point"]
    level: Level
    reason: str


class SoloMeasurement(Fact):
    """One suite alone on one device, through one adapter: a row of the report."""

    suite: str
    suite_version: str
    unit: str
    short_unit: str
    device: str
    adapter: str
    precision: Precision
    scenario: ScenarioName
    batch: int | None
    units_per_s: Estimate
    joules_per_unit: float | None


class MixedRun(Fact):
    """One mixed run of one of the results."""

    result: int
    """The number of the result's folder, from 1."""
    phase: str
    seconds: float
    mixes_per_s: Estimate
    mixes_per_kj: Estimate | None
    watts: float | None


class Software(Fact):
    """The environment in which one adapter ran."""

    adapter: str
    origin: str
    python: str
    packages: dict[str, str]
    vendor: dict[str, str]


class EqualHosts(Fact):
    """Hosts of one run that are equal but for their names."""

    names: tuple[str, ...]
    cpu_model: str | None
    cpu_cores: int | None
    cpu_threads: int | None
    memory_bytes: int | None
    operating_system: str | None
    kernel: str
    virtualization: str | None

    @property
    def summary(self) -> tuple[str, str]:
        """(2 hosts: host1, host2; the hardware and system of each)."""
        memory = None if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.3g} GiB"
        threads = None if self.cpu_threads is None else f"{self.cpu_threads} threads"
        parts = (self.cpu_model, threads, memory, self.operating_system, self.kernel, self.virtualization)
        count = "1 host" if len(self.names) == 1 else f"{len(self.names)} hosts"
        return f"{count}: {', '.join(self.names)}", ", ".join(part for part in parts if part)


class DisclosedMachine(Fact):
    """The machine as the first result discloses it. The figures of several hosts are added."""

    hosts: tuple[EqualHosts, ...] = ()
    """The hosts, equal ones once. Empty: it is one machine."""
    cpu_model: str | None
    cpu_cores: int | None
    cpu_threads: int | None
    memory_bytes: int | None
    operating_system: str | None
    kernel: str
    virtualization: str | None
    devices: tuple[Device, ...]
    software: tuple[Software, ...]

    def processor_of(self, device: str) -> str | None:
        """The model of the processor of a device's host."""
        return next((group.cpu_model for group in self.hosts if host_of(device) in group.names), self.cpu_model)


class Signed(Fact):
    """The outcome of the verification of the signature."""

    state: Literal["none", "not verified", "good"]
    """`not verified`: there is a signature, and no list of allowed signers was given."""
    signer: str = ""
    """The principal in the list of allowed signers."""


class Entry(Fact):
    """All facts about an entry that obeys all rules."""

    organisation: Slug
    system: Slug
    mix: Slug
    declaration: Declaration
    claim: Claim
    reasons: dict[str, tuple[str, ...]]
    """Why the entry is in each of its classes, by the name of the field of Claim: division, tuning, grade, ranked,
    weight_class, boundary. A class that lacks nothing may have no reason."""
    aspects: tuple[Aspect, ...]
    """Empty: there is no MX."""
    unmeasured: str
    """Why there is no MX. Empty: there is one."""
    machine: DisclosedMachine
    suites: dict[str, str]
    """The version of each suite of the mix, by its name."""
    began_utc: str
    """When the first run began."""
    ended_utc: str
    """When the last run began: the date of the entry."""
    commands: tuple[tuple[str, ...], ...]
    """The command of each result."""
    runs: tuple[MixedRun, ...]
    solo_measurements: tuple[SoloMeasurement, ...]
    """Those of all results; the runs of one result are joined."""
    findings: tuple[Finding, ...]
    """The findings of all results; `about` names the result's number where there are several."""
    signed: Signed
    kits: dict[str, bool]
    """Whether an adapter passed the conformance kit, by its name; only adapters that have a report in the entry."""

    @property
    def path(self) -> str:
        """The entry's folder below the folder of all entries."""
        return f"{self.organisation}/{self.system}/{self.claim.folder}"


class Problem(Fact):
    """A rule that an entry breaks."""

    code: str
    """The rule: E-MANIFEST. docs/rules.md lists them."""
    where: str
    """The file of the entry. Empty: the entry as a whole."""
    message: str


class EntryVerdict(Fact):
    """The outcome of a check of one folder."""

    path: str
    """The folder below the folder of all entries."""
    entry: Entry | None
    """None: the entry is rejected."""
    problems: tuple[Problem, ...]
    """Why it is rejected. Empty: it is accepted."""
