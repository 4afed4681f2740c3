"""Reads power and energy sensors of boards and cards from Linux's hwmon.

The files are /sys/class/hwmon/*/energy*_input and power*_average or _input. Drivers seldom document what a sensor
covers, so the meter uses only these sensors without a declaration: the energy of an Intel card (i915, xe), the power of
an AMD NPU (amdxdna), the sockets of NVIDIA Grace, and a board's only ACPI power meter. It lists all other sensors, and
uses them if mixmark.toml declares them:

    [meter.hwmon]
    "corsairpsu/power1" = "node"                # chip/channel = what it covers
    "ina226/power1" = "cpu:0,gpu:xpu0"

This meter was written from the kernel's documentation and tested on made-up trees of files, never on real sensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters.common import absent, all_ids, domain_of, host_ids, read_integer
from mixmark.harness.resources.files import integer, line

ROOT = Path("/")
SOURCE = "Linux hwmon; docs.kernel.org/hwmon/sysfs-interface.html"
FILE = re.compile(r"(energy|power)(\d+)_(input|average)")
KEY = re.compile(r"[A-Za-z0-9_.-]+/(energy|power)\d+")
CARDS = (
    ("Intel card", ("xe", "i915"), "energy", ("gpu:xpu", "gpu:GPU-8680")),  # Intel's vendor id
    ("AMD NPU", ("amdxdna",), "power", ("npu:vitisai",)),
)
"""What has sensors of its own: its name, its chips, the quantity that they count, how the ids of its devices begin."""
GRACE = re.compile(r"Grace Power Socket \d+")
OF_GRACE = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket \d+")
MS = 1_000_000


@dataclass(frozen=True)
class Sensor:
    """One channel of a chip."""

    folder: str
    """The folder, such as `hwmon3`. The number may change with a reboot."""
    chip: str
    file: Path
    channel: str
    """The channel, such as `energy1`."""
    label: str
    averaging_ns: int | None

    @property
    def key(self) -> str:
        return f"{self.chip}/{self.channel}"

    @property
    def id(self) -> str:
        return f"hwmon/{self.folder}/{self.channel}"


class Hwmon:
    """root: the root of the file system; tests give another one."""

    name = "hwmon"

    def __init__(self, options: Mapping[str, str], root: Path = ROOT) -> None:
        for key, covers in options.items():
            if not KEY.fullmatch(key) or not covers:
                raise UsageError(
                    f"the meter hwmon cannot use {key} = {covers!r}", hint='give "chip/power1" = "node", or device ids'
                )
        self._options = options
        self._folder = root / "sys/class/hwmon"
        self._files: dict[str, Path] = {}

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        devices = list(devices)
        sensors = [*_sensors(self._folder)]
        if not sensors:
            yield absent("hwmon", "/sys/class/hwmon has no sensor of power or energy")
        cpus, everything = host_ids(devices), all_ids(devices)
        keys = [sensor.key for sensor in sensors]
        for key in self._options:
            if not (count := keys.count(key)):
                yield absent(key, f"there is no such sensor; there is {', '.join(sorted({*keys})) or 'none'}")
            elif count > 1:
                yield absent(key, f"{count} sensors have this name")
        rest = [sensor for sensor in sensors if sensor.key not in self._options]
        chosen = [*self._declared(sensors, keys, everything), *_cards(rest, everything), *_grace(rest, cpus)]
        chosen += [*_power_meters(rest, everything), *_others(rest)]
        for sensor, domain in chosen:
            if isinstance(domain, Absent):
                yield domain
                continue
            try:
                read_integer(sensor.file)
            except PermissionError:
                yield absent(sensor.key, f"only root may read it: sudo chmod a+r {sensor.file}")
            except OSError as error:
                yield absent(sensor.key, f"it cannot be read: {error}")
            else:
                self._files[domain.id] = sensor.file
                yield domain

    def read(self, domain: Domain) -> Sequence[Sample]:
        return (Sample(read_integer(self._files[domain.id]) / 1e6),)

    def _declared(
        self, sensors: Sequence[Sensor], keys: Sequence[str], everything: tuple[str, ...]
    ) -> Iterator[tuple[Sensor, Domain | Absent]]:
        """The sensors that the options declare by a name that no other has."""
        for sensor in sensors:
            if sensor.key in self._options and keys.count(sensor.key) == 1:
                covers = tuple(self._options[sensor.key].replace(" ", "").split(","))
                yield sensor, _domain(sensor, everything if covers == ("node",) else covers, node="node" in covers)


def _others(sensors: Sequence[Sensor]) -> Iterator[tuple[Sensor, Absent]]:
    """An absence for each sensor of a chip of which nothing is known."""
    known = {"power_meter", *(chip for _, chips, _, _ in CARDS for chip in chips)}
    yield from ((each, _unknown(each, "its coverage is not known")) for each in sensors if each.chip not in known)


def _cards(sensors: Sequence[Sensor], ids: Sequence[str]) -> Iterator[tuple[Sensor, Domain | Absent]]:
    """Cards and NPUs; a card contains its package. A sensor is matched with a device only if there is one card and one
    device."""
    for name, chips, quantity, begins in CARDS:
        own = [sensor for sensor in sensors if sensor.chip in chips and sensor.channel.startswith(quantity)]
        cards = {sensor.file.parent for sensor in own}
        known = [id for id in ids if id.startswith(begins)]
        card = next((sensor for sensor in own if sensor.label == "card"), None)
        for sensor in own:
            if len(cards) != 1 or len(known) != 1:
                several = f"{counted(len(cards), name)} and {counted(len(known), 'device')}"
                yield sensor, _unknown(sensor, f"{several}: their correspondence is not known")
            elif sensor.label in ("card", "pkg", "") or quantity == "power":
                yield sensor, _domain(sensor, (known[0],), parent=card.id if card and sensor != card else None)


def _grace(sensors: Sequence[Sensor], cpus: Sequence[str]) -> Iterator[tuple[Sensor, Domain | Absent]]:
    """The sockets of NVIDIA Grace, each with its memory, its CPU and its I/O. NVML reads the GPU of a module."""
    sockets = sorted((each for each in sensors if GRACE.fullmatch(each.label)), key=lambda socket: socket.label)
    for place, socket in enumerate(sockets, 1):
        part = f"/{place}-of-{len(sockets)}" if len(sockets) > 1 else ""
        yield socket, _domain(socket, tuple(f"{id}{part}" for id in (*cpus, "memory")))


def _power_meters(sensors: Sequence[Sensor], everything: tuple[str, ...]) -> Iterator[tuple[Sensor, Domain | Absent]]:
    """ACPI's power meter, if there is exactly one and it does not report that it meters only a part."""
    meters = [each for each in sensors if each.chip == "power_meter" and not OF_GRACE.fullmatch(each.label)]
    for meter in meters:
        folder = meter.file.parent
        if integer(folder / f"{meter.channel}_is_battery") == 1:
            yield meter, _unknown(meter, "it meters a battery")
        elif len(meters) > 1 or any((folder / "measures").glob("*")):
            yield meter, _unknown(meter, "it meters a part of the machine")
        else:
            yield meter, _domain(meter, everything, node=True)


def _domain(sensor: Sensor, covers: tuple[str, ...], node: bool = False, parent: str | None = None) -> Domain:
    return domain_of(
        sensor.id,
        covers,
        "energy" if sensor.channel.startswith("energy") else "power",
        f"{sensor.key} {sensor.label}".strip() + f": {SOURCE}",
        "node" if node else "devices",
        averaging_ns=sensor.averaging_ns,
        parent=parent,
    )


def _unknown(sensor: Sensor, why: str) -> Absent:
    declare = f'declare it in mixmark.toml, [meter.hwmon] "{sensor.key}" = "node" or devices'
    return absent(f"{sensor.key} {sensor.label}".strip(), f"{why}: {declare}")


def _sensors(folder: Path) -> Iterator[Sensor]:
    """All channels. ACPI meters keep their files in the subfolder `device`."""
    for chip in sorted(folder.glob("hwmon*")):
        name = line(chip / "name") or line(chip / "device/name") or ""
        found: dict[str, Path] = {}
        for file in sorted((*chip.glob("*"), *chip.glob("device/*")), key=lambda file: file.name):
            if match := FILE.fullmatch(file.name):
                found.setdefault(f"{match[1]}{match[2]}", file)  # `average` sorts before `input`
        for channel, file in found.items():
            stem = file.parent / channel
            label = line(Path(f"{stem}_label")) or line(Path(f"{stem}_oem_info")) or ""
            interval_ms = integer(Path(f"{stem}_average_interval")) if file.name.endswith("average") else None
            averaging_ns = None if interval_ms is None else interval_ms * MS
            yield Sensor(chip.name, name, file, channel, label, averaging_ns)
