"""Reads the energy counters of Intel and AMD processors from Linux's powercap, /sys/class/powercap/intel-rapl:*.

It takes each package, and each dram zone, which Intel counts beside the package although powercap shows it inside. psys
is a domain that contains them; it covers no device, because board vendors do not say what they wired to it. It leaves
out core and uncore, which are parts of the package, and the MMIO mirror, which counts a package twice.

This meter was written from the kernel's documentation and tested on made-up trees of files, never on real counters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.contracts import Sample
from harness.errors import refuse_options
from harness.meters import covered
from harness.meters.sysfs import number
from harness.schema import Absent, Device, Domain

ROOT = Path("/")
SOURCE = "Linux powercap, energy_uj; docs.kernel.org/power/powercap/powercap.html"
UNTOLD = "; AMD does not say whether it is measured or modelled"
PACKAGE = re.compile(r"package-(\d+)(?:-die-\d+)?|intel-rapl:\d+")  # a zone whose name cannot be read may be a package

# Sandy Bridge and Ivy Bridge, by family and model: their counters come from a model of events, not from a sensor
# (Rotem et al., IEEE Micro 32-2, 2012; Hackenberg et al., HPPAC 2015).
MODELLED = {("6", "42"), ("6", "45"), ("6", "58"), ("6", "62")}

RULE = 'SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="intel-rapl*:*", RUN+="/bin/chmod a+r /sys%p/energy_uj"'
PERMIT = (
    "only root may read it (CVE-2020-8694): sudo chmod a+r /sys/class/powercap/intel-rapl*:*/energy_uj, "
    f"and to keep it so: echo '{RULE}' | sudo tee /etc/udev/rules.d/70-mixmark.rules"
)
NO_ZONES = (
    "there is no /sys/class/powercap/intel-rapl:*: sudo modprobe intel_rapl_msr; "
    "a virtual machine or a container mostly hides it, so run on the host"
)

DIES = "this kernel shows a zone a die, but AMD counts the whole socket in each of them: use Linux 6.12 or newer"


@dataclass(frozen=True)
class Zone:
    """A folder of powercap: one energy counter."""

    folder: Path
    name: str
    wrap_joules: float = 0
    problem: str = ""
    """Why the zone cannot be read; empty where it can."""

    @property
    def id(self) -> str:
        return f"rapl/{self.folder.name}"


class Rapl:
    """root: the file system to read, so that tests can lay one out."""

    name = "rapl"

    def __init__(self, options: Mapping[str, str], root: Path = ROOT) -> None:
        refuse_options("the meter rapl", options)
        self._root = root
        self._zones = root / "sys/class/powercap"

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Where there are two packages, the first one covers `cpu:0/1-of-2`: only all together cover the processor."""
        zones = [_zone(folder) for folder in sorted(self._zones.glob("intel-rapl:*"), key=_natural)]
        if not zones:
            yield Absent(kind="meter", name="rapl", reason=NO_ZONES)
            return
        packages = [zone for zone in zones if PACKAGE.fullmatch(zone.name)]
        drams = [zone for zone in zones if zone.name == "dram"]
        platforms = [zone for zone in zones if zone.name == "psys"]
        vendor, model = _processor(self._root)
        if vendor == "AuthenticAMD" and len(packages) > len({zone.name.split("-die")[0] for zone in packages}):
            packages = [replace(zone, problem=DIES) for zone in packages]
        parent = next((zone.id for zone in platforms if not zone.problem), None)
        for members, covers in ((packages, covered.host(devices)), (drams, ["memory"]), (platforms, ["platform"])):
            for place, zone in enumerate(members, 1):
                part = f"/{place}-of-{len(members)}" if len(members) > 1 else ""
                if zone.problem:
                    yield Absent(kind="meter", name=f"rapl {zone.name} ({zone.folder.name})", reason=zone.problem)
                    continue
                yield Domain(
                    id=zone.id,
                    meter=self.name,
                    covers=tuple(f"{each}{part}" for each in covers),
                    boundary="node" if zone.name == "psys" else "devices",
                    quantity="energy",
                    method="modelled" if vendor == "GenuineIntel" and model in MODELLED else "counter",
                    wrap_joules=zone.wrap_joules,
                    parent=None if zone.id == parent else parent,
                    source=f"{zone.name}: {SOURCE}{UNTOLD if vendor == 'AuthenticAMD' else ''}",
                )

    def read(self, domain: Domain) -> Sequence[Sample]:
        return (Sample(number(self._zones / domain.id.removeprefix("rapl/") / "energy_uj") / 1e6),)


def _zone(folder: Path) -> Zone:
    name = folder.name
    try:
        name = (folder / "name").read_text("ascii").strip()
        wrap_joules = number(folder / "max_energy_range_uj") / 1e6
        number(folder / "energy_uj")
    except PermissionError:
        return Zone(folder, name, problem=PERMIT)
    except (OSError, UnicodeError) as error:
        return Zone(folder, name, problem=f"it cannot be read: {error}")
    return Zone(folder, name, wrap_joules, "" if wrap_joules > 0 else "the kernel does not say where it wraps")


def _natural(folder: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", folder.name)]


def _processor(root: Path) -> tuple[str, tuple[str, str]]:
    """The processor's vendor, and its family and model, from /proc/cpuinfo; empty where it does not tell."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = dict(re.findall(r"^(vendor_id|cpu family|model)\s*:\s*(\S+)", text, re.MULTILINE))
    return found.get("vendor_id", ""), (found.get("cpu family", ""), found.get("model", ""))
