"""Powercap trees as the kernel documents them, laid out in a folder: none of them was copied from a machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Absent, Device, Domain, Metering, Samples
from mixmark.harness.judge.energy.total import total
from mixmark.harness.meters.rapl import Rapl
from tests.golden.sample import SECOND, result
from tests.machine.test_counters import write

RANGE_UJ = 262_143_328_850
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
SERVER = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 63\nmodel name\t: Made up\n\n"
SANDY_BRIDGE, CLIENT = SERVER.replace("63", "45"), SERVER.replace("63", "60")
AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n\n"


def tree(root: Path, zones: str, cpuinfo: str = SERVER) -> Path:
    """zones: `:0=package-0 :0:0=dram` and the like, the end of the folder and the name. Each counter stands at 1 J."""
    for folder, _, name in (zone.partition("=") for zone in zones.split()):
        files = {"name": f"{name}\n", "max_energy_range_uj": f"{RANGE_UJ}\n", "energy_uj": "1000000\n"}
        write(root / f"sys/class/powercap/intel-rapl{folder}", files)
    write(root, {"proc/cpuinfo": cpuinfo})
    return root


def found(root: Path, *devices: Device) -> tuple[dict[str, Domain], dict[str, str]]:
    answers = list(Rapl({}, root).domains(devices or (CPU,)))
    domains = {each.id: each for each in answers if isinstance(each, Domain)}
    return domains, {each.name: each.reason for each in answers if isinstance(each, Absent)}


def test_packages_and_memory_count_once_through_every_wrap(tmp_path: Path) -> None:
    """A package of 180 W, and 120 W more or less in a sine of 11 s; 22.5 W of its memory. psys, core and the MMIO
    mirror count the same joules again. The counters wrap after half a minute."""

    def package_j(at_s: float) -> float:
        return 180 * at_s + 120 * 11 / (2 * math.pi) * (1 - math.cos(2 * math.pi * at_s / 11))

    zones: dict[str, tuple[str, Callable[[float], float]]] = {
        "intel-rapl:0": ("package-0", package_j),
        "intel-rapl:0:0": ("core", lambda at_s: 0.8 * package_j(at_s)),
        "intel-rapl:0:1": ("dram", lambda at_s: 22.5 * at_s),
        "intel-rapl:1": ("psys", lambda at_s: package_j(at_s) + 52.5 * at_s),
        "intel-rapl-mmio:0": ("package-0", package_j),
    }
    root = tree(tmp_path, " ".join(f"{zone[10:]}={name}" for zone, (name, _) in zones.items()))
    meter = Rapl({}, root)
    domains = tuple(each for each in meter.domains([CPU]) if isinstance(each, Domain))
    at_ns, values = np.arange(0, 130 * SECOND, SECOND // 10), {each.id: list[float]() for each in domains}
    for at_s in at_ns / SECOND:
        for zone, (_, curve) in zones.items():
            microjoules = round((curve(at_s) + 255_000) * 1e6) % RANGE_UJ
            (root / "sys/class/powercap" / zone / "energy_uj").write_text(f"{microjoules}\n")
        for domain in domains:
            values[domain.id] += [sample.value for sample in meter.read(domain)]
    samples = {id: Samples(at_ns, at_ns + 30_000, np.array(read)) for id, read in values.items()}
    metering = Metering(phase="a", begin_ns=0, end_ns=130 * SECOND, cpu_ns=0, samples=samples)
    whole = result().model_copy(update={"devices": (CPU,), "domains": domains, "meterings": (metering,)})
    found = total(whole, "a", 4_033_000_000, 125_071_000_000)
    assert found.joules == pytest.approx(package_j(125.071) - package_j(4.033) + 22.5 * 121.038, rel=1e-3)
    assert (found.boundary, set(found.domains)) == ("devices", {"rapl/intel-rapl:0", "rapl/intel-rapl:0:1"})
    assert "memory" not in found.unmetered and "power supply" in found.unmetered


def test_two_sockets_cover_the_processor_only_together(tmp_path: Path) -> None:
    domains, _ = found(tree(tmp_path, ":0=package-0 :10=dram :2=package-1 :1:0=dram"))
    covers = {id.removeprefix("rapl/intel-rapl"): each.covers for id, each in domains.items()}
    assert (covers[":0"], covers[":2"]) == (("cpu:0/1-of-2",), ("cpu:0/2-of-2",))
    assert {covers[":10"], covers[":1:0"]} == {("memory/1-of-2",), ("memory/2-of-2",)}


def test_a_socket_that_cannot_be_read_leaves_the_processor_uncovered(tmp_path: Path) -> None:
    root = tree(tmp_path, ":0=package-0 :1=package-1")
    (root / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    domains, absent = found(root)
    assert [each.covers for each in domains.values()] == [("cpu:0/1-of-2",)]
    assert "rapl package-1 (intel-rapl:1)" in absent
    assert hidden(root) == {"rapl dram": ("memory/1-of-2", "memory/2-of-2")}, "another meter may cover the processor"


@pytest.mark.parametrize("name", [None, b"\xff\xfe"])
def test_a_zone_that_does_not_say_its_name_may_be_a_socket(tmp_path: Path, name: bytes | None) -> None:
    root = tree(tmp_path, ":0=package-0 :0:0=core :1=package-1")
    for zone in ("intel-rapl:0:0", "intel-rapl:1"):
        file = root / "sys/class/powercap" / zone / "name"
        file.unlink() if name is None else file.write_bytes(name)
    domains, absent = found(root)
    assert [each.covers for each in domains.values()] == [("cpu:0/1-of-2",)], "else one socket stood for both"
    assert [*absent] == ["rapl dram", "rapl intel-rapl:1 (intel-rapl:1)"]


def hidden(root: Path) -> dict[str, tuple[str, ...]]:
    """What the machine announces and nothing can read, beside the devices."""
    absent = (each for each in Rapl({}, root).domains([CPU]) if isinstance(each, Absent))
    return {each.name: each.covers for each in absent if each.covers}


def test_the_memory_that_a_processor_is_known_to_count_is_announced_where_it_is_not_shown(tmp_path: Path) -> None:
    one, two = ":0=package-0", ":0=package-0 :1=package-1"
    assert hidden(tree(tmp_path / "a", one)) == {"rapl dram": ("memory",)}
    assert hidden(tree(tmp_path / "b", two)) == {"rapl dram": ("memory/1-of-2", "memory/2-of-2")}
    root = tree(tmp_path / "c", f"{two} :0:0=dram", CLIENT)
    assert hidden(root) == {"rapl dram": ("memory/2-of-2",)}, "where one socket's memory is counted, all have a counter"
    domains, _ = found(root)
    assert domains["rapl/intel-rapl:0:0"].covers == ("memory/1-of-2",), "one of two is not the whole"
    for name, cpuinfo in (("d", AMD), ("e", CLIENT), ("f", SANDY_BRIDGE)):
        assert not hidden(tree(tmp_path / name, one, cpuinfo))
    _, absent = found(tmp_path / "e")
    assert "is not known" in absent["rapl dram"]


def test_a_dram_zone_that_cannot_be_read_is_announced(tmp_path: Path) -> None:
    root = tree(tmp_path, ":0=package-0 :0:0=dram", CLIENT)
    assert not hidden(root)
    (root / "sys/class/powercap/intel-rapl:0:0/energy_uj").unlink()
    assert hidden(root) == {"rapl dram (intel-rapl:0:0)": ("memory",)}


def test_zones_of_one_name_are_not_added(tmp_path: Path) -> None:
    domains, absent = found(tree(tmp_path / "packages", ":0=package-0 :0:0=dram :1=package-0 :1:0=dram"))
    assert [each.covers for each in domains.values()] == [("memory/1-of-2",), ("memory/2-of-2",)]
    assert absent["rapl package-0 (intel-rapl:0)"] == absent["rapl package-0 (intel-rapl:1)"]
    assert absent["rapl package-0 (intel-rapl:0)"].startswith("2 zones have this name")
    domains, absent = found(tree(tmp_path / "memory", ":0=package-0 :0:0=dram :0:1=dram"))
    assert [*domains] == ["rapl/intel-rapl:0"] and len(absent) == 2


def test_slices_of_the_processor_are_covered_with_it(tmp_path: Path) -> None:
    halves = [Device(id=f"cpu:0.{part}", kind="cpu", memory_pool="host") for part in (0, 1)]
    elsewhere = Device(id="cpu:9", kind="cpu", memory_pool="another")
    domains, _ = found(tree(tmp_path, ":0=package-0"), *halves, elsewhere)
    assert domains["rapl/intel-rapl:0"].covers == ("cpu:0", "cpu:0.0", "cpu:0.1")


@pytest.mark.parametrize(
    ("cpuinfo", "method"), [(SERVER, "counter"), (CLIENT, "counter"), (SANDY_BRIDGE, "modelled"), (AMD, "counter")]
)
def test_counters_before_haswell_are_a_model(tmp_path: Path, cpuinfo: str, method: str) -> None:
    domains, _ = found(tree(tmp_path, ":0=package-0", cpuinfo))
    assert domains["rapl/intel-rapl:0"].method == method
    assert ("its maker does not document" in domains["rapl/intel-rapl:0"].source) == (cpuinfo == AMD)


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "HygonGenuine", "CentaurHauls", "of no known maker"])
def test_dies_of_which_no_maker_documents_a_counter_are_refused(tmp_path: Path, vendor: str) -> None:
    dies = ":0=package-0-die-0 :1=package-0-die-1"
    domains, absent = found(tree(tmp_path / "other", dies, AMD.replace("AuthenticAMD", vendor)))
    assert not domains
    assert len(absent) == 2 and all("6.12" in reason for reason in absent.values())
    domains, absent = found(tree(tmp_path / "intel", dies))  # Intel's dies count for themselves
    assert [each.covers for each in domains.values()] == [("cpu:0/1-of-2",), ("cpu:0/2-of-2",)]


def test_without_permission_it_says_the_command_that_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, ":0=package-0 :0:0=core")
    read_text = Path.read_text

    def guarded(path: Path, *words: str, **more: str) -> str:  # root may read all, and so might whoever runs this test
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", guarded)
    domains, absent = found(root)
    assert not domains
    reason = absent["rapl package-0 (intel-rapl:0)"]
    assert "sudo chmod a+r /sys/class/powercap/intel-rapl*:*/energy_uj" in reason
    assert 'SUBSYSTEM=="powercap"' in reason


def test_a_machine_without_zones_says_why(tmp_path: Path) -> None:
    domains, absent = found(tmp_path)
    assert not domains
    assert "modprobe intel_rapl_msr" in absent["rapl"]


@pytest.mark.parametrize("content", ["", "many\n", "0\n"])
def test_a_zone_without_a_range_is_not_used_since_its_wraps_could_not_be_undone(tmp_path: Path, content: str) -> None:
    root = tree(tmp_path, ":0=package-0")
    (root / "sys/class/powercap/intel-rapl:0/max_energy_range_uj").write_text(content)
    domains, absent = found(root)
    assert not domains and absent


def test_a_counter_that_goes_away_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    root = tree(tmp_path, ":0=package-0")
    meter = Rapl({}, root)
    (domain,) = (each for each in meter.domains([CPU]) if isinstance(each, Domain))
    counter = root / "sys/class/powercap/intel-rapl:0/energy_uj"
    counter.write_text("")
    with pytest.raises(OSError, match="is not a number"):
        meter.read(domain)
    counter.unlink()
    with pytest.raises(OSError):
        meter.read(domain)
