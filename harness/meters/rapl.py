"""Reads the energy counters of Intel and AMD processors from Linux's powercap, /sys/class/powercap/intel-rapl:*.

It reads each package and each dram zone, which Intel counts beside the package although powercap shows it inside. An
unreadable dram zone is reported, because the boundary `devices` must include it. The meter leaves out core and uncore,
which are parts of the package, the MMIO mirror, which counts a package twice, and psys, whose wiring is not documented.

This meter was written from the kernel's documentation and tested on made-up trees of files, never on real counters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mixmark.harness.contracts.errors import refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters.common import absent, host_ids, read_integer

ROOT = Path("/")
SOURCE = "Linux powercap, energy_uj; docs.kernel.org/power/powercap/powercap.html"
UNDOCUMENTED = "; its maker does not document whether it is measured or modelled"
PACKAGE = re.compile(r"package-(\d+)(?:-die-\d+)?|intel-rapl:\d+")  # a zone whose name cannot be read may be a package

# Sandy Bridge and Ivy Bridge, by family and model. Their counters are estimates from events, without a sensor
# (Rotem et al., IEEE Micro 32-2, 2012; Hackenberg et al., HPPAC 2015).
MODELLED = {("6", "42"), ("6", "45"), ("6", "58"), ("6", "62")}

# Server models of family 6 whose memory has a counter by the tables of Linux (arch/x86/events/rapl.c, hsx and spr):
# Haswell, Broadwell (and D), Skylake, Ice Lake (and D), Sapphire Rapids, Emerald Rapids.
SERVERS = {("6", model) for model in ("63", "79", "86", "85", "106", "108", "143", "207")}
NO_DRAM = "the kernel shows no dram zone, but this processor has a counter for memory: enable DRAM RAPL in the firmware"
UNKNOWN_DRAM = (
    "the kernel shows no dram zone, and it is not known whether this processor has a counter for memory, "
    "so the boundary devices does not include memory"
)
TWINS = "{count} zones have this name, and it is not known which zone counts"

RULE = 'SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="intel-rapl*:*", RUN+="/bin/chmod a+r /sys%p/energy_uj"'
PERMIT = (
    "only root may read it (CVE-2020-8694): sudo chmod a+r /sys/class/powercap/intel-rapl*:*/energy_uj; "
    f"to make this permanent: echo '{RULE}' | sudo tee /etc/udev/rules.d/70-mixmark.rules"
)
NO_ZONES = (
    "there is no /sys/class/powercap/intel-rapl:*: sudo modprobe intel_rapl_msr; "
    "most virtual machines and containers hide it, so run on the host"
)

DIES = (
    "this kernel shows a zone for each die, but only Intel documents a counter for each: elsewhere each die shows the "
    "whole socket's: use Linux 6.12 or newer"
)


@dataclass(frozen=True)
class Zone:
    """A folder of powercap: one energy counter."""

    folder: Path
    name: str
    wrap_joules: float = 0
    problem: Reason | None = None
    """Why the zone cannot be read. None if it can."""

    @property
    def id(self) -> str:
        return f"rapl/{self.folder.name}"

    @property
    def place(self) -> tuple[str, str]:
        """The folder of the containing zone, and the name, since each package may have a zone with the name dram."""
        above = self.folder.name.rpartition(":")[0] if self.folder.name.count(":") > 1 else ""
        return above or (self.folder.name if self.name == "dram" else ""), self.name


class Rapl:
    """root: the root of the file system; tests give another one."""

    name = "rapl"

    def __init__(self, options: Mapping[str, str], root: Path = ROOT) -> None:
        refuse_options("the meter rapl", options)
        self._root = root
        self._zones = root / "sys/class/powercap"

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """The packages and their memory.

        With two packages, the first package covers `cpu:0/1-of-2`: only both packages cover the processor, and only
        both dram zones cover the memory.
        """
        zones = [_zone(folder) for folder in sorted(self._zones.glob("intel-rapl:*"), key=_natural)]
        if not zones:
            yield absent("rapl", NO_ZONES)
            return
        packages = _distinct([zone for zone in zones if PACKAGE.fullmatch(zone.name)])
        drams = _distinct([zone for zone in zones if zone.name == "dram"])
        vendor, model = _processor(self._root)
        if vendor == "GenuineIntel" and len(drams) < len(packages) and model not in MODELLED:
            known = bool(drams) or model in SERVERS
            hidden = tuple(f"memory{_part(place, len(packages))}" for place in range(len(drams) + 1, len(packages) + 1))
            reason = NO_DRAM if known else UNKNOWN_DRAM
            yield absent("rapl dram", reason, covers=hidden if known else ())
        if vendor != "GenuineIntel" and len(packages) > len({zone.name.split("-die")[0] for zone in packages}):
            packages = [replace(zone, problem=DIES) for zone in packages]
        for members, covers in ((packages, host_ids(devices)), (drams, ["memory"])):
            for place, zone in enumerate(members, 1):
                part = _part(place, max(len(members), len(packages)))
                if zone.problem:
                    name = f"rapl {zone.name} ({zone.folder.name})"
                    hidden = tuple(f"{id}{part}" for id in covers) if zone.name == "dram" else ()
                    yield absent(name, zone.problem, covers=hidden)
                    continue
                yield Domain(
                    id=zone.id,
                    meter=self.name,
                    covers=tuple(f"{id}{part}" for id in covers),
                    boundary="devices",
                    quantity="energy",
                    method="modelled" if vendor == "GenuineIntel" and model in MODELLED else "counter",
                    wrap_joules=zone.wrap_joules,
                    source=f"{zone.name}: {SOURCE}{UNDOCUMENTED if vendor != 'GenuineIntel' else ''}",
                )

    def read(self, domain: Domain) -> Sequence[Sample]:
        return (Sample(read_integer(self._zones / domain.id.removeprefix("rapl/") / "energy_uj") / 1e6),)


def _zone(folder: Path) -> Zone:
    name = folder.name
    try:
        name = (folder / "name").read_text("ascii").strip()
        wrap_joules = read_integer(folder / "max_energy_range_uj") / 1e6
        read_integer(folder / "energy_uj")
    except PermissionError:
        return Zone(folder, name, problem=PERMIT)
    except (OSError, UnicodeError) as error:
        return Zone(folder, name, problem=f"it cannot be read: {error}")
    return Zone(folder, name, wrap_joules, None if wrap_joules > 0 else "the kernel does not report where it wraps")


def _distinct(zones: Sequence[Zone]) -> list[Zone]:
    """The zones. Zones with the same name and parent get a problem, because their sum may count energy twice."""
    names = Counter(zone.place for zone in zones)
    return [
        replace(zone, problem=zone.problem or TWINS.format(count=names[zone.place])) if names[zone.place] > 1 else zone
        for zone in zones
    ]


def _part(number: int, count: int) -> str:
    return f"/{number}-of-{count}" if count > 1 else ""


def _natural(folder: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", folder.name)]


def _processor(root: Path) -> tuple[str, tuple[str, str]]:
    """The processor's vendor, and its family and model, from /proc/cpuinfo; empty if unknown."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = dict(re.findall(r"^(vendor_id|cpu family|model)\s*:\s*(\S+)", text, re.MULTILINE))
    return found.get("vendor_id", ""), (found.get("cpu family", ""), found.get("model", ""))
