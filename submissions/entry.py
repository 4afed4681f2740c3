"""The files of an entry, and the facts that a board shows of it.

    <entries>/<organisation>/<system>/<mix>-<weight class>-bit/     the entry that counts
    <entries>/<organisation>/<system>/<mix>-<weight class>-bit-<id>/  an entry that it replaced; both hold:
        declaration.json    facts that are not measured: names, availability, price (Declaration)
        results/1/ …        the result folders, without names of hosts and users
        manifest.json       the size and the SHA-256 of each file above (Manifest)
        manifest.json.sig   optional: the signature of manifest.json by `ssh-keygen -Y sign`

No file holds a class or a figure of the entry. `mixmark.submissions.check` computes them from the results and returns
an Entry.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.score import Grade
from mixmark.harness.judge.solo import Solo
from mixmark.harness.judge.verdict import VerdictWord

SCHEMA: Literal[1] = 1
"""The version of the files of an entry."""

DECLARATION, RESULTS = "declaration.json", "results"
MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"

MAX_LINE = 200  # characters of a declared text of one line
MAX_NOTES = 2000  # characters of the notes
MAX_LINKS = 50  # of reproductions
MAX_SLUG = 80  # characters of the name of a folder
ID_DIGITS = 12  # hexadecimal

SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
NAME = re.compile(r"[A-Za-z0-9À-ÖØ-öø-ÿ][A-Za-z0-9À-ÖØ-öø-ÿ .,&'()+/_-]*")
"""A name has letters of Western European languages only, since letters of other scripts can look like them."""
Availability = Literal["available", "preview", "research"]
FormFactor = Literal["board", "laptop", "desktop", "workstation", "rack server", "blade", "virtual machine", "other"]
Division = Literal["closed", "open"]
Tuning = Literal["base", "code not known here", "peak"]


def slug(name: str) -> str:
    """The name of a folder for a name: `Müller & Söhne` is `muller-sohne`."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", letters).strip("-")


def is_slug(name: str) -> bool:
    """Whether a folder can have this name."""
    return len(name) <= MAX_SLUG and SLUG.fullmatch(name) is not None


def identity(sums: Iterable[str]) -> str:
    """The id of an entry: it names the results of these SHA256SUMS and no others."""
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:ID_DIGITS]


def _lines(text: str) -> str:
    if any(plain(line) != line for line in text.split("\n")):
        raise ValueError("a text must be printable characters, without spaces around it or two spaces in a row")
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text) or not slug(text):
        raise ValueError(
            "a name has only letters of Western European languages, digits, spaces and . , & ' ( ) + / _ -"
        )
    return text


Line = Annotated[str, Field(min_length=1, max_length=MAX_LINE, pattern="^[^\n]*$"), AfterValidator(_lines)]
Notes = Annotated[str, Field(max_length=MAX_NOTES), AfterValidator(_lines)]
Name = Annotated[str, Field(max_length=60), AfterValidator(_name)]
Slug = Annotated[str, Field(max_length=MAX_SLUG, pattern=rf"^{SLUG.pattern}$")]
Link = Annotated[
    str, Field(max_length=500, pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[!#-&(-;=?-\[\]^_a-~]*)?$")
]
"""The address of a public page, without spaces and quotes."""
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
"""A code of ISO 4217: EUR."""
Money = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,11})(\.[0-9]{1,4})?$")]
"""An amount as a decimal string, so that no digit is lost."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Price(schema.Fact):
    """What the system costs a customer, as declared. No measured figure uses it."""

    amount: Money
    currency: Currency
    date: datetime.date
    """A day on which the system could be bought for this amount."""
    source: Link
    """A public page that shows the price."""

    def __str__(self) -> str:
        amount = Decimal(self.amount)
        return f"{amount:,.0f} {self.currency}" if amount >= 100 else f"{amount:,.2f} {self.currency}"


class Reproduction(schema.Fact):
    """A run of the same routes by another party, published elsewhere."""

    by: Name
    url: Link
    date: datetime.date


class Declaration(schema.Fact):
    """Facts that only the maker of an entry knows. No measured figure uses them."""

    schema_version: Literal[1] = SCHEMA
    organisation: Name
    system: Name
    availability: Availability
    form_factor: FormFactor
    origin: Line
    """Where hardware and software come from, as declared: makers and countries."""
    meter: Line | None = None
    """The make and model of the meter, as declared; a score at the wall needs it."""
    licence: Line | None = None
    """The licences of the software that ran, as declared."""
    notes: Notes = ""
    price: Price | None = None
    provisioned_watts: int | None = Field(default=None, gt=0, le=10_000_000)
    """The power for which the site of the machine is equipped, as declared. It is not measured."""
    reproduced_by: tuple[Reproduction, ...] = Field(default=(), max_length=MAX_LINKS)

    @property
    def folders(self) -> tuple[str, str]:
        """The names of the entry's outer folders: organisation and system."""
        return slug(self.organisation), slug(self.system)


class File(schema.Fact):
    """One file of an entry."""

    path: str = Field(max_length=300, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,4}$")
    """Relative to the entry's folder, with forward slashes."""
    size_bytes: int = Field(ge=0)
    sha256: Sha256


class Manifest(schema.Fact):
    """All files of an entry but the manifest itself and its signature, in the order of their paths."""

    schema_version: Literal[1] = SCHEMA
    files: tuple[File, ...]


class MixedRun(schema.Fact):
    """One mixed run of one of the results."""

    result: int
    """The number of the result's folder, from 1."""
    phase: str
    seconds: float
    mixes_per_hour: Estimate
    mixes_per_kwh: Estimate | None
    watts: float | None


class DisclosedMachine(schema.Fact):
    """The machine as the first result discloses it."""

    hosts: tuple[schema.Hosts, ...]
    """The hosts, equal ones once; see `Result.groups`."""
    whole: schema.System
    """All hosts together; see `Result.machine`."""
    devices: tuple[schema.Device, ...]
    environments: dict[str, schema.Environment]
    """The software that each adapter ran in, as in a result."""

    def processor_of(self, device: str) -> str | None:
        """The model of the processor of a device's host."""
        return next((group.system.cpu_model for group in self.hosts if host_of(device) in group.names), None)


class Signed(schema.Fact):
    """The outcome of the verification of the signature."""

    state: Literal["none", "not verified", "good"]
    """`not verified`: there is a signature, and no list of allowed signers was given."""
    signer: str = ""
    """The principal in the list of allowed signers."""


class Entry(schema.Fact):
    """All facts about an entry that obeys all rules: what is declared, and what follows from the results."""

    declaration: Declaration
    mix: Slug
    tier: schema.Tier
    division: Division
    tuning: Tuning
    grade: Grade
    ranked: bool
    """Whether the entry has a rank. An indicative entry has none, and an entry with a run that another one holds."""
    replaced: bool = False
    """Whether a newer entry of the system took its folder. It then is on no board."""
    verdict: VerdictWord
    """The worst verdict on one of its results."""
    weight_class: schema.WeightClass
    boundary: schema.Boundary | None
    """None if there is no MX."""
    reasons: dict[str, tuple[str, ...]]
    """Why the entry is in each of its classes, by the name of the field: division, tuning, grade, ranked, verdict,
    weight_class, boundary. A class that lacks nothing may have no reason. `ranked`: another entry holds one of its
    runs. `devices`: its names say what its devices are not."""
    mixes_per_hour: Estimate
    """TX."""
    mixes_per_kwh: Estimate | None
    """MX."""
    unmeasured: str
    """Why there is no MX. Empty if there is one."""
    watts: float | None
    """The mean power of the boundary over the mixed runs. None if there is no MX."""
    runs: tuple[MixedRun, ...]
    """The mixed runs of all results."""
    started: int
    """How many mixed runs were begun for these, also those that were ended before they had a record."""
    begun: int
    """How many windows were begun in all."""
    resumed: int
    """How often the runs of its results were resumed."""
    retained: tuple[float, ...] = ()
    """Measured over planned mixes per hour of each mixed run that counts."""
    solos: tuple[Solo, ...]
    """The solo measurements of all results that have a rate."""
    findings: tuple[schema.Finding, ...]
    """The findings of all results; `about` names the result's number if there are several."""
    machine: DisclosedMachine
    mixmark: str
    """The version of Mixmark that ran."""
    suites: dict[str, str]
    """The version of each suite of the mix, by its name."""
    began_utc: str
    """When the first result began."""
    ended_utc: str
    """When the last result began: the date of the entry."""
    commands: tuple[tuple[str, ...], ...]
    """The command of each result."""
    results: tuple[Sha256, ...]
    """The SHA-256 of each result's SHA256SUMS, which holds the hashes of result.json and of the raw files."""
    signed: Signed

    @property
    def disputed(self) -> bool:
        """Whether another entry holds one of its runs, and it is open whose run it is."""
        return bool(self.reasons.get("ranked"))

    @property
    def standing(self) -> Grade | Literal["disputed"]:
        """The grade as readers see it: a disputed entry has none."""
        return "disputed" if self.disputed else self.grade

    @property
    def path(self) -> str:
        """The entry's folder below the folder of all entries. Weight classes are ranked apart, so a system has a folder
        for each."""
        return "/".join((*self.declaration.folders, f"{self.mix}-{self.weight_class}-bit"))

    @property
    def permanent(self) -> str:
        """The folder of these results, once a newer entry takes the folder `path`. As an address it never shows another
        result."""
        return f"{self.path}-{identity(self.results)}"

    def without_rank(self, why: str) -> Entry:
        """The entry without its rank, for one more reason."""
        reasons = {**self.reasons, "ranked": (*self.reasons.get("ranked", ()), why)}
        return self.model_copy(update={"ranked": False, "reasons": reasons})


class Problem(schema.Fact):
    """A rule that an entry breaks."""

    code: str
    """The rule: E-MANIFEST. docs/rules.md lists them."""
    where: str
    """The file of the entry. Empty means the entry as a whole."""
    message: str


class EntryVerdict(schema.Fact):
    """The outcome of the check of one folder."""

    path: str
    """The folder below the folder of all entries."""
    entry: Entry | None
    """None if the entry is rejected."""
    problems: tuple[Problem, ...]
    """Why the entry is rejected, or why it is shown without a rank: another entry holds the same run, and it is open
    whose run it is. Empty if the entry obeys all rules."""
