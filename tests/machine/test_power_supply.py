"""What supplies a machine, on the files of power supplies as laptops, desktops and servers have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.contracts.schema import PowerSource
from mixmark.harness.machine import disclosure, power_supply
from mixmark.harness.machine.counters import MachineCounters, between
from tests.machine.test_counters import quiet, write

AC, OFF = {"type": "Mains", "online": "1"}, {"type": "Mains", "online": "0"}
PORT = {"type": "USB", "online": "0"}


def battery(status: str, **files: str) -> dict[str, str]:
    return {"type": "Battery", "present": "1", "status": status} | files


def supplied(root: Path, *supplies: dict[str, str]) -> Path:
    folder = "sys/class/power_supply"
    (root / folder).mkdir(parents=True, exist_ok=True)
    write(
        root, {f"{folder}/S{at}/{name}": f"{text}\n" for at, each in enumerate(supplies) for name, text in each.items()}
    )
    return root


@pytest.mark.parametrize(
    ("supplies", "source"),
    [
        ((), None),
        ((AC,), "mains"),
        ((OFF,), None),  # a port in which nothing is, on a machine without a battery
        ((OFF, battery("Unknown")), "battery"),
        ((battery("Discharging", power_now="0"),), "battery"),  # no file of an adapter
        ((AC, battery("Charging")), "charging"),
        ((OFF, PORT, battery("Charging")), "charging"),  # by a port that the kernel does not list
        ((AC, battery("Not charging")), "mains"),
        ((AC, battery("Discharging", power_now="0")), "mains"),  # a full one, by some firmware's word
        ((AC, battery("Discharging", power_now="9000000")), "battery"),  # the adapter is too weak
        ((OFF, PORT | {"online": "1"}, battery("Full")), "mains"),
        ((AC, battery("Discharging") | {"scope": "Device"}), "mains"),  # of a mouse
        ((battery("Discharging") | {"scope": "Device"},), None),
        ((AC, battery("Discharging") | {"present": "0"}), "mains"),
    ],
)
def test_the_source_of_power(tmp_path: Path, supplies: tuple[dict[str, str], ...], source: PowerSource | None) -> None:
    assert power_supply.source(supplied(tmp_path, *supplies)) == source


@pytest.mark.parametrize(
    ("name", "device", "source"),
    [
        ("hidpp_battery_0", "", "mains"),
        ("wacom_battery_1", "devices/pci0000:00/usb1/1-4/0003:056A:0374.0002", "mains"),
        ("hid-aa:bb-battery", "devices/virtual/misc/uhid/0005:004C:0269.0007", "mains"),
        ("BAT0", "devices/LNXSYSTM:00/device:00/PNP0C0A:00", "battery"),
    ],
)
def test_a_battery_of_an_input_device_is_not_the_machines(
    tmp_path: Path, name: str, device: str, source: PowerSource
) -> None:
    """Older drivers name no scope."""
    folder = supplied(tmp_path, AC) / power_supply.SUPPLIES / name
    if device:
        (tmp_path / "sys" / device).mkdir(parents=True)
        folder.symlink_to(tmp_path / "sys" / device)
    write(folder, {name: f"{text}\n" for name, text in battery("Discharging").items()})
    assert power_supply.source(tmp_path) == source


def test_it_is_disclosed_and_watched(tmp_path: Path) -> None:
    write(supplied(quiet(tmp_path), AC, battery("Full")), {"sys/firmware/acpi/platform_profile": "quiet\n"})
    found = disclosure.disclose(tmp_path, environment={}, checkout=tmp_path)
    assert (found.power_source, found.power_profile) == ("mains", "quiet")
    machine = MachineCounters([], tmp_path)
    before = machine.read()
    supplied(tmp_path, OFF, battery("Discharging"))  # somebody trips over the cable
    assert between(before, machine.read()).power_source == "battery"
