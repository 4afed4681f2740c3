"""hwmon trees as the kernel documents them, laid out in a folder: none of them was copied from a machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mixmark.harness.capabilities.sensors.hwmon import Hwmon
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Absent, Device, Domain
from tests.machine.test_counters import write

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
ARC = Device(id="gpu:xpu0", kind="gpu", memory_pool="gpu:xpu0")
HOPPER = Device(id="gpu:GPU-5d1cae40", kind="gpu", memory_pool="gpu:GPU-5d1cae40")


def chip(root: Path, number: int, name: str, **files: str) -> None:
    """The files of an ACPI meter lie in `device`."""
    inside = "device/" if name == "power_meter" else ""
    own = {f"{inside}{file}": f"{text}\n" for file, text in files.items()}
    write(root / f"sys/class/hwmon/hwmon{number}", {"name": f"{name}\n", **own})


def socket(root: Path, number: int, label: str, microwatts: int = 90_000_000) -> None:
    chip(
        root, number, "power_meter", power1_average=str(microwatts), power1_oem_info=label, power1_average_interval="50"
    )


def found(
    root: Path, *devices: Device, options: dict[str, str] | None = None
) -> tuple[Hwmon, dict[str, Domain], dict[str, str]]:
    meter = Hwmon(options or {}, root)
    answers = list(meter.domains(devices or (CPU,)))
    domains = {each.id: each for each in answers if isinstance(each, Domain)}
    return meter, domains, {each.name: each.reason for each in answers if isinstance(each, Absent)}


def test_an_intel_card_holds_its_package(tmp_path: Path) -> None:
    labels = {"energy1_label": "card", "energy2_label": "pkg", "energy3_label": "vram"}
    energies = {f"energy{number}_input": str(number * 5_000_000) for number in (1, 2, 3)}
    chip(tmp_path, 3, "xe", **labels, **energies, power1_max="190000000")
    meter, domains, absent = found(tmp_path, CPU, ARC)
    assert {id: (each.covers, each.parent) for id, each in domains.items()} == {
        "hwmon/hwmon3/energy1": (("gpu:xpu0",), None),
        "hwmon/hwmon3/energy2": (("gpu:xpu0",), "hwmon/hwmon3/energy1"),
    }
    card = domains["hwmon/hwmon3/energy1"]
    assert (card.quantity, card.method, card.boundary) == ("energy", "counter", "devices")
    assert [sample.value for sample in meter.read(card)] == [5.0]
    assert not absent


@pytest.mark.parametrize(
    ("kind", "devices", "chips", "told"),
    [
        ("amdxdna", 1, 1, None),
        ("amdxdna", 0, 1, "1 AMD NPU and 0 devices: "),
        ("amdxdna", 2, 1, "1 AMD NPU and 2 devices: "),
        ("amdxdna", 1, 2, "2 AMD NPUs and 1 device: "),
        ("i915", 1, 2, "2 Intel cards and 1 device: "),
    ],
)
def test_what_has_its_own_sensor_is_matched_if_there_is_one_of_it(
    tmp_path: Path, kind: str, devices: int, chips: int, told: str | None
) -> None:
    npu, sensor = kind == "amdxdna", "power1" if kind == "amdxdna" else "energy1"
    for number in range(chips):
        chip(tmp_path, number, kind, **{f"{sensor}_input": "1850000", f"{sensor}_label": "NPU_power" if npu else ""})
    ids = [f"npu:vitisai{at}" if npu else f"gpu:xpu{at}" for at in range(devices)]
    known = (Device(id=id, kind="npu" if npu else "gpu", memory_pool="host") for id in ids)
    meter, domains, absent = found(tmp_path, CPU, *known)
    if told:
        assert not domains and absent[f"{kind}/{sensor}{' NPU_power' if npu else ''}"].startswith(told)
    else:
        assert [(each.covers, meter.read(each)[0].value) for each in domains.values()] == [(("npu:vitisai0",), 1.85)]


def test_a_grace_socket_covers_its_processor_and_memory(tmp_path: Path) -> None:
    for number, kind in enumerate(("Module", "Grace", "CPU", "SysIO")):
        socket(tmp_path, number, f"{kind} Power Socket 0")
    meter, domains, absent = found(tmp_path, CPU, HOPPER)
    assert {id: each.covers for id, each in domains.items()} == {"hwmon/hwmon1/power1": ("cpu:0", "memory")}
    assert not absent
    grace = domains["hwmon/hwmon1/power1"]
    assert (grace.quantity, grace.method, grace.averaging_ns) == ("power", "integrated", 50_000_000)
    assert [sample.value for sample in meter.read(grace)] == [90.0]
    socket(tmp_path, 4, "Grace Power Socket 1")
    _, domains, _ = found(tmp_path, CPU, HOPPER)
    assert [each.covers for each in domains.values()] == [
        (f"cpu:0/{number}-of-2", f"memory/{number}-of-2") for number in (1, 2)
    ]


def test_the_only_acpi_meter_is_that_of_the_node(tmp_path: Path) -> None:
    chip(tmp_path, 0, "power_meter", power1_average="311000000", power1_is_battery="0")
    _, domains, _ = found(tmp_path, CPU, HOPPER)
    (node,) = domains.values()
    assert (node.boundary, node.averaging_ns) == ("node", None)
    assert node.covers == ("cpu:0", "gpu:GPU-5d1cae40", "memory", "node")


def test_an_acpi_meter_of_a_battery_or_of_a_part_is_not(tmp_path: Path) -> None:
    chip(tmp_path / "a", 0, "power_meter", power1_average="9000000", power1_is_battery="1")
    assert not found(tmp_path / "a")[1]
    chip(tmp_path / "b", 0, "power_meter", power1_average="9000000")
    (tmp_path / "b/sys/class/hwmon/hwmon0/device/measures/fan").mkdir(parents=True)
    assert not found(tmp_path / "b")[1]
    for number in (0, 1):
        chip(tmp_path / "c", number, "power_meter", power1_average="9000000")
    _, domains, absent = found(tmp_path / "c")
    assert not domains and "a part of the machine" in absent["power_meter/power1"]


def test_any_other_sensor_is_named_until_its_owner_says_what_it_covers(tmp_path: Path) -> None:
    chip(tmp_path, 0, "corsairpsu", power1_input="411000000", power1_label="power total")
    chip(tmp_path, 1, "nvme", temp1_input="40000")
    _, domains, absent = found(tmp_path)
    assert not domains
    assert '[meter.hwmon] "corsairpsu/power1" = "node"' in absent["corsairpsu/power1 power total"]
    meter, domains, absent = found(tmp_path, options={"corsairpsu/power1": "node"})
    (node,) = domains.values()
    assert (node.boundary, node.covers) == ("node", ("cpu:0", "memory", "node"))
    assert [sample.value for sample in meter.read(node)] == [411.0]
    _, domains, _ = found(tmp_path, options={"corsairpsu/power1": "cpu:0, gpu:a"})
    (rail,) = domains.values()
    assert (rail.boundary, rail.covers) == ("devices", ("cpu:0", "gpu:a"))


@pytest.mark.parametrize(
    ("chips", "key", "reason"),
    [
        (("ina226",), "ina227/power1", "there is no such sensor; there is ina226/power1"),
        (("ina226", "xe"), "ina226/power2", "there is no such sensor; there is ina226/power1, xe/power1"),
        ((), "corsairpsu/power1", "there is no such sensor; there is none"),  # its driver is not loaded
        (("ina226",), "ina226/energy1", "there is no such sensor; there is ina226/power1"),
        (("ina226", "ina226"), "ina226/power1", "2 sensors have this name"),
    ],
)
def test_a_declaration_of_no_sensor_or_of_two_is_an_absence(
    tmp_path: Path, chips: Sequence[str], key: str, reason: str
) -> None:
    for number, name in enumerate(chips):
        chip(tmp_path, number, name, power1_input="1000000")
    _, domains, absent = found(tmp_path, options={key: "cpu:0"})
    assert not domains and absent[key] == reason


def test_a_sensor_is_read_as_a_mean_or_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    chip(tmp_path, 0, "ina226", power1_input="1000000", power1_average="2000000", power1_average_interval="100")
    meter, domains, _ = found(tmp_path, options={"ina226/power1": "cpu:0"})
    (rail,) = domains.values()
    assert (rail.averaging_ns, meter.read(rail)[0].value) == (100_000_000, 2.0)
    (tmp_path / "sys/class/hwmon/hwmon0/power1_average").write_text("")
    with pytest.raises(OSError, match="is not a number"):
        meter.read(rail)
    _, domains, absent = found(tmp_path, options={"ina226/power1": "cpu:0"})
    assert not domains and "is not a number" in absent["ina226/power1"]
    assert "no sensor" in found(tmp_path / "empty")[2]["hwmon"]


@pytest.mark.parametrize("options", [{"ina226": "node"}, {"ina226/temp1": "node"}, {"ina226/power1": ""}])
def test_options_that_mean_nothing_are_misuse(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Hwmon(options)
