"""What supplies the machine with power, and the profile that limits how much of it the machine takes."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from mixmark.harness.contracts.schema import PowerSource
from mixmark.harness.resources.files import ROOT, integer, line
from mixmark.harness.resources.psutils import known

SUPPLIES = "sys/class/power_supply"
ADAPTERS = ("Mains", "USB", "Wireless")
PROFILE = "sys/firmware/acpi/platform_profile"
PREFERENCE = "sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference"


def source(root: Path = ROOT) -> PowerSource | None:
    """What supplies the machine now: `mains`, `battery` also if it only helps, or `charging` if mains also charge the
    battery. None if the machine does not report it, as most without a battery."""
    if not (root / SUPPLIES).is_dir():
        return _elsewhere() if root == ROOT else None
    # A UPS stands outside of the machine.
    supplies = [each for each in sorted((root / SUPPLIES).iterdir()) if not _of_peripheral(each)]
    plugged = [integer(each / "online") for each in supplies if line(each / "type") in ADAPTERS]
    batteries = [each for each in supplies if line(each / "type") == "Battery" and integer(each / "present") != 0]
    # Some firmware calls a full battery discharging although no power flows.
    states = {line(each / "status") for each in batteries if not (any(plugged) and _rests(each))}
    if "Charging" in states:
        return "charging"
    if "Discharging" in states or (batteries and 0 in plugged and not any(plugged)):
        return "battery"
    return "mains" if any(plugged) or (states and states <= {"Full", "Not charging"}) else None


def profile(root: Path = ROOT) -> str | None:
    """The platform's profile, as `low-power`, or else the processor's energy preference, as `balance_power`. None if
    the machine has neither."""
    return line(root / PROFILE) or line(root / PREFERENCE)


def _of_peripheral(supply: Path) -> bool:
    """Whether it supplies a mouse or a headset: by its scope, or a battery that is an input device, as older drivers
    without a scope show it."""
    device = re.search(r"hid|/usb\d", str(supply.resolve()).rpartition("/sys/")[2])
    return line(supply / "scope") == "Device" or (line(supply / "type") == "Battery" and device is not None)


def _rests(battery: Path) -> bool:
    """Whether no power flows into the battery or out of it."""
    return 0 in (integer(battery / "power_now"), integer(battery / "current_now"))


def _elsewhere() -> PowerSource | None:
    """The source on a system without Linux's files, which does not report whether a battery is charged."""
    battery = known(lambda: psutil.sensors_battery(), None)  # psutil lacks it on some systems
    if battery is None or battery.power_plugged is None:
        return None
    return "mains" if battery.power_plugged else "battery"
