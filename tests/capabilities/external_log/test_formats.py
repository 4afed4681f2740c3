"""Logs as instruments write them: one real log of an analyser, and lines as the tools' documentation shows them."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import numpy as np
import pytest

from mixmark.harness.capabilities.external_log import Clocks, External
from mixmark.harness.capabilities.external_log.formats import recognised
from mixmark.harness.capabilities.external_log.lines import epoch_ns
from mixmark.harness.capabilities.external_log.tables import Table
from mixmark.harness.capabilities.external_log.units import UNITS
from mixmark.harness.contracts.schema import Device, Domain, Samples
from mixmark.harness.judge.energy.reading import reading
from tests.fakes.machine import WALL

LOGS = Path(__file__).parent / "logs"
SECOND = 1_000_000_000
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
MOMENT = "03-03-2021 00:53:32.184"
PTDAEMON = "Time,03-03-2021 00:53:31.184,Watts,2.96,Volts,230"
ANALYSER = {"time": "Date+Time", "column": "P-1", "unit": "kW", "time_format": "%Y/%m/%d %H:%M:%S"}
FORMATS = [
    ("nvidia-smi", "timestamp, uuid, power.draw [W]", "2026/11/24 09:41:30.250, GPU-aa, 65.43 W", 65.43),
    ("turbostat", "Time_Of_Day_Seconds\tPkgWatt\tRAMWatt", "1795513290.250000\t33.25\t2.10", 33.25),
    ("HWiNFO", 'Date,Time,"Total CPU Usage [%]","CPU Power [W]"', "24.11.2026,09:41:30.250,12.5,45.6", 45.6),
    ("a table", "Store No.;Date;Time;U-1;P-1", "1;2026/11/24;09:41:30;230.1;0.1504", 150.4),  # an analyser's export
]


@pytest.mark.parametrize(("name", "header", "row", "watts"), FORMATS)
def test_a_line_of_each_tool(name: str, header: str, row: str, watts: float) -> None:
    found = recognised(header, ANALYSER if name == "a table" else {})
    assert found is not None and found.name == name
    [(at, value)] = filter(None, map(found.reading, (header, row)))
    moment_s = 1_795_513_290 + (0 if name == "a table" else 0.25)
    assert epoch_ns(at, UTC, found.time_format) == pytest.approx(moment_s * SECOND, abs=1000)
    assert value * UNITS[found.unit] == pytest.approx(watts)


@pytest.mark.parametrize(
    ("header", "options", "says"),
    [
        ('Date,Time,"CPU Package Power [W]","GPU Power [W]"', {}, "several columns have a unit"),
        ('Date,Time,"P [W]","P [W]"', {"column": "P [W]"}, "2 columns 'P "),
        ("timestamp,uuid,power.draw.average [W],power.draw.instant [W]", {}, "several columns have a unit"),
        ("timestamp,power.draw [W]", {}, "add uuid to --query-gpu"),
        ("Date,Time,U [V],P [W]", {"column": "U [V]"}, "'U .V.' is neither power nor energy"),
        ("Time_Of_Day_Seconds PkgWatt", {"column": "PkgWatt", "unit": "mW"}, "in W by its name, and unit = 'mW'"),
        ("timestamp,watts", {"where.gpu": "0"}, "0 columns 'gpu'"),
        ("timestamp,limit_w,cpu_w,gpu_w", {}, 'add column = "cpu_w", or one of gpu_w, limit_w$'),  # bounds come last
        ("timestamp,uuid,power.draw [W],temperature", {"column": "temperature"}, "'temperature' does not say its unit"),
    ],
)
def test_a_header_whose_columns_are_not_clear_is_refused(header: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recognised(header, options)


@pytest.mark.parametrize(
    ("header", "options", "named"),
    [
        ("timestamp,power_limit_w,power_w", {}, "power_w"),
        ("timestamp,power_limit_w,power_w", {"column": "power_limit_w"}, "power_limit_w"),
        ("timestamp,tokens per watt,watts", {}, "watts"),
        ("timestamp,cpu_power,ram", {"column": "cpu_power", "unit": "W"}, "cpu_power"),
        ('Date,Time,"CPU PL1 Power Limit [W]","CPU Package Power [W]"', {}, "CPU Package Power [W]"),
        ("timestamp,limit_w", {}, None),
        ("timestamp,tokens per watt", {}, None),
    ],
)
def test_the_column_of_a_reading(header: str, options: dict[str, str], named: str | None) -> None:
    found = recognised(header, options)
    assert (isinstance(found, Table) and found.names[found.value]) == (named or False)


@pytest.mark.parametrize("first", ["", "hello", "Time,later,Watts,3", "a,b,c", "Date,Time,x", "timestamp,P [VA]", "#"])
def test_what_is_no_log_is_not_recognised(first: str) -> None:
    assert recognised(first, {}) is None


def read(header: str, rows: list[str], **options: str) -> list[tuple[str, float]]:
    found = recognised(header, options)
    assert found is not None
    return [each for row in rows for each in [found.reading(row)] if each]


GPUS = "timestamp, index, power.draw [W]"
TWO = ["t1, 0, 300.00 W", "t1, 1, 50.00 W", "t2, 0, 310.00 W", "t2, 1, 60.00 W", "t3, 0, 320.00 W", "t3, 1, 70.00 W"]


def test_two_gpus_of_one_log_are_refused_or_chosen_and_never_mixed() -> None:
    """Both rows taken for one source were 85.7 W of 350."""
    with pytest.raises(ValueError, match=r'choose where = {"index" = "1"}'):
        read(GPUS, TWO)
    # nvidia-smi asks one after the other
    with pytest.raises(ValueError, match="of another device than the rows above"):
        read(GPUS, ["t1, 0, 300.00 W", "t1.1, 1, 50.00 W"])
    assert read(GPUS, TWO, **{"where.index": "0"}) == [("t1", 300.0), ("t2", 310.0), ("t3", 320.0)]
    assert read(GPUS, TWO, **{"where.index": "7"}) == []


def test_rows_of_one_instant_without_a_device_are_refused_or_chosen() -> None:
    rows = ["1,a,300", "1,b,50", "2,a,310", "2,b,60", "3,a,1", "3,b,2", "4,a,5"]
    with pytest.raises(ValueError, match=r'of the same instant as the row above.*where = {"rail" = "b"};'):
        read("timestamp,rail,watts", rows)
    assert read("timestamp,rail,watts", rows, **{"where.rail": "b"}) == [("1", 50.0), ("2", 60.0), ("3", 2.0)]


def test_the_packages_of_turbostat_need_a_choice() -> None:
    header = "Time_Of_Day_Seconds\tCore\tCPU\tBusy%\tPkgWatt"
    rows = ["1.5\t-\t-\t3.1\t33.25", "1.5\t0\t0\t3.1\t33.25", "1.5\t0\t4\t3.1", "2.5\t-\t-\t3.1\t34.5"]
    with pytest.raises(ValueError, match=r'where = {"Core" = "0"} or where = {"CPU" = "0"}'):
        read(header, rows)
    assert read(header, rows, **{"where.cpu": "-"}) == [("1.5", 33.25), ("2.5", 34.5)]


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("timestamp, uuid, power.draw [W]", "t, a, 35,20 W", "4 fields, not 3; a decimal comma"),
        ("timestamp, uuid, power.draw [W]", 't, a, "35,20 W"', "is not a number: write decimals with a point"),
        ("timestamp, uuid, power.draw [W]", "t, a, [N/A]", "'.N/A.' is not a number"),
        ("timestamp, uuid, power.draw [W]", "t, a, 35.20 mW", "its value is in mW, but its column is in W"),
        ("timestamp, uuid, power.draw.instant [W]", "t, a, 35.20 W", 35.2),
        ('Date,Time,"T [C]","P [W]","Q [V]"', "d,t,55,3,42,1,12,0", "8 fields, not 5; a decimal comma"),
        ('Date,Time,"T [C]","P [W]","Q [V]"', "d,t,55,42.1,12,", 42.1),
        ('Date,Time,"T [C]","P [W]","Q [V]"', "d,t,55,42.1", "4 fields, not 5"),
        ('Date,Time,"P [W]",Q', "d,t,42.1,3\nd,t2,55,3,", "5 fields, not 4"),
        ('Date,Time,"P [W]"', 'd,t,"1,234.5"', "no separator of thousands"),
        ('Date,Time,"P [W]"', ",,CPU [#0]: Acme", None),
        ('Date,Time,"P [W]"', ",,42.1", "it has no timestamp"),
        ('Date,Time,"P [W]"', 'Date,Time,"P [W]"', None),
        ('Date,Time,"P [W]"', 'Date,Time,"T [C]"', "other columns than the header of the log"),
        ('Date,Time,"P [W]"', 'd,t,"42.1', "unexpected end of data"),
        ("#Date       Time        gpu    pwr  gtemp", " 20261124   09:41:30      0     65     34", 65.0),
        ("#Date       Time        gpu    pwr  gtemp", "#YYYYMMDD   HH:MM:SS    Idx      W      C", None),
        ("timestamp | watts", "1760000000 | 42.5", 42.5),
        ("timestamp\tkW", "1760000000\t1.5 kW", 1.5),
        ("timestamp,Power (W)", "1760000000,1.5e2 watts", 150.0),
        (PTDAEMON, f"Time,{MOMENT},Volts,230", "it lacks Time and Watts"),
        (PTDAEMON, f"Time,{MOMENT},Watts", "it lacks Time and Watts"),
        (PTDAEMON, f"Time,{MOMENT},Watts,9.032000,Volts,230", 9.032),
        (PTDAEMON, f"Time,{MOMENT},Watts,-", "is not a number"),
        (PTDAEMON, "", "it lacks Time and Watts"),
    ],
)
def test_a_row_is_read_by_its_header_or_refused(header: str, row: str, expected: float | str | None) -> None:
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            read(header, row.split("\n"))
    else:
        assert [value for _, value in read(header, [row])] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("digits", "ns"), [("", 0), (".25", 250_000_000), ("250", 250_000_000), ("250500125", 250_500_125)]
)
def test_a_time_since_1970_is_read_in_each_of_its_units(digits: str, ns: int) -> None:
    assert epoch_ns(f"1760000000{digits}", None) == 1_760_000_000 * SECOND + ns


def ptdaemon() -> tuple[list[int], list[float]]:
    lines = (LOGS / "ptdaemon.txt").read_text().splitlines()
    found = recognised(lines[0], {})
    assert found is not None and found.name == "SPEC PTDaemon"
    readings = [each for line in lines for each in [found.reading(line)] if each]
    return [epoch_ns(at, UTC, found.time_format) for at, _ in readings], [value for _, value in readings]


def test_the_energy_of_a_real_analysers_log_is_the_sum_of_its_samples() -> None:
    at, watts = ptdaemon()
    assert (len(at), watts[0]) == (200, 2.96)
    at_ns = np.array(at) - at[0]
    for first, last in ((0, 199), (10, 110), (60, 199)):
        found = reading(WALL, Samples(at_ns, at_ns, np.array(watts)), int(at_ns[first]), int(at_ns[last]))
        own = float(np.sum(np.array(watts[first:last]) * np.diff(at_ns[first : last + 1]) / 1e9))
        assert found.joules == pytest.approx(own, rel=0.001 + 0.5 * abs(watts[last] - watts[first]) / own)


def test_a_log_of_an_analyser_is_followed_while_it_grows(tmp_path: Path) -> None:
    text = (LOGS / "ptdaemon.txt").read_text().splitlines(keepends=True)
    path = tmp_path / "spl.txt"
    path.write_text("".join(text[:50]))
    first_ns = epoch_ns("03-03-2021 00:54:21.185", UTC, "%m-%d-%Y %H:%M:%S.%f")
    now = [1000 * SECOND]
    clocks = Clocks(lambda: now[0], lambda: now[0] - 1000 * SECOND + first_ns)
    meter = External({"path": str(path), "timezone": "UTC", "accuracy": "0.1%"}, clocks)
    [domain] = meter.domains([CPU])
    assert isinstance(domain, Domain)
    assert domain.source == "log spl.txt, as SPEC PTDaemon writes it, in W, as declared by its owner"
    now[0] += 10 * SECOND
    with path.open("a") as log:
        log.writelines(text[50:60])
    samples = meter.read(domain)
    assert [sample.value for sample in samples[:2]] == [5.74, 5.74]
    assert len(samples) == 10
    assert samples[0].at_ns == 1000 * SECOND
    now[0] += 86_400 * SECOND
    assert meter.read(domain) == []
    with path.open("a") as log:
        log.writelines(text[60:61])
    with pytest.raises(Exception, match="after its timestamp: the clocks disagree"):
        meter.read(domain)


def in_turns(*devices: tuple[str, float]) -> list[str]:
    return [f"{turn}.{at},{name},{watts + turn % 3}" for turn in range(20) for at, (name, watts) in enumerate(devices)]


@pytest.mark.parametrize(
    ("column", "devices"),
    [
        ("entity_id", [("sensor.pc_power", 300), ("sensor.fridge_power", 50)]),  # was read as 175 W
        ("uuid_of_gpu", [("GPU-4f", 300), ("GPU-1c", 310), ("GPU-0a", 60)]),
        ("slot", [("1c", 30), ("2c", 50)]),
        ("DeviceId", [("0", 41), ("1", 241), ("2", 90)]),
        ("topic", [("home/pc", 1_000_000), ("home/fridge", 1_000_040)]),
    ],
)
def test_a_column_of_any_name_that_tells_devices_apart_needs_a_choice(
    column: str, devices: list[tuple[str, float]]
) -> None:
    rows, header = in_turns(*devices), f"timestamp,{column},watts"
    with pytest.raises(ValueError, match=rf'where = {{"{column}" = ".*"}}; or one_device = true'):
        read(header, rows)
    chosen = {f"where.{column}": devices[0][0]}
    assert {round(value - devices[0][1]) for _, value in read(header, rows, **chosen)} == {0, 1, 2}
    assert len(read(header, rows, one_device="true")) == len(rows)
    alone = [f"-{at},{devices[0][0]},{devices[0][1]}" for at in range(200)]  # the others join late
    with pytest.raises(ValueError, match="of another device than the rows above"):
        read(header, alone + rows)


def test_one_device_overrules_no_documented_column() -> None:
    with pytest.raises(ValueError, match=r'where = {"index" = "1"}$'):
        read(GPUS, TWO, one_device="true")


@pytest.mark.parametrize(
    "columns",
    [
        ("pstate", [("P8", 30), *[("P0", 300)] * 6]),  # visits of several rows
        ("temperature", [("61", 250), ("62", 250)]),  # says nothing about the power
        ("utilization.gpu [%]", [("0", 30), ("100", 300)]),  # has a unit
        ("fan_rpm", [("900", 30), ("1200", 300)]),
        ("clock", [("210 MHz", 30), ("1980 MHz", 300)]),
        ("temp", [("61 °C", 30), ("62 °C", 300)]),
        ("load", [("0.5", 30), ("1.0", 300)]),
    ],
    ids=lambda columns: columns[0],
)
def test_the_state_of_one_device_is_no_device(columns: tuple[str, list[tuple[str, float]]]) -> None:
    rows = in_turns(*columns[1])
    assert len(read(f"timestamp,{columns[0]},watts", rows)) == len(rows)
