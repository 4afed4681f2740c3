"""Removes texts from a result that look private: the names of its hosts and of this user, paths, addresses, serial
numbers. No pattern knows every name, so the texts that stay and are not Mixmark's own are collected, to be shown.

Equal texts are replaced by equal words, so that the facts of a result still agree with each other: the device
`gpu:GPU-5d1cae40-…` becomes `gpu:0` in devices, routes, keys, domains and the names of arrays. Domains are renumbered
likewise: `shelly/plus1pm-d48afc7a1b2c` becomes `shelly/0`.
"""

from __future__ import annotations

import getpass
import ipaddress
import itertools
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.device_ids import local, part_of
from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Device, Fact, Result
from mixmark.harness.plan.phases import key_of

SHORTEST = 3  # letters of a host's or user's name that is searched for: shorter names are parts of many words
PUBLIC = (
    *("/sys", "/dev", "/proc", "/lib", "/lib64", "/bin", "/sbin", "/etc/os-release"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/share", "/usr/local/cuda", "/opt/rocm", "/opt/intel"),
)
"""The folders of paths that every machine has, or every one with the software of a vendor."""
VERSIONS = frozenset({"packages", "vendor", "software", "python", "mixmark", "suite_version", "version", "firmware"})
"""Facts that hold version numbers: one of four parts looks like an IP address."""
EVERYWHERE = frozenset({"localhost", "root", "user", "host", "admin", "nobody", "none", "default", "unknown"})

UUID = (
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?<![0-9A-Za-z])[0-9a-fA-F]{32}(?![0-9A-Za-z])"
)
MAC = (
    r"(?<![0-9A-Za-z:.-])(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}(?![0-9A-Za-z:-])"
    r"|(?<![0-9A-Za-z.])(?:[0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}(?![0-9A-Za-z.])"
    r"|(?<![0-9A-Za-z])(?=[0-9]{0,11}[a-fA-F])(?=[a-fA-F]{0,11}[0-9])[0-9a-fA-F]{12}(?![0-9A-Za-z])"
)
IPV4 = r"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])"
IPV6 = r"(?<![0-9A-Za-z:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![0-9A-Za-z:])"
EMAIL = r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*"
PATH = r"(?:(?<![\w./~\\<-])|(?<=file://))(?:~[\w.-]{0,64}|[A-Za-z]:)?(?:/|\\{1,2})[\w.+@-]+(?:[/\\][\w.+@:-]*)*"
SERIAL = (
    r"(?i:\b(?:serial(?:\s?(?:number|no\.?))?|s/n))\s{0,4}[:=]?\s{0,4}(?=[A-Za-z0-9-]{0,64}[0-9])[A-Za-z0-9-]{6,64}"
    r"|(?<![0-9A-Za-z])SN(?=[A-Z]{0,64}[0-9])[0-9A-Z]{6,64}(?![0-9A-Za-z])"
)
PATTERNS = (("email address", EMAIL), ("UUID", UUID), ("MAC address", MAC), ("serial number", SERIAL))


@dataclass(frozen=True)
class Removed:
    """A private text that was replaced."""

    what: str
    """Its kind: host name, path, UUID, …"""
    old: str
    new: str
    times: int


@dataclass
class Redactor:
    """Replaces private texts; equal texts by equal words.

    words: (text, its kind) of texts that are known to be private, such as the name of this host.
    """

    words: Iterable[tuple[str, str]] = ()
    devices: dict[str, str] = field(default_factory=dict)
    """The new id of each device whose id is private."""
    domains: dict[str, str] = field(default_factory=dict)
    """The new id of each energy domain whose id is private, as it is with the new ids of devices."""
    left: dict[str, dict[str, None]] = field(default_factory=dict)
    """The texts of results and declarations that stayed and that Mixmark did not write, by the name of their field."""
    new: dict[tuple[str, str], str] = field(default_factory=dict)
    """The new text of each (kind, text) that was replaced."""
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._public: set[tuple[str, bool]] = set()
        known = sorted({(text, kind) for text, kind in self.words if _private(text)}, key=lambda word: -len(word[0]))
        self._known = [
            (re.compile(rf"(?i)(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])"), kind) for text, kind in known
        ]

    @property
    def removed(self) -> tuple[Removed, ...]:
        """The texts that were replaced so far."""
        return tuple(Removed(what, old, self.new[what, old], times) for (what, old), times in self.times.items())

    def text(self, text: str, version: bool = False) -> str:
        """The text without private parts. version: whether it is a version number, and thus no IP address."""
        if (text, version) in self._public:  # most texts of a result come again and again
            return text
        clean = self._cleaned(self._numbered(text), version)
        if clean == text:
            self._public.add((text, version))
        return clean

    def _numbered(self, text: str) -> str:
        """The text with the new ids of devices and domains."""
        for old, new in self.devices.items():
            text = self._renumbered(text, "device", old, new, _forms(old, new))
        for old, new in self.domains.items():
            text = self._renumbered(text, "energy domain", old, new, {old: new})
        return text

    def _cleaned(self, text: str, version: bool) -> str:
        text = re.sub(PATH, self._path, text)
        for what, pattern in PATTERNS:
            text = re.sub(pattern, partial(self._found, what), text)
        if not version:
            text = re.sub(IPV4, self._address, text)
            text = re.sub(IPV6, self._address, text)
        for known, what in self._known:
            text = known.sub(partial(self._found, what), text)
        return text

    def content(self, content: Any, name: str = "", version: bool = False) -> Any:
        """Parsed JSON without private texts, in keys and values."""
        version = version or name in VERSIONS
        if isinstance(content, str):
            if "serial" in name.lower() and content:
                return self._replaced("serial number", content)
            return self.text(content, version)
        if isinstance(content, list):
            return [self.content(item, name, version) for item in content]
        if isinstance(content, dict):
            return {self.text(key, version): self.content(value, key, version) for key, value in content.items()}
        return content

    def result(self, result: Result) -> Result:
        """The result without private texts. Raises ResultError if it is not valid afterwards."""
        self.devices |= _new_ids(result.devices, self.devices)
        self._public.clear()
        ids = [Redactor(devices=self.devices)._numbered(domain.id) for domain in result.domains]
        for id in sorted((id for id in ids if id not in self.domains and _tells(id)), key=len, reverse=True):
            free = (f"{id.partition('/')[0]}/{number}" for number in itertools.count())
            self.domains[id] = next(new for new in free if new not in {*ids, *self.domains.values()})
        content = self.content(result.model_dump(mode="json"))
        for record, fields in zip(result.records, content["records"], strict=True):
            fields["completions"] = record.completions
        for metering, fields in zip(result.meterings, content["meterings"], strict=True):
            fields["samples"] = {self.text(id): samples for id, samples in metering.samples.items()}
        try:
            clean = Result.model_validate(content)
        except ValueError as error:
            message = f"the result is not valid without the names of hosts and users: {error}"
            raise ResultError(message, "report this, with the names that the host and the user have") from error
        self.leave(clean)
        return clean

    def leave(self, fact: Fact) -> None:
        """Collects the texts that stay in a result or a declaration."""
        for name, text in texts(fact):
            self.left.setdefault(name, {})[text] = None

    def _found(self, what: str, found: re.Match[str]) -> str:
        return self._replaced(what, found[0])

    def _replaced(self, what: str, old: str) -> str:
        if re.fullmatch(rf"{key_of(what)}-[0-9]+", old):  # an earlier redaction replaced it
            return old
        key = what, old
        if key not in self.new:
            self.counts[what] += 1
            self.new[key] = f"{key_of(what)}-{self.counts[what]}"
        self.times[key] += 1
        return self.new[key]

    def _renumbered(self, text: str, what: str, old: str, new: str, forms: Mapping[str, str]) -> str:
        """Replaces an id. forms: the texts that stand for it, and what replaces each."""
        for form, by in forms.items():
            found = re.compile(rf"(?i)(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])")
            text, times = found.subn(by, text)
            if times:
                self.new[what, old] = new
                self.times[what, old] += times
        return text

    def _path(self, found: re.Match[str]) -> str:
        path = found[0]
        tail = re.search(r"[.,:]*$", path)
        end = tail[0] if tail else ""
        path = path.removesuffix(end)
        public = any(path == folder or path.startswith(f"{folder}/") for folder in PUBLIC)
        if (public and "/by-id/" not in path) or len(path) < 3:
            return found[0]
        return self._replaced("path", path) + end

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        if address.is_loopback or address.is_unspecified or (address.version == 6 and found[0].count(":") < 2):
            return found[0]
        return self._replaced("IP address", found[0])


OWN = {
    "Result": {"created_utc", "tier", "preset", "code", "objective", "begun"},
    "Phase": {"name", "purpose", "placement"},
    "Share": {"key", "scenario"},
    "Record": {"key", "phase", "scenario", "ended_by", "search_ended_by", "exempt"},
    "Route": {"tier", "precision"},
    "Audit": {"sha256", "software"},
    "Device": {"kind", "precisions", "precisions_by_suite"},
    "Absent": {"kind"},
    "Mix": {"tier", "units", "limits"},
    "System": {"mixmark", "git_commit"},
    "Environment": {"mixmark", "sha256"},
}
"""The fields of each class whose texts Mixmark writes itself. Any other field is shown, also one that is new."""


def texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(name of the field, text) of each text in a fact that Mixmark does not write itself: of a plugin, of the system,
    or of the user. A table's texts stand after their names."""
    if isinstance(value, Fact):
        kind = type(value)
        for field_name in (each for each in kind.model_fields if each not in OWN.get(kind.__name__, ())):
            yield from texts(getattr(value, field_name), field_name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Fact):
                yield name, key
                yield from texts(item)
            else:
                yield from ((name, f"{key} {text}".rstrip()) for text in [text for _, text in texts(item)] or [""])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item, name)
    elif isinstance(value, str) and value:
        yield name, value


def own_redactor() -> Redactor:
    """A redactor that knows the names of this host and of this user."""
    return Redactor(own_names())


def own_names() -> list[tuple[str, str]]:
    """(name, its kind) of this host and of this user."""
    host = socket.gethostname()
    names = [(host, "host name"), (host.partition(".")[0], "host name"), (Path.home().name, "user name")]
    with suppress(OSError, KeyError):  # there is no such user in a container
        names.append((getpass.getuser(), "user name"))
    return names


def private(content: Any) -> Iterator[tuple[str, str]]:
    """(kind, text) of each private text in parsed JSON, which a redaction would have removed."""
    redactor = Redactor()
    redactor.content(content)
    yield from ((removed.what, removed.old) for removed in redactor.removed)


def host_names(result: Result) -> Iterator[tuple[str, str]]:
    """(name, its kind) of each host of a run. Hosts that are only numbered, such as host1, are left out."""
    for name in (name for group in result.hosts for name in group.names):
        if not re.fullmatch(r"(host|node)[0-9]+", name):
            yield name, "machine"


def private_ids(result: Result) -> Iterator[tuple[str, str]]:
    """(kind, id) of each device and each energy domain whose id holds a serial number or a UUID."""
    yield from (("device", device.id) for device in result.devices if _unique(device.id))
    yield from (("energy domain", domain.id) for domain in result.domains if _tells(domain.id))


def _new_ids(devices: Sequence[Device], known: Mapping[str, str]) -> dict[str, str]:
    """The new id of each device whose id holds a UUID or a serial number: the next free number of its kind."""
    named = [part_of(name) for device in devices for name in (device.id, *device.parts, device.slice_of or "")]
    taken = {*named, *known.values()}
    numbers: dict[str, Iterator[int]] = {}
    found = {}
    for id in dict.fromkeys(named):
        if id not in known and _unique(id):
            kind = id.partition(":")[0]
            free = numbers.setdefault(kind, itertools.count())
            found[id] = next(new for number in free if (new := f"{kind}:{number}") not in taken)
    return found


def _forms(old: str, new: str) -> dict[str, str]:
    """The forms of a device's id: in full, without its kind, and as in the keys of records."""
    (kind, number), (_, fresh) = old.split(":", 1), new.split(":", 1)
    return {old: new, number: fresh, key_of(old): f"{key_of(kind)}-{fresh}", key_of(number): fresh}


def _tells(domain: str) -> bool:
    """Whether the id of an energy domain says which part it is among all that were ever made."""
    return _unique(f":{domain}") or any(private([domain]))


def _unique(id: str) -> bool:
    """Whether an id is unique among all devices that were ever made."""
    return re.search(r"(?:[0-9a-fA-F]-?){8}", id.partition(":")[2]) is not None


def _private(word: str) -> bool:
    return len(word) >= SHORTEST and word.lower() not in EVERYWHERE


def words_of(result: Result) -> frozenset[str]:
    """The words that a result uses for its own parts. A host of the same name keeps it, since the name identifies no
    machine."""
    words = {result.tier, result.preset, *(suite.name for suite in result.suites), *map(local, result.environments)}
    words |= {word for record in result.records for word in (record.scenario, record.unit, record.route.precision)}
    words |= {phase.purpose for phase in result.phases} | {domain.meter for domain in result.domains}
    words |= {word for device in result.devices for word in (device.kind, device.local_pool)}
    words |= {word for facts in result.experiments.values() for word in facts.values() if isinstance(word, str)}
    if result.mix is not None:
        words |= {result.mix.name, *result.mix.units}
    words |= {"node", "memory", "built in", "wall", "energy", "power", "again", "feed"}
    return frozenset(part for word in words for part in re.findall(r"[a-z0-9]+", word.lower()))
